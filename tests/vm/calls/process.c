/* Processes and programs: fork and exec. What a fork makes ends at once and is waited for. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>

enum { STACK = 64 * 1024 };

static long ended(long pid)
{
    if (pid == 0)
        _exit(0);
    return pid < 0 ? pid : reap((pid_t)pid);
}

static long make_fork(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return ended(SYS(fork));
}

/* By the C library: the caller's stack is used by both, so the call must not be made from a function that returns. */
static long make_vfork(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    return pid < 0 ? -errno : reap(pid);
}

static long make_clone(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return ended(SYS(clone, SIGCHLD, NULL, NULL, NULL, NULL));
}

static long make_clone3(struct call *call, unsigned nth)
{
    struct clone_args how = {.exit_signal = SIGCHLD};
    (void)call, (void)nth;
    return ended(SYS(clone3, &how, sizeof how));
}

static void with_stack(struct call *call)
{
    call->map = memory(STACK);
    call->buffer = memory(BLOCK); /* its first word is cleared when the thread is gone */
}

static int nothing(void *argument)
{
    (void)argument;
    return 0;
}

static long make_clone_thread(struct call *call, unsigned nth)
{
    volatile uint32_t *alive = (volatile uint32_t *)(void *)call->buffer;
    int shared = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM;
    (void)nth;
    *alive = 1;
    if (clone(nothing, call->map + STACK, shared | CLONE_THREAD | CLONE_CHILD_CLEARTID, NULL, NULL, NULL, alive) < 0)
        return -errno;
    while (*alive && !timed_out)
        wait_change(alive, 1, 1);
    return 0;
}

static void *no_thread(void *argument)
{
    return argument;
}

static long make_pthread_create(struct call *call, unsigned nth)
{
    pthread_attr_t attributes;
    pthread_t thread;
    (void)nth;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, call->map, STACK);
    int failed = pthread_create(&thread, &attributes, no_thread, NULL);
    if (!failed)
        pthread_join(thread, NULL);
    return -failed;
}

/* --- exec */

static char *none[] = {NULL};

static long make_execve(struct call *call, unsigned nth)
{
    char *name = (char *)path(call, "program", 0), *words[] = {name, "nothing", NULL};
    (void)nth;
    return SYS(execve, name, words, none);
}

static long make_execveat(struct call *call, unsigned nth)
{
    char *name = (char *)path(call, "program", 0), *words[] = {name, "nothing", NULL};
    (void)nth;
    return SYS(execveat, AT_FDCWD, name, words, none, 0);
}

static void open_program(struct call *call)
{
    program(call);
    call->fd = (int)must(open(path(call, "program", 0), O_RDONLY | O_CLOEXEC), "a program");
}

static long make_execveat_fd(struct call *call, unsigned nth)
{
    char *words[] = {"program", "nothing", NULL};
    (void)nth;
    return SYS(execveat, call->fd, "", words, none, AT_EMPTY_PATH);
}

static long make_posix_spawn(struct call *call, unsigned nth)
{
    char *name = (char *)path(call, "program", 0), *words[] = {name, "nothing", NULL};
    pid_t pid;
    (void)nth;
    int failed = posix_spawn(&pid, name, NULL, NULL, words, none);
    return failed ? -failed : reap(pid);
}

const struct entry process_entries[] = {
    {"fork", "fork", NULL, make_fork, HERE, NULL},
    {"vfork", "fork", NULL, make_vfork, HERE, NULL},
    {"clone", "fork", NULL, make_clone, HERE, NULL},
    {"clone3", "fork", NULL, make_clone3, HERE, NULL},
    {"clone_thread", "fork", with_stack, make_clone_thread, HERE, NULL},
    {"pthread_create", "fork", with_stack, make_pthread_create, HERE, NULL},
    {"execve", "exec", program, make_execve, CHILD_EACH, NULL},
    {"execveat", "exec", program, make_execveat, CHILD_EACH, NULL},
    {"execveat_fd", "exec", open_program, make_execveat_fd, CHILD_EACH, NULL},
    {"posix_spawn", "fork exec", program, make_posix_spawn, HERE, NULL},
    {0},
};
