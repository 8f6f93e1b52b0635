/* The writer: batches of writes with a sync after each, and a ledger of what was promised. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "integrity.h"

enum sync_how { SYNC_NONE, SYNC_FSYNC, SYNC_FDATASYNC };

struct writer {
    struct run run;
    const char *path;
    bool direct, until_eof;
    uint64_t from;   /* writes done by an earlier run of the same ledger */
    uint64_t writes; /* 0: no end */
    uint64_t every;  /* writes between syncs */
    uint64_t errors; /* so many and it gives up */
    enum sync_how how;
    int fd, ledger;
    bool durable; /* the ledger is a file: each line is synced */
};

static volatile sig_atomic_t told_to_end;

static void on_signal(int number) {
    (void)number;
    told_to_end = 1;
}

static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* One line, whole or an error: what is not in the ledger was not promised. */
static void note(struct writer *writer, const char *format, ...) {
    char line[256];
    va_list words;
    va_start(words, format);
    int length = vsnprintf(line, sizeof line, format, words);
    va_end(words);
    for (int at = 0; at < length;) {
        ssize_t done = write(writer->ledger, line + at, length - at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            die(BROKEN, "the ledger cannot be written: %s", strerror(errno));
        at += done;
    }
    if (writer->durable && fdatasync(writer->ledger))
        die(BROKEN, "the ledger cannot be synced: %s", strerror(errno));
}

static bool end_asked(const struct writer *writer) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (told_to_end)
        return true;
    return writer->until_eof && poll(&input, 1, 0) == 1; /* a line, or the end of the input */
}

