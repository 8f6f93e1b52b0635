/* The verifier: reads every block and says, one by one, what is not as the ledger promises. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ledger.h"

/* From the least to the worst; a block is the worst of what applies. */
enum kind { UNWRITTEN, INTACT, STALE, LOST, TORN, MISDIRECTED, CORRUPTED, UNREADABLE, KINDS };
static const char *const KIND_NAMES[] = {"unwritten", "intact", "stale", "lost", "torn", "misdirected", "corrupted",
                                         "unreadable"};

/* What one sector holds. */
enum content { BLANK, MINE, ELSEWHERE, GARBAGE, NO_ANSWER };

struct sector {
    enum content content;
    uint64_t file, block, number, generation; /* as it says itself; of garbage, generation is the likeliest */
    unsigned wrong, first_wrong;              /* bytes of garbage that are not as they should be */
};

struct verifier {
    struct ledger ledger;
    const char *path;
    int fd;
    bool direct;
    uint64_t limit, found, counts[KINDS], broken;
};

static bool is_zero(const uint64_t *words) {
    for (int n = 0; n < WORDS; n++)
        if (words[n])
            return false;
    return true;
}

/* How far a sector is from what one generation would have there. */
static void measure(struct sector *sector, const uint64_t *words, const struct run *run, uint64_t block,
                    unsigned number, uint64_t generation) {
    uint64_t wanted[WORDS];
    if (!generation)
        return;
    fill_sector(wanted, run->file, block, number, generation);
    const unsigned char *a = (const unsigned char *)words, *b = (const unsigned char *)wanted;
    unsigned wrong = 0, first = 0;
    for (unsigned n = SECTOR; n--;)
        if (a[n] != b[n])
            wrong++, first = n;
    if (!sector->wrong || wrong < sector->wrong)
        sector->wrong = wrong, sector->first_wrong = first, sector->generation = generation;
}

static struct sector look(const struct verifier *verifier, const uint64_t *words, uint64_t block, unsigned number) {
    const struct run *run = &verifier->ledger.run;
    uint64_t slot = block / run->span;
    struct sector sector = {.content = GARBAGE, .file = words[W_FILE], .block = words[W_BLOCK],
                            .number = words[W_SECTOR], .generation = words[W_GENERATION]};
    if (words[W_MAGIC] == MAGIC && words[W_CHECKSUM] == checksum(words)) {
        bool here = sector.file == run->file && sector.block == block && sector.number == number;
        if (!here)
            sector.content = ELSEWHERE;
        else if (sector.generation && slot_of(run, sector.generation) == slot)
            sector.content = MINE;
        if (sector.content != GARBAGE)
            return sector;
    }
    if (is_zero(words)) {
        sector.content = BLANK;
        sector.generation = 0;
        return sector;
    }
    uint64_t said = sector.generation;
    sector.generation = 0;
    if (said && slot_of(run, said) == slot)
        measure(&sector, words, run, block, number, said);
    measure(&sector, words, run, block, number, verifier->ledger.must[slot]);
    measure(&sector, words, run, block, number, verifier->ledger.done[slot]);
    measure(&sector, words, run, block, number, verifier->ledger.newest[slot]);
    return sector;
}

static enum kind kind_of(const struct verifier *verifier, uint64_t block, const struct sector *sectors) {
    uint64_t slot = block / verifier->ledger.run.span;
    uint64_t must = verifier->ledger.must[slot], done = verifier->ledger.done[slot];
    uint64_t newest = verifier->ledger.newest[slot], first = sectors[0].generation;
    bool has[NO_ANSWER + 1] = {false}, torn = false, others = false;
    for (int n = 0; n < SECTORS; n++) {
        has[sectors[n].content] = true;
        torn |= sectors[n].generation != first;
        others |= sectors[n].content == ELSEWHERE && sectors[n].file == verifier->ledger.run.file;
    }
    if (has[NO_ANSWER])
        return UNREADABLE;
    if (!newest && !has[MINE] && !others) /* what was here before is none of ours */
        return UNWRITTEN;
    if (has[GARBAGE])
        return CORRUPTED;
    if (has[ELSEWHERE])
        return MISDIRECTED;
    if (torn)
        return TORN;
    if (first < must)
        return LOST;
    if (first < done)
        return STALE;
    return first ? INTACT : UNWRITTEN;
}

/* Whether what was acknowledged for this block is harmed: a sector is older than that, or not to be had. */
static bool breaks_promise(uint64_t must, const struct sector *sectors) {
    for (int n = 0; n < SECTORS; n++)
        if ((sectors[n].content != MINE && sectors[n].content != BLANK) || sectors[n].generation < must)
            return true;
    return false;
}

