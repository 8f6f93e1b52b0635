/* The command line, and the two processes behind it.
 *
 * The process that was started prepares and measures, and makes no other call meanwhile. A second one, which is no
 * child of it and does not follow it into a cgroup, speaks and listens: it prints, reads the line that says "go" and
 * clears up. A fault planted on the first one's pid, or on the cgroup of --cgroup, does not touch what it says. */
#define _GNU_SOURCE
#include "desk.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

static const char usage[] =
    "calls list\n"
    "calls run ENTRY [--count N] [--wait] [--repeat-errors] [--deadline SECONDS] [--dir DIR] [--cgroup DIR]\n"
    "calls many ENTRY… [--repeat-errors] [--deadline SECONDS] [--dir DIR] [--cgroup DIR]\n";

static const struct entry *const tables[] = {
    read_entries, write_entries, open_entries, create_entries, rename_entries, stat_entries, fsync_entries,
    memory_entries, process_entries, signal_entries, socket_entries, connect_entries, send_entries, recv_entries,
    mount_entries, other_entries};

jmp_buf give_up;
char reason[256];
volatile bool timed_out;
static volatile sig_atomic_t measuring;
static sigjmp_buf hit;

static void on_alarm(int signal)
{
    (void)signal;
    timed_out = true;
}

static void on_fault(int signal)
{
    if (measuring)
        siglongjmp(hit, signal);
    _exit(128 + signal);
}

static const struct entry *find(const char *name)
{
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const struct entry *entry = tables[table]; entry->name; entry++)
            if (strcmp(entry->name, name) == 0)
                return entry;
    fprintf(stderr, "calls: no entry %s; `calls list` prints them\n", name);
    exit(USAGE);
}

static int list(void)
{
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const struct entry *entry = tables[table]; entry->name; entry++) {
            char families[64];
            snprintf(families, sizeof families, "%s", entry->families);
            for (char *family = strtok(families, " "); family; family = strtok(NULL, " "))
                printf("%s %s\n", family, entry->name);
        }
    return 0;
}

/* --- the process that measures ------------------------------------------------------------------------------- */

static bool prepare(struct call *call, const struct order *order)
{
    if (setjmp(give_up))
        return false;
    snprintf(call->dir, sizeof call->dir, "%s/%s", order->dir, call->entry->name);
    call->count = order->count;
    if (call->entry->how != HERE && call->count > MAX_EACH)
        unable("its objects can be prepared for at most %d calls", MAX_EACH);
    must(mkdir(call->dir, 0755), "its directory");
    if (call->entry->prepare)
        call->entry->prepare(call);
    if (call->entry->how == CHILD_EACH)
        fork_children(call);
    return true;
}

static void bound(unsigned seconds)
{
    struct itimerval timer = {.it_value = {.tv_sec = seconds}, .it_interval = {.tv_sec = 1}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static long measure(struct call *call, unsigned nth, unsigned deadline_s)
{
    long result;
    timed_out = false;
    bound(deadline_s);
    int signal = sigsetjmp(hit, 1);
    if (signal == 0) {
        measuring = 1;
        result = call->entry->how == CHILD_EACH ? child_call(call, nth) : call->entry->make(call, nth);
    } else {
        result = BY_SIGNAL - signal;
    }
    measuring = 0;
    bound(0);
    return timed_out ? TIMEOUT : result;
}

static void handle_signals(void)
{
    struct sigaction on = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &on, NULL);
    on.sa_handler = on_fault;
    sigaction(SIGSEGV, &on, NULL);
    sigaction(SIGBUS, &on, NULL);
    on.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &on, NULL);
    sigaction(SIGXFSZ, &on, NULL);
}

static void join(const char *cgroup)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/cgroup.procs", cgroup);
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) {
        fprintf(stderr, "calls: %s: %s\n", name, strerror(errno));
        _exit(UNMEASURED);
    }
    close(fd);
}

