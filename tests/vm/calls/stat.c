/* Asking about files. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/stat.h>

static long make_stat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(stat, path(call, "file", 0), call->buffer);
}

static long make_lstat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(lstat, path(call, "file", 0), call->buffer);
}

static long make_fstat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(fstat, call->fd, call->buffer);
}

static long make_newfstatat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(newfstatat, AT_FDCWD, path(call, "file", 0), call->buffer, 0);
}

/* What the C library makes of fstat(). */
static long make_newfstatat_empty(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(newfstatat, call->fd, "", call->buffer, AT_EMPTY_PATH);
}

static long make_statx(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(statx, AT_FDCWD, path(call, "file", 0), 0, STATX_BASIC_STATS, call->buffer);
}

static void ring_statx(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_STATX, 0);
}

static long make_ring_statx(struct call *call, unsigned nth)
{
    (void)nth;
    const char *name = path(call, "file", 0);
    return ring_op(call, IORING_OP_STATX, AT_FDCWD, name, STATX_BASIC_STATS, (uintptr_t)call->buffer);
}

static long make_access(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(access, path(call, "file", 0), R_OK);
}

static long make_faccessat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(faccessat, AT_FDCWD, path(call, "file", 0), R_OK);
}

static long make_faccessat2(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(faccessat2, AT_FDCWD, path(call, "file", 0), R_OK, 0);
}

static long make_statfs(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(statfs, path(call, "file", 0), call->buffer);
}

static long make_fstatfs(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(fstatfs, call->fd, call->buffer);
}

const struct entry stat_entries[] = {
    {"stat", "stat", with_file, make_stat, HERE, NULL},
    {"lstat", "stat", with_file, make_lstat, HERE, NULL},
    {"fstat", "stat", with_file, make_fstat, HERE, NULL},
    {"newfstatat", "stat", with_file, make_newfstatat, HERE, NULL},
    {"newfstatat_empty", "stat", with_file, make_newfstatat_empty, HERE, NULL},
    {"statx", "stat", with_file, make_statx, HERE, NULL},
    {"io_uring_statx", "stat", ring_statx, make_ring_statx, HERE, NULL},
    {"access", "stat", with_file, make_access, HERE, NULL},
    {"faccessat", "stat", with_file, make_faccessat, HERE, NULL},
    {"faccessat2", "stat", with_file, make_faccessat2, HERE, NULL},
    {"statfs", "stat", with_file, make_statfs, HERE, NULL},
    {"fstatfs", "stat", with_file, make_fstatfs, HERE, NULL},
    {0},
};
