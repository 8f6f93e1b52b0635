/* What the writer and the verifier share: the form of a block, the order of the writes, the ledger's run line. */
#ifndef INTEGRITY_H
#define INTEGRITY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SECTOR = 512, SECTORS = 8, BLOCK = SECTOR * SECTORS, WORDS = SECTOR / 8, MAX_SPAN = 64 };
enum { OK = 0, BROKEN = 3, USAGE = 64 };

/* A sector is 64 little-endian words: these five, filler that follows from them, a checksum of all before it. */
enum { W_MAGIC, W_FILE, W_BLOCK, W_SECTOR, W_GENERATION, W_FILLER, W_CHECKSUM = WORDS - 1 };
#define MAGIC 0x3130434553464721ULL /* "!GFSEC01" */

struct run {
    uint64_t file;   /* names this run in every sector it writes; no two runs may share it */
    uint64_t seed;   /* decides where the n-th write goes */
    uint64_t blocks; /* of 4 KiB */
    uint64_t offset; /* bytes before the first block, of a device or file */
    unsigned span;   /* blocks of one write */
    char pattern;    /* s: around and around; r: anywhere; o: once in order, then anywhere */
};

uint64_t mix(uint64_t word);
void fill_sector(uint64_t *sector, uint64_t file, uint64_t block, unsigned number, uint64_t generation);
uint64_t checksum(const uint64_t *sector);
uint64_t slot_of(const struct run *run, uint64_t generation); /* the generation is the number of the write, from 1 */

void print_run(FILE *out, const struct run *run, bool direct);
bool parse_run(const char *line, struct run *run);

int run_writer(int argc, char **argv);
int run_verifier(int argc, char **argv);
void die(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

#endif
