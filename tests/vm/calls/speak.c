/* The process that speaks: it says ready, hears go, prints the answers and clears up. */
#define _GNU_SOURCE
#include "desk.h"

#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Until the state is that; false when the other process is gone. */
bool reached(struct desk *desk, uint32_t state, int other)
{
    while (desk->state < state) {
        struct pollfd gone = {.fd = other, .events = POLLIN};
        if (poll(&gone, 1, 0) > 0)
            return desk->state >= state;
        wait_change(&desk->state, desk->state, 1);
    }
    return true;
}

static const char *word(long result)
{
    static char text[2][64];
    static unsigned turn;
    char *into = text[turn ^= 1];
    if (result == 0)
        return "ok";
    if (result > 0)
        snprintf(into, sizeof text[0], "ok %ld", result);
    else if (result == TIMEOUT)
        return "TIMEOUT";
    else if (result == UNSET)
        return "UNSET";
    else if (result <= BY_EXIT)
        snprintf(into, sizeof text[0], "EXIT %ld", BY_EXIT - result);
    else if (result <= BY_SIGNAL)
        snprintf(into, sizeof text[0], "SIG%s", sigabbrev_np((int)(BY_SIGNAL - result)));
    else if (strerrorname_np((int)-result))
        return strerrorname_np((int)-result);
    else
        snprintf(into, sizeof text[0], "E%ld", -result);
    return into;
}

static int print(const struct desk *desk, const struct order *order)
{
    int exit_code = 0;
    for (int entry = 0; entry < order->entries; entry++) {
        const char *name = order->wanted[entry]->name;
        const struct outcome *outcomes = &desk->outcomes[(size_t)entry * order->count];
        if (desk->reasons[entry][0]) {
            if (order->many)
                printf("%s UNABLE %s\n", name, desk->reasons[entry]);
            fprintf(stderr, "calls: %s: %s\n", name, desk->reasons[entry]);
            exit_code = UNMEASURED;
            continue;
        }
        for (unsigned nth = 0; nth < order->count; nth++) {
            printf("%s%s%s", order->many ? name : "", order->many ? " " : "", word(outcomes[nth].first));
            printf(outcomes[nth].again == UNSET ? "\n" : ", again %s\n", word(outcomes[nth].again));
            if (outcomes[nth].first == -ENOSYS)
                exit_code = UNMEASURED;
        }
        if (outcomes[0].first == -ENOSYS)
            fprintf(stderr, "calls: %s: ENOSYS: this kernel lacks the call, or a fault says so\n", name);
    }
    fflush(stdout);
    return exit_code;
}

static int removed(const char *name, const struct stat *about, int type, struct FTW *where)
{
    (void)about, (void)type, (void)where;
    if (remove(name) < 0)
        fprintf(stderr, "calls: cannot remove %s: %s\n", name, strerror(errno));
    return 0;
}

static void clear(const struct order *order)
{
    for (int entry = 0; entry < order->entries; entry++) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s/%s", order->dir, order->wanted[entry]->name);
        nftw(name, removed, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    }
    if (order->own_dir && rmdir(order->dir) < 0)
        fprintf(stderr, "calls: cannot remove %s: %s\n", order->dir, strerror(errno));
}

/* A line (or the end, which is false), in one system call: it was made before any fault was planted. */
static bool heard(void)
{
    char line[256];
    ssize_t size;
    do
        size = read(STDIN_FILENO, line, sizeof line);
    while (size < 0 && errno == EINTR);
    return size != 0;
}

static void speak(struct desk *desk, const struct order *order, int worker)
{
    bool go = false;
    if (reached(desk, READY, worker)) {
        printf("ready\n");
        fflush(stdout);
        go = !order->wait || heard();
        if (!go)
            fprintf(stderr, "calls: standard input ended before it said go\n");
    }
    desk->exit_code = UNMEASURED;
    if (go) {
        post(&desk->state, GO);
        if (reached(desk, MEASURED, worker))
            desk->exit_code = print(desk, order);
        else
            fprintf(stderr, "calls: the measuring process died\n");
        if (order->wait)
            heard(); /* a fault can be lifted, and its counters read, before the objects go */
    }
    clear(order);
    post(&desk->state, CLOSED);
}

/* Forked twice, so that it is in no tree of the process that measures. */
void start_speaker(struct desk *desk, const struct order *order)
{
    int worker = (int)syscall(SYS_pidfd_open, getpid(), 0);
    pid_t between = fork();
    if (worker < 0 || between < 0) {
        perror("calls: the second process");
        exit(UNMEASURED);
    }
    if (between == 0) {
        pid_t speaker = fork();
        if (speaker == 0) {
            signal(SIGPIPE, SIG_IGN);
            speak(desk, order, worker);
            _exit(0);
        }
        desk->speaker = speaker; /* by this process alone: the speaker has the same memory */
        _exit(speaker < 0);
    }
    int status;
    waitpid(between, &status, 0);
    if (status != 0)
        exit(UNMEASURED);
    close(worker);
}
