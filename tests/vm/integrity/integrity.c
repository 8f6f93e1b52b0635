/* Blocks that say what they are: written, and read back to say exactly what became of them. See __init__.py. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "integrity.h"

uint64_t mix(uint64_t word) { /* the finalizer of splitmix64 */
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
    return word ^ (word >> 31);
}

uint64_t checksum(const uint64_t *sector) { /* each step is a bijection: one wrong word is always seen */
    uint64_t sum = MAGIC;
    for (int n = 0; n < W_CHECKSUM; n++) {
        sum = (sum ^ sector[n]) * 0x9e3779b97f4a7c15ULL;
        sum ^= sum >> 29;
    }
    return sum;
}

void fill_sector(uint64_t *sector, uint64_t file, uint64_t block, unsigned number, uint64_t generation) {
    sector[W_MAGIC] = MAGIC;
    sector[W_FILE] = file;
    sector[W_BLOCK] = block;
    sector[W_SECTOR] = number;
    sector[W_GENERATION] = generation;
    uint64_t state = mix(file ^ mix(block * SECTORS + number)) ^ mix(generation);
    for (int n = W_FILLER; n < W_CHECKSUM; n++)
        sector[n] = mix(state += 0x9e3779b97f4a7c15ULL);
    sector[W_CHECKSUM] = checksum(sector);
}

uint64_t slot_of(const struct run *run, uint64_t generation) {
    uint64_t slots = run->blocks / run->span;
    if (run->pattern == 's' || (run->pattern == 'o' && generation <= slots))
        return (generation - 1) % slots;
    return mix(run->seed ^ mix(generation)) % slots;
}

void print_run(FILE *out, const struct run *run, bool direct) {
    fprintf(out, "run 1 file %llu seed %llu blocks %llu offset %llu span %u pattern %c direct %d\n",
            (unsigned long long)run->file, (unsigned long long)run->seed, (unsigned long long)run->blocks,
            (unsigned long long)run->offset, run->span, run->pattern, direct);
}

bool parse_run(const char *line, struct run *run) {
    unsigned long long file, seed, blocks, offset;
    int known = sscanf(line, "run 1 file %llu seed %llu blocks %llu offset %llu span %u pattern %c", &file, &seed,
                       &blocks, &offset, &run->span, &run->pattern);
    run->file = file, run->seed = seed, run->blocks = blocks, run->offset = offset;
    return known == 6 && run->span >= 1 && run->span <= MAX_SPAN && blocks >= run->span && blocks % run->span == 0 &&
           strchr("sro", run->pattern);
}

void die(int code, const char *format, ...) {
    va_list words;
    va_start(words, format);
    fputs("integrity: ", stderr);
    vfprintf(stderr, format, words);
    fputc('\n', stderr);
    exit(code);
}

int main(int argc, char **argv) {
    if (argc >= 3 && !strcmp(argv[1], "write"))
        return run_writer(argc - 1, argv + 1);
    if (argc >= 3 && !strcmp(argv[1], "verify"))
        return run_verifier(argc - 1, argv + 1);
    die(USAGE, "integrity write|verify PATH …");
}