static int write_one(struct writer *writer, uint64_t *buffer, uint64_t generation) {
    const struct run *run = &writer->run;
    uint64_t first = slot_of(run, generation) * run->span;
    size_t size = (size_t)run->span * BLOCK, done = 0;
    for (unsigned n = 0; n < run->span * SECTORS; n++)
        fill_sector(buffer + n * WORDS, run->file, first + n / SECTORS, n % SECTORS, generation);
    while (done < size) {
        ssize_t got = pwrite(writer->fd, (char *)buffer + done, size - done, run->offset + first * BLOCK + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : ENOSPC;
        done += got;
    }
    return 0;
}

static int sync_all(const struct writer *writer) {
    int answer = writer->how == SYNC_FSYNC ? fsync(writer->fd) : fdatasync(writer->fd);
    return answer ? errno : 0;
}

/* Writes first..last. Returns how many errors there were. */
static uint64_t batch(struct writer *writer, uint64_t *buffer, uint64_t first, uint64_t last) {
    uint64_t errors = 0, slowest = 0;
    note(writer, "intent %llu %llu %llu\n", (unsigned long long)first, (unsigned long long)last,
         (unsigned long long)now_us());
    for (uint64_t generation = first; generation <= last; generation++) {
        uint64_t start = now_us();
        int error = write_one(writer, buffer, generation);
        uint64_t took = now_us() - start;
        slowest = took > slowest ? took : slowest;
        if (error) {
            errors++;
            note(writer, "write-error %llu %d %llu\n", (unsigned long long)generation, error,
                 (unsigned long long)now_us());
        }
    }
    note(writer, "wrote %llu %llu %llu %llu\n", (unsigned long long)first, (unsigned long long)last,
         (unsigned long long)now_us(), (unsigned long long)slowest);
    if (writer->how == SYNC_NONE)
        return errors;
    uint64_t start = now_us();
    int error = sync_all(writer);
    uint64_t end = now_us();
    if (error)
        note(writer, "sync-error %llu %llu %d %llu\n", (unsigned long long)first, (unsigned long long)last, error,
             (unsigned long long)end);
    else
        note(writer, "synced %llu %llu %llu %llu\n", (unsigned long long)first, (unsigned long long)last,
             (unsigned long long)end, (unsigned long long)(end - start));
    return errors + !!error;
}

static void open_all(struct writer *writer, const char *ledger) {
    struct stat about;
    writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_CLOEXEC | (writer->direct ? O_DIRECT : 0), 0600);
    if (writer->fd < 0 || fstat(writer->fd, &about))
        die(BROKEN, "%s: %s", writer->path, strerror(errno));
    if (S_ISREG(about.st_mode) && !writer->from) { /* what was never written reads as zeros */
        uint64_t size = writer->run.offset + writer->run.blocks * BLOCK;
        if (ftruncate(writer->fd, 0) || ftruncate(writer->fd, size) || fsync(writer->fd))
            die(BROKEN, "%s cannot be made %llu bytes long: %s", writer->path, (unsigned long long)size,
                strerror(errno));
    }
    writer->ledger = 1;
    if (ledger) {
        writer->ledger = open(ledger, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        writer->durable = true;
    }
    if (writer->ledger < 0)
        die(BROKEN, "%s: %s", ledger, strerror(errno));
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-')
        die(USAGE, "%s is no number", text);
    return value;
}

static struct writer parse(int argc, char **argv, const char **ledger) {
    struct writer writer = {.run = {.span = 1, .pattern = 'o', .blocks = 256}, .every = 16, .errors = 1000,
                            .how = SYNC_FSYNC};
    static const struct option options[] = {
        {"id", 1, 0, 'i'},      {"seed", 1, 0, 's'},   {"blocks", 1, 0, 'b'},   {"offset", 1, 0, 'o'},
        {"span", 1, 0, 'w'},    {"writes", 1, 0, 'n'}, {"every", 1, 0, 'e'},    {"pattern", 1, 0, 'p'},
        {"sync", 1, 0, 'y'},    {"direct", 0, 0, 'd'}, {"ledger", 1, 0, 'l'},   {"until-eof", 0, 0, 'u'},
        {"errors", 1, 0, 'x'},  {"from", 1, 0, 'f'},   {0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'i': writer.run.file = number(optarg); break;
        case 's': writer.run.seed = number(optarg); break;
        case 'b': writer.run.blocks = number(optarg); break;
        case 'o': writer.run.offset = number(optarg); break;
        case 'w': writer.run.span = number(optarg); break;
        case 'n': writer.writes = number(optarg); break;
        case 'f': writer.from = number(optarg); break;
        case 'e': writer.every = number(optarg); break;
        case 'x': writer.errors = number(optarg); break;
        case 'p': writer.run.pattern = optarg[0]; break;
        case 'd': writer.direct = true; break;
        case 'u': writer.until_eof = true; break;
        case 'l': *ledger = optarg; break;
        case 'y':
            writer.how = !strcmp(optarg, "none") ? SYNC_NONE : !strcmp(optarg, "fsync") ? SYNC_FSYNC : SYNC_FDATASYNC;
            break;
        default: die(USAGE, "see tests/vm/integrity");
        }
    }
    if (optind != argc - 1)
        die(USAGE, "write PATH, one only");
    writer.path = argv[optind];
    const struct run *run = &writer.run;
    if (!run->file || !run->blocks || !run->span || run->span > MAX_SPAN || run->blocks % run->span || !writer.every ||
        !strchr("sro", run->pattern) || run->offset % BLOCK)
        die(USAGE, "--id is needed; --blocks is a multiple of --span (1 to 64), --offset of 4096");
    return writer;
}

int run_writer(int argc, char **argv) {
    const char *ledger = NULL;
    struct writer writer = parse(argc, argv, &ledger);
    uint64_t *buffer;
    if (posix_memalign((void **)&buffer, BLOCK, (size_t)writer.run.span * BLOCK))
        die(BROKEN, "no memory");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    open_all(&writer, ledger);
    char line[256];
    FILE *text = fmemopen(line, sizeof line, "w");
    print_run(text, &writer.run, writer.direct);
    fclose(text);
    note(&writer, "%s", line);
    uint64_t errors = 0, done = writer.from, end = writer.from + writer.writes;
    const char *why = "written";
    while (!writer.writes || done < end) {
        uint64_t last = done + writer.every;
        if (writer.writes && last > end)
            last = end;
        if (end_asked(&writer)) {
            why = "told";
            break;
        }
        errors += batch(&writer, buffer, done + 1, last);
        done = last;
        if (errors > writer.errors) {
            why = "errors";
            break;
        }
    }
    note(&writer, "end %llu %s\n", (unsigned long long)done, why);
    return OK;
}
