/* What the process that measures and the one that speaks share. */
#ifndef DESK_H
#define DESK_H

#include "calls.h"

enum { USAGE = 64, UNMEASURED = 3 };
enum { PREPARING, READY, GO, MEASURED, CLOSED };

struct outcome {
    long first;
    long again; /* of the same call on the same object after an error; UNSET when it was not made */
};

/* Between the two processes. */
struct desk {
    volatile uint32_t state;
    pid_t speaker;
    int exit_code;
    char (*reasons)[256]; /* why an entry could not be prepared, or nothing */
    struct outcome *outcomes;
};

struct order {
    bool many, wait, repeat_errors, own_dir;
    unsigned count, deadline_s;
    int entries;
    const struct entry **wanted;
    const char *cgroup;
    char dir[2048];
};

bool reached(struct desk *desk, uint32_t state, int other); /* other: a pidfd of the other process */
void start_speaker(struct desk *desk, const struct order *order);

#endif
