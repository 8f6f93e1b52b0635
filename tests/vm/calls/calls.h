/* calls: make one chosen system call on prepared objects and tell what the kernel answered.
 *
 * It is a witness: it knows nothing of the faults that it is asked about. Everything that a call needs is made
 * before `ready`; from there to the answer the process that measures makes no other call of the same family. */
#ifndef CALLS_H
#define CALLS_H

#ifndef __x86_64__
#error "the entries use the x86-64 system call table"
#endif

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    BLOCK = 4096,       /* bytes that a file transfer moves */
    BLOCKS = 16,        /* size of a prepared file, in blocks */
    MESSAGE = 16,       /* bytes that a pipe or socket transfer moves */
    MAX_EACH = 1000,    /* calls for which one object each can be prepared */
    MAX_COUNT = 1000000,
    DEADLINE_S = 10,    /* a call that takes longer is interrupted */
    MEBIBYTE = 1 << 20,
};

/* Answers beside "0 or more" and "-errno". */
enum {
    TIMEOUT = -5000,
    UNSET = -5001,
    BY_SIGNAL = -6000, /* minus the signal's number */
    BY_EXIT = -7000,   /* minus the exit code of a child that failed */
};

enum how {
    HERE,       /* by this process */
    HERE_EACH,  /* by this process, on one prepared object for each call */
    CHILD_EACH, /* by a child that was forked before `ready`, one for each call */
};

struct call;

struct entry {
    const char *name;
    const char *families; /* with spaces between them */
    void (*prepare)(struct call *);
    long (*make)(struct call *, unsigned nth);
    enum how how;
    void (*settle)(struct call *); /* what a child does for itself before `ready` */
};

struct ring;
struct child;

/* An entry with its objects; which of them it uses is the entry's affair. */
struct call {
    const struct entry *entry;
    unsigned count;     /* how many times it will be made */
    char dir[3072];     /* absolute; its name alone, relative to the working directory, is entry->name */
    int fd, other;
    int *each;          /* one descriptor a call */
    int *peers;         /* the other ends */
    char *buffer;       /* BLOCKS pages, page aligned */
    char *map;
    size_t size;        /* of the map */
    unsigned long number;
    struct ring *ring;
    struct child *children;
};

/* One table a file, each ended by an entry without a name. */
extern const struct entry read_entries[], write_entries[], open_entries[], create_entries[], rename_entries[],
    stat_entries[], fsync_entries[], memory_entries[], process_entries[], signal_entries[], socket_entries[],
    connect_entries[], send_entries[], recv_entries[], mount_entries[], other_entries[];

/* -errno or the result, of a call that answers as the C library does. */
static inline long answer(long result)
{
    return result < 0 ? -errno : result;
}

#define SYS(name, ...) answer(syscall(SYS_##name, ##__VA_ARGS__))

/* 0 or -errno: the number itself (a descriptor, an address, a process) says nothing. */
static inline long done(long result)
{
    return result < 0 ? result : 0;
}

/* A new descriptor is closed again. */
static inline long opened(long result)
{
    if (result >= 0)
        close((int)result);
    return done(result);
}

/* objects.c: all of them give up the entry (and do not return) when an object cannot be had. */
void unable(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
long must(long result, const char *what);
const char *path(struct call *call, const char *stem, unsigned nth); /* good until the second next path() */
void *memory(size_t size);
int file(struct call *call, const char *stem, unsigned nth, size_t size);
void files(struct call *call, const char *stem);
void directories(struct call *call, const char *stem);
void program(struct call *call); /* a copy of this program that does nothing, DIR/program0 */
void each(struct call *call);
void with_file(struct call *call);
void with_file_map(struct call *call);
void with_pipe(struct call *call);
void fill(int fd, size_t size);

/* net.c */
union address;
int tcp(int domain);
int listener(int domain, unsigned backlog, void *address, unsigned *size);
void loopback(int domain, uint16_t port, void *address, unsigned *size);
void unix_name(struct call *call, const char *stem, unsigned nth, void *address, unsigned *size);
void roomy(int fd);
void with_tcp_pair(struct call *call);
void with_udp_pair(struct call *call);
void with_unix_pair(struct call *call);

/* ring.c: io_uring by its system calls. `code` is an IORING_OP_*. */
struct io_uring_sqe;
enum { RING_POLLED = 1 };
void with_ring(struct call *call, unsigned code, unsigned how);
long ring_call(struct call *call, const struct io_uring_sqe *entry);
long ring_op(struct call *call, unsigned code, int fd, const void *address, unsigned length, uint64_t offset);

/* child.c */
void fork_children(struct call *call);
long child_call(struct call *call, unsigned nth);
long reap(pid_t pid); /* 0, or what the child ended by */
extern volatile bool timed_out;

/* shared.c: waiting on a word in shared memory, without system calls of any measured family. */
void post(volatile uint32_t *word, uint32_t value);
void wait_change(volatile uint32_t *word, uint32_t while_it_is, unsigned seconds);

#endif
