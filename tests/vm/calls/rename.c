/* Names that go: unlink and rename. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>

static void old_files(struct call *call)
{
    files(call, "old");
}

static void old_directories(struct call *call)
{
    directories(call, "old");
}

static long make_unlink(struct call *call, unsigned nth)
{
    return SYS(unlink, path(call, "old", nth));
}

static long make_unlinkat(struct call *call, unsigned nth)
{
    return SYS(unlinkat, AT_FDCWD, path(call, "old", nth), 0);
}

static long make_unlinkat_removedir(struct call *call, unsigned nth)
{
    return SYS(unlinkat, AT_FDCWD, path(call, "old", nth), AT_REMOVEDIR);
}

static long make_rmdir(struct call *call, unsigned nth)
{
    return SYS(rmdir, path(call, "old", nth));
}

static void ring_files(struct call *call)
{
    old_files(call);
    with_ring(call, IORING_OP_UNLINKAT, 0);
}

static void ring_directories(struct call *call)
{
    old_directories(call);
    with_ring(call, IORING_OP_UNLINKAT, 0);
}

static long make_ring_unlinkat(struct call *call, unsigned nth)
{
    return ring_op(call, IORING_OP_UNLINKAT, AT_FDCWD, path(call, "old", nth), 0, 0);
}

static long make_ring_removedir(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_UNLINKAT, .fd = AT_FDCWD, .unlink_flags = AT_REMOVEDIR};
    entry.addr = (uintptr_t)path(call, "old", nth);
    return ring_call(call, &entry);
}

static long make_rename(struct call *call, unsigned nth)
{
    return SYS(rename, path(call, "old", nth), path(call, "new", nth));
}

static long make_renameat(struct call *call, unsigned nth)
{
    return SYS(renameat, AT_FDCWD, path(call, "old", nth), AT_FDCWD, path(call, "new", nth));
}

static long make_renameat2(struct call *call, unsigned nth)
{
    const char *old = path(call, "old", nth), *name = path(call, "new", nth);
    return SYS(renameat2, AT_FDCWD, old, AT_FDCWD, name, RENAME_NOREPLACE);
}

static void both_files(struct call *call)
{
    files(call, "old");
    files(call, "new");
}


static long make_renameat2_exchange(struct call *call, unsigned nth)
{
    const char *old = path(call, "old", nth), *name = path(call, "new", nth);
    return SYS(renameat2, AT_FDCWD, old, AT_FDCWD, name, RENAME_EXCHANGE);
}

static void ring_renames(struct call *call)
{
    old_files(call);
    with_ring(call, IORING_OP_RENAMEAT, 0);
}

static long make_ring_renameat(struct call *call, unsigned nth)
{
    const char *old = path(call, "old", nth), *name = path(call, "new", nth);
    return ring_op(call, IORING_OP_RENAMEAT, AT_FDCWD, old, (unsigned)AT_FDCWD, (uintptr_t)name);
}

const struct entry rename_entries[] = {
    {"unlink", "unlink", old_files, make_unlink, HERE_EACH, NULL},
    {"unlinkat", "unlink", old_files, make_unlinkat, HERE_EACH, NULL},
    {"unlinkat_removedir", "unlink", old_directories, make_unlinkat_removedir, HERE_EACH, NULL},
    {"rmdir", "unlink", old_directories, make_rmdir, HERE_EACH, NULL},
    {"io_uring_unlinkat", "unlink", ring_files, make_ring_unlinkat, HERE_EACH, NULL},
    {"io_uring_unlinkat_removedir", "unlink", ring_directories, make_ring_removedir, HERE_EACH, NULL},
    {"rename", "rename", old_files, make_rename, HERE_EACH, NULL},
    {"rename_over", "rename", both_files, make_rename, HERE_EACH, NULL},
    {"renameat", "rename", old_files, make_renameat, HERE_EACH, NULL},
    {"renameat2", "rename", old_files, make_renameat2, HERE_EACH, NULL},
    {"renameat2_exchange", "rename", both_files, make_renameat2_exchange, HERE_EACH, NULL},
    {"io_uring_renameat", "rename", ring_renames, make_ring_renameat, HERE_EACH, NULL},
    {0},
};
