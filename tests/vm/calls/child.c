/* Calls that end, replace or unsettle the process that makes them: each is made by a child of its own. */
#define _GNU_SOURCE
#include "calls.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SETTLING, WAITING, GO, GAVE_UP };

struct child {
    pid_t pid;
    volatile uint32_t state;
    long result; /* UNSET when the call did not return: it replaced the program, or killed it */
    char reason[256];
};

extern jmp_buf give_up;
extern char reason[256];

static void settle(struct call *call, struct child *self)
{
    if (setjmp(give_up)) {
        memcpy(self->reason, reason, sizeof reason);
        post(&self->state, GAVE_UP);
        _exit(0);
    }
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (call->entry->settle)
        call->entry->settle(call);
}

static void live(struct call *call, struct child *self, unsigned nth)
{
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    settle(call, self);
    post(&self->state, WAITING);
    while (self->state == WAITING)
        wait_change(&self->state, WAITING, DEADLINE_S);
    self->result = call->entry->make(call, nth);
    _exit(0);
}

void fork_children(struct call *call)
{
    size_t size = call->count * sizeof(struct child);
    call->children = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must(call->children == MAP_FAILED ? -1 : 0, "shared memory");
    for (unsigned nth = 0; nth < call->count; nth++) {
        struct child *child = &call->children[nth];
        child->result = UNSET;
        pid_t pid = (pid_t)must(fork(), "fork");
        if (pid == 0)
            live(call, child, nth);
        child->pid = pid; /* by the parent alone: both see this memory */
        for (int tries = 0; child->state == SETTLING && tries < 3; tries++)
            wait_change(&child->state, SETTLING, DEADLINE_S);
        if (child->state != WAITING)
            unable("%s", child->state == GAVE_UP ? child->reason : "a child did not settle");
    }
}

long reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
        if (timed_out)
            kill(pid, SIGKILL);
    }
    if (timed_out)
        return TIMEOUT;
    if (WIFSIGNALED(status))
        return BY_SIGNAL - WTERMSIG(status);
    return WEXITSTATUS(status) ? BY_EXIT - WEXITSTATUS(status) : 0;
}

long child_call(struct call *call, unsigned nth)
{
    struct child *child = &call->children[nth];
    if (child->pid == 0)
        return UNSET; /* it has been asked already */
    post(&child->state, GO);
    long end = reap(child->pid);
    child->pid = 0;
    return end == 0 && child->result != UNSET ? child->result : end;
}
