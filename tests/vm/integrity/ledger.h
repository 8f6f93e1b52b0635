/* What a ledger promises. Arrays are by slot: a place of `span` blocks that are written together. */
#ifndef LEDGER_H
#define LEDGER_H

#include "integrity.h"

struct ledger {
    struct run run;
    uint64_t *must;   /* the last generation that was acknowledged as synced; 0: none */
    uint64_t *done;   /* the last whose write returned well */
    uint64_t *newest; /* the last that was begun */
    uint64_t *failed; /* generations whose write failed, ascending */
    size_t failed_count;
};

void read_ledger(FILE *in, struct ledger *ledger);

#endif