static void tell(struct verifier *verifier, uint64_t block, enum kind kind, const struct sector *sectors, int error,
                 bool broken) {
    uint64_t slot = block / verifier->ledger.run.span;
    if (verifier->found++ >= verifier->limit)
        return;
    printf("%s\n  {\"block\": %llu, \"kind\": \"%s\", \"broken_promise\": %s, \"must\": %llu, \"done\": %llu, "
           "\"newest\": %llu, \"errno\": %d, \"sectors\": [",
           verifier->found == 1 ? "" : ",", (unsigned long long)block, KIND_NAMES[kind], broken ? "true" : "false",
           (unsigned long long)verifier->ledger.must[slot], (unsigned long long)verifier->ledger.done[slot],
           (unsigned long long)verifier->ledger.newest[slot], error);
    for (int n = 0; n < SECTORS; n++) {
        const struct sector *sector = &sectors[n];
        static const char *const names[] = {"blank", "mine", "elsewhere", "garbage", "unreadable"};
        printf("%s{\"content\": \"%s\", \"generation\": %llu", n ? ", " : "", names[sector->content],
               (unsigned long long)sector->generation);
        if (sector->content == ELSEWHERE)
            printf(", \"file\": %llu, \"block\": %llu, \"number\": %llu", (unsigned long long)sector->file,
                   (unsigned long long)sector->block, (unsigned long long)sector->number);
        if (sector->content == GARBAGE)
            printf(", \"wrong\": %u, \"first_wrong\": %u", sector->wrong, sector->first_wrong);
        printf("}");
    }
    printf("]}");
}

/* The errno of a read; beyond the end of a file there are zeros. */
static int fetch(const struct verifier *verifier, void *buffer, size_t size, uint64_t at) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(verifier->fd, (char *)buffer + done, size - done, at + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (!got)
            break;
        done += got;
        if (verifier->direct && done % SECTOR)
            break; /* the end of the file, in the middle of a sector */
    }
    memset((char *)buffer + done, 0, size - done);
    return 0;
}

static void judge(struct verifier *verifier, uint64_t block, uint64_t *words) {
    struct sector sectors[SECTORS];
    uint64_t at = verifier->ledger.run.offset + block * BLOCK;
    memset(sectors, 0, sizeof sectors);
    int error = fetch(verifier, words, BLOCK, at);
    for (unsigned n = 0; n < SECTORS; n++) {
        /* A sector at a time tells which it is: past the page cache, where the device has sectors of 512 bytes. */
        int answer = error ? fetch(verifier, words + n * WORDS, SECTOR, at + n * SECTOR) : 0;
        if (answer == EINVAL && error)
            answer = error;
        if (answer)
            sectors[n].content = NO_ANSWER;
        else
            sectors[n] = look(verifier, words + n * WORDS, block, n);
    }
    enum kind kind = error ? UNREADABLE : kind_of(verifier, block, sectors);
    uint64_t must = verifier->ledger.must[block / verifier->ledger.run.span];
    bool broken = must && (error || breaks_promise(must, sectors));
    verifier->counts[kind]++;
    verifier->broken += broken;
    if (kind != INTACT && kind != UNWRITTEN)
        tell(verifier, block, kind, sectors, error, broken);
}

static void parse(int argc, char **argv, struct verifier *verifier, const char **ledger) {
    static const struct option options[] = {
        {"ledger", 1, 0, 'l'}, {"buffered", 0, 0, 'b'}, {"limit", 1, 0, 'm'}, {0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'l': *ledger = optarg; break;
        case 'b': verifier->direct = false; break;
        case 'm': verifier->limit = strtoull(optarg, NULL, 10); break;
        default: die(USAGE, "see tests/vm/integrity");
        }
    }
    if (optind != argc - 1)
        die(USAGE, "verify PATH, one only");
    verifier->path = argv[optind];
}

int run_verifier(int argc, char **argv) {
    static struct verifier verifier = {.direct = true, .limit = 10000};
    const char *ledger = NULL;
    uint64_t *words;
    parse(argc, argv, &verifier, &ledger);
    FILE *in = ledger ? fopen(ledger, "re") : stdin;
    if (!in)
        die(BROKEN, "%s: %s", ledger, strerror(errno));
    read_ledger(in, &verifier.ledger);
    verifier.fd = open(verifier.path, O_RDONLY | O_CLOEXEC | (verifier.direct ? O_DIRECT : 0));
    if (verifier.fd < 0)
        die(BROKEN, "%s: %s", verifier.path, strerror(errno));
    if (posix_memalign((void **)&words, BLOCK, BLOCK))
        die(BROKEN, "no memory");
    printf("{\"findings\": [");
    for (uint64_t block = 0; block < verifier.ledger.run.blocks; block++)
        judge(&verifier, block, words);
    uint64_t told = verifier.found < verifier.limit ? verifier.found : verifier.limit;
    printf("],\n \"left_out\": %llu, \"broken_promises\": %llu, \"counts\": {",
           (unsigned long long)(verifier.found - told), (unsigned long long)verifier.broken);
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s\"%s\": %llu", kind ? ", " : "", KIND_NAMES[kind], (unsigned long long)verifier.counts[kind]);
    printf("}}\n");
    return OK;
}
