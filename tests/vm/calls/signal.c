/* Signals to an own child that waits for them. SIGCONT does nothing to a process that runs. */
#define _GNU_SOURCE
#include "calls.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

static void with_child(struct call *call)
{
    pid_t parent = getpid(), pid = (pid_t)must(fork(), "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) /* which may have ended before the line above */
            pause();
        _exit(0);
    }
    call->number = (unsigned long)pid;
    call->fd = (int)must(syscall(SYS_pidfd_open, pid, 0), "pidfd_open");
}

static long make_kill(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(kill, call->number, SIGCONT);
}

static long make_kill_zero(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(kill, call->number, 0);
}

static long make_tkill(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(tkill, call->number, SIGCONT);
}

static long make_tgkill(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(tgkill, call->number, call->number, SIGCONT);
}

static siginfo_t queued(void)
{
    siginfo_t about;
    memset(&about, 0, sizeof about);
    about.si_signo = SIGCONT;
    about.si_code = SI_QUEUE;
    about.si_pid = getpid();
    return about;
}

static long make_rt_sigqueueinfo(struct call *call, unsigned nth)
{
    siginfo_t about = queued();
    (void)nth;
    return SYS(rt_sigqueueinfo, call->number, SIGCONT, &about);
}

static long make_rt_tgsigqueueinfo(struct call *call, unsigned nth)
{
    siginfo_t about = queued();
    (void)nth;
    return SYS(rt_tgsigqueueinfo, call->number, call->number, SIGCONT, &about);
}

static long make_pidfd_send_signal(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(pidfd_send_signal, call->fd, SIGCONT, NULL, 0);
}

const struct entry signal_entries[] = {
    {"kill", "kill", with_child, make_kill, HERE, NULL},
    {"kill_zero", "kill", with_child, make_kill_zero, HERE, NULL},
    {"tkill", "kill", with_child, make_tkill, HERE, NULL},
    {"tgkill", "kill", with_child, make_tgkill, HERE, NULL},
    {"rt_sigqueueinfo", "kill", with_child, make_rt_sigqueueinfo, HERE, NULL},
    {"rt_tgsigqueueinfo", "kill", with_child, make_rt_tgsigqueueinfo, HERE, NULL},
    {"pidfd_send_signal", "kill", with_child, make_pidfd_send_signal, HERE, NULL},
    {0},
};