static int work(struct desk *desk, const struct order *order)
{
    struct rlimit descriptors;
    struct call *calls = memory((size_t)order->entries * sizeof *calls);
    int speaker = (int)syscall(SYS_pidfd_open, desk->speaker, 0);
    if (speaker < 0) {
        perror("calls: the second process");
        return UNMEASURED;
    }
    if (order->cgroup)
        join(order->cgroup);
    handle_signals();
    umask(022);
    getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);
    for (int entry = 0; entry < order->entries; entry++) {
        calls[entry].entry = order->wanted[entry];
        if (!prepare(&calls[entry], order))
            memcpy(desk->reasons[entry], reason, sizeof reason);
    }
    post(&desk->state, READY);
    if (!reached(desk, GO, speaker) || desk->state != GO)
        return UNMEASURED; /* nobody said go */
    for (int entry = 0; entry < order->entries; entry++)
        for (unsigned nth = 0; !desk->reasons[entry][0] && nth < order->count; nth++) {
            struct outcome *outcome = &desk->outcomes[(size_t)entry * order->count + nth];
            outcome->first = measure(&calls[entry], nth, order->deadline_s);
            outcome->again = UNSET;
            if (outcome->first < 0 && order->repeat_errors)
                outcome->again = measure(&calls[entry], nth, order->deadline_s);
        }
    post(&desk->state, MEASURED);
    return reached(desk, CLOSED, speaker) ? desk->exit_code : UNMEASURED;
}

/* --- the command line ---------------------------------------------------------------------------------------- */

static void refuse(const char *why, const char *what)
{
    fprintf(stderr, "calls: %s %s\n%s", why, what, usage);
    exit(USAGE);
}

static unsigned number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > MAX_COUNT)
        refuse("a number is from 1 to 1000000, not", text);
    return (unsigned)value;
}

static bool takes_value(const char *option)
{
    static const char *const options[] = {"--count", "--deadline", "--dir", "--cgroup"};
    for (size_t nth = 0; nth < sizeof options / sizeof *options; nth++)
        if (!strcmp(option, options[nth]))
            return true;
    return false;
}

static void parse(struct order *order, char **words)
{
    const char *dir = NULL;
    for (; *words; words++) {
        if (takes_value(*words) && !words[1])
            refuse("a value is missing after", *words);
        if (!strcmp(*words, "--wait"))
            order->wait = true;
        else if (!strcmp(*words, "--repeat-errors"))
            order->repeat_errors = true;
        else if (!strcmp(*words, "--count") && !order->many)
            order->count = number(*++words);
        else if (!strcmp(*words, "--deadline"))
            order->deadline_s = number(*++words);
        else if (!strcmp(*words, "--dir"))
            dir = *++words;
        else if (!strcmp(*words, "--cgroup"))
            order->cgroup = *++words;
        else if (**words == '-')
            refuse("unknown option", *words);
        else
            order->wanted[order->entries++] = find(*words);
    }
    if (order->entries == 0 || (!order->many && order->entries != 1))
        refuse("it takes", order->many ? "entries" : "one entry");
    char fresh[] = "calls.XXXXXX";
    order->own_dir = dir == NULL || mkdir(dir, 0755) == 0;
    if (!dir)
        dir = mkdtemp(fresh);
    if (!dir || !realpath(dir, order->dir) || chdir(order->dir) < 0) {
        fprintf(stderr, "calls: its directory: %s\n", strerror(errno));
        exit(UNMEASURED);
    }
}

int main(int words, char **argv)
{
    if (words == 2 && !strcmp(argv[1], "nothing"))
        return 0; /* what the entries that execute a program execute */
    if (words == 2 && !strcmp(argv[1], "list"))
        return list();
    if (words < 3 || (strcmp(argv[1], "run") && strcmp(argv[1], "many")))
        refuse("what to do is", "list, run or many");
    bool many = !strcmp(argv[1], "many");
    struct order order = {.many = many, .wait = many, .count = 1, .deadline_s = DEADLINE_S};
    order.wanted = calloc((size_t)words, sizeof *order.wanted);
    parse(&order, argv + 2);
    size_t reasons = (size_t)order.entries * sizeof(char[256]);
    size_t size = sizeof(struct desk) + reasons + (size_t)order.entries * order.count * sizeof(struct outcome);
    struct desk *desk = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (desk == MAP_FAILED)
        refuse("no memory for", "so many results");
    desk->reasons = (char(*)[256])(desk + 1);
    desk->outcomes = (struct outcome *)((char *)(desk + 1) + reasons);
    start_speaker(desk, &order);
    return work(desk, &order);
}
