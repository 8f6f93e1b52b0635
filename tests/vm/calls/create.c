/* Making names. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static long make_open_creat(struct call *call, unsigned nth)
{
    return opened(SYS(open, path(call, "new", nth), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
}

static long make_openat_creat(struct call *call, unsigned nth)
{
    const char *name = path(call, "new", nth);
    return opened(SYS(openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
}

static long make_openat_tmpfile(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, call->dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0644));
}

static long make_creat(struct call *call, unsigned nth)
{
    return opened(SYS(creat, path(call, "new", nth), 0644));
}

static long make_mkdir(struct call *call, unsigned nth)
{
    return SYS(mkdir, path(call, "new", nth), 0755);
}

static long make_mkdirat(struct call *call, unsigned nth)
{
    return SYS(mkdirat, AT_FDCWD, path(call, "new", nth), 0755);
}

static long make_mknod(struct call *call, unsigned nth)
{
    return SYS(mknod, path(call, "new", nth), S_IFIFO | 0644, 0);
}

static long make_mknodat(struct call *call, unsigned nth)
{
    return SYS(mknodat, AT_FDCWD, path(call, "new", nth), S_IFIFO | 0644, 0);
}

static long make_mknod_file(struct call *call, unsigned nth)
{
    return SYS(mknod, path(call, "new", nth), S_IFREG | 0644, 0);
}

static long make_symlink(struct call *call, unsigned nth)
{
    return SYS(symlink, "target", path(call, "new", nth));
}

static long make_symlinkat(struct call *call, unsigned nth)
{
    return SYS(symlinkat, "target", AT_FDCWD, path(call, "new", nth));
}

static void one_file(struct call *call)
{
    close(file(call, "old", 0, 0));
}

static long make_link(struct call *call, unsigned nth)
{
    return SYS(link, path(call, "old", 0), path(call, "new", nth));
}

static long make_linkat(struct call *call, unsigned nth)
{
    return SYS(linkat, AT_FDCWD, path(call, "old", 0), AT_FDCWD, path(call, "new", nth), 0);
}

static void ring_mkdirat(struct call *call)
{
    with_ring(call, IORING_OP_MKDIRAT, 0);
}

static long make_ring_mkdirat(struct call *call, unsigned nth)
{
    return ring_op(call, IORING_OP_MKDIRAT, AT_FDCWD, path(call, "new", nth), 0755, 0);
}

static void ring_symlinkat(struct call *call)
{
    with_ring(call, IORING_OP_SYMLINKAT, 0);
}

static long make_ring_symlinkat(struct call *call, unsigned nth)
{
    const char *name = path(call, "new", nth);
    return ring_op(call, IORING_OP_SYMLINKAT, AT_FDCWD, "target", 0, (uintptr_t)name);
}

static void ring_linkat(struct call *call)
{
    one_file(call);
    with_ring(call, IORING_OP_LINKAT, 0);
}

static long make_ring_linkat(struct call *call, unsigned nth)
{
    const char *old = path(call, "old", 0), *name = path(call, "new", nth);
    return ring_op(call, IORING_OP_LINKAT, AT_FDCWD, old, (unsigned)AT_FDCWD, (uintptr_t)name);
}

static void ring_creat(struct call *call)
{
    with_ring(call, IORING_OP_OPENAT, 0);
}

static long make_ring_openat_creat(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .len = 0644};
    entry.open_flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    entry.addr = (uintptr_t)path(call, "new", nth);
    return opened(ring_call(call, &entry));
}

static void unix_sockets(struct call *call)
{
    each(call);
    for (unsigned nth = 0; nth < call->count; nth++)
        call->each[nth] = tcp(AF_UNIX);
}

static long make_bind_unix(struct call *call, unsigned nth)
{
    struct sockaddr_un name;
    unsigned size;
    unix_name(call, "new", nth, &name, &size);
    return SYS(bind, call->each[nth], &name, size);
}

const struct entry create_entries[] = {
    {"open_creat", "open create", NULL, make_open_creat, HERE, NULL},
    {"openat_creat", "open create", NULL, make_openat_creat, HERE, NULL},
    {"openat_tmpfile", "open create", NULL, make_openat_tmpfile, HERE, NULL},
    {"creat", "open create", NULL, make_creat, HERE, NULL},
    {"mkdir", "create", NULL, make_mkdir, HERE, NULL},
    {"mkdirat", "create", NULL, make_mkdirat, HERE, NULL},
    {"mknod", "create", NULL, make_mknod, HERE, NULL},
    {"mknodat", "create", NULL, make_mknodat, HERE, NULL},
    {"mknod_file", "create", NULL, make_mknod_file, HERE, NULL},
    {"symlink", "create", NULL, make_symlink, HERE, NULL},
    {"symlinkat", "create", NULL, make_symlinkat, HERE, NULL},
    {"link", "create", one_file, make_link, HERE, NULL},
    {"linkat", "create", one_file, make_linkat, HERE, NULL},
    {"io_uring_mkdirat", "create", ring_mkdirat, make_ring_mkdirat, HERE, NULL},
    {"io_uring_symlinkat", "create", ring_symlinkat, make_ring_symlinkat, HERE, NULL},
    {"io_uring_linkat", "create", ring_linkat, make_ring_linkat, HERE, NULL},
    {"io_uring_openat_creat", "open create", ring_creat, make_ring_openat_creat, HERE, NULL},
    {"bind_unix", "create bind", unix_sockets, make_bind_unix, HERE_EACH, NULL},
    {0},
};
