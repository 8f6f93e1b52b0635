/* The ledger read back: for each slot, which generation it must hold and which it may. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

static void *grown(void *old, size_t count, size_t size) {
    void *room = reallocarray(old, count, size);
    if (!room)
        die(BROKEN, "no memory");
    return room;
}

static void remember_failed(struct ledger *ledger, uint64_t generation) {
    if ((ledger->failed_count & (ledger->failed_count - 1)) == 0)
        ledger->failed = grown(ledger->failed, ledger->failed_count ? ledger->failed_count * 2 : 1, sizeof(uint64_t));
    ledger->failed[ledger->failed_count++] = generation;
}

static bool has_failed(const struct ledger *ledger, uint64_t generation) {
    for (size_t n = ledger->failed_count; n-- && ledger->failed[n] >= generation;)
        if (ledger->failed[n] == generation)
            return true;
    return false;
}

static void each_slot(struct ledger *ledger, uint64_t first, uint64_t last, uint64_t *of_slot, bool failed_too) {
    for (uint64_t generation = first; generation <= last; generation++)
        if (failed_too || !has_failed(ledger, generation))
            of_slot[slot_of(&ledger->run, generation)] = generation;
}

static void understand(struct ledger *ledger, const char *line) {
    struct run run;
    unsigned long long first, last;
    if (parse_run(line, &run)) {
        if (ledger->must && memcmp(&run, &ledger->run, sizeof run))
            die(USAGE, "the ledger is of two runs");
        if (ledger->must)
            return;
        ledger->run = run;
        uint64_t slots = run.blocks / run.span;
        ledger->must = grown(NULL, slots, sizeof(uint64_t));
        ledger->done = grown(NULL, slots, sizeof(uint64_t));
        ledger->newest = grown(NULL, slots, sizeof(uint64_t));
        memset(ledger->must, 0, slots * sizeof(uint64_t));
        memset(ledger->done, 0, slots * sizeof(uint64_t));
        memset(ledger->newest, 0, slots * sizeof(uint64_t));
        return;
    }
    if (!ledger->must)
        die(USAGE, "the ledger does not begin with its run line");
    if (sscanf(line, "intent %llu %llu", &first, &last) == 2)
        each_slot(ledger, first, last, ledger->newest, true);
    else if (sscanf(line, "write-error %llu", &first) == 1)
        remember_failed(ledger, first);
    else if (sscanf(line, "wrote %llu %llu", &first, &last) == 2)
        each_slot(ledger, first, last, ledger->done, false);
    else if (sscanf(line, "synced %llu %llu", &first, &last) == 2)
        each_slot(ledger, first, last, ledger->must, false);
    else if (strncmp(line, "sync-error ", 11) && strncmp(line, "end ", 4))
        die(USAGE, "not a line of a ledger: %s", line);
}

void read_ledger(FILE *in, struct ledger *ledger) {
    char line[256];
    memset(ledger, 0, sizeof *ledger);
    while (fgets(line, sizeof line, in)) {
        if (!strchr(line, '\n'))
            break; /* its writer ended in the middle: the line says nothing */
        understand(ledger, line);
    }
    if (!ledger->must)
        die(USAGE, "the ledger is empty");
}
