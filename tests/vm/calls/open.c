/* Opening what exists. A descriptor that a call gives is closed at once. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/mman.h>

static void one_file(struct call *call)
{
    with_file(call);
    close(call->fd);
}

static long make_open(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(open, path(call, "file", 0), O_RDONLY | O_CLOEXEC, 0));
}

static long make_openat(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, path(call, "file", 0), O_RDONLY | O_CLOEXEC, 0));
}

static long make_openat_write(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, path(call, "file", 0), O_WRONLY | O_CLOEXEC, 0));
}

static long make_openat_truncate(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, path(call, "file", 0), O_WRONLY | O_TRUNC | O_CLOEXEC, 0));
}

static long make_openat_directory(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, call->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
}

static long make_opath(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(openat, AT_FDCWD, path(call, "file", 0), O_PATH | O_CLOEXEC, 0));
}

static long make_openat2(struct call *call, unsigned nth)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC};
    (void)nth;
    return opened(SYS(openat2, AT_FDCWD, path(call, "file", 0), &how, sizeof how));
}

static long make_creat_existing(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(creat, path(call, "file", 0), 0644));
}

static void with_handle(struct call *call)
{
    int mount;
    struct file_handle *handle = memory(sizeof *handle + MAX_HANDLE_SZ);
    one_file(call);
    handle->handle_bytes = MAX_HANDLE_SZ;
    must(name_to_handle_at(AT_FDCWD, path(call, "file", 0), handle, &mount, 0), "name_to_handle_at");
    call->map = (char *)handle;
    call->other = (int)must(open(call->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "a directory");
    close((int)must(open_by_handle_at(call->other, handle, O_RDONLY | O_CLOEXEC), "open_by_handle_at"));
}

static long make_open_by_handle_at(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(open_by_handle_at, call->other, call->map, O_RDONLY | O_CLOEXEC));
}

static void ring_openat(struct call *call)
{
    one_file(call);
    with_ring(call, IORING_OP_OPENAT, 0);
}

static long make_ring_openat(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .open_flags = O_RDONLY | O_CLOEXEC};
    (void)nth;
    entry.addr = (uintptr_t)path(call, "file", 0);
    return opened(ring_call(call, &entry));
}

static void ring_openat2(struct call *call)
{
    one_file(call);
    with_ring(call, IORING_OP_OPENAT2, 0);
}

static long make_ring_openat2(struct call *call, unsigned nth)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC};
    (void)nth;
    const char *name = path(call, "file", 0);
    return opened(ring_op(call, IORING_OP_OPENAT2, AT_FDCWD, name, sizeof how, (uintptr_t)&how));
}

static long make_execve_open(struct call *call, unsigned nth)
{
    const char *name = path(call, "program", 0);
    char *words[] = {(char *)name, "nothing", NULL}, *none[] = {NULL};
    (void)nth;
    return SYS(execve, name, words, none);
}

static long make_memfd_create(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(memfd_create, call->entry->name, MFD_CLOEXEC));
}

const struct entry open_entries[] = {
    {"open", "open", one_file, make_open, HERE, NULL},
    {"openat", "open", one_file, make_openat, HERE, NULL},
    {"openat_write", "open", one_file, make_openat_write, HERE, NULL},
    {"openat_truncate", "open", one_file, make_openat_truncate, HERE, NULL},
    {"openat_directory", "open", NULL, make_openat_directory, HERE, NULL},
    {"openat2", "open", one_file, make_openat2, HERE, NULL},
    {"creat_existing", "open", one_file, make_creat_existing, HERE, NULL},
    {"opath", "open", one_file, make_opath, HERE, NULL},
    {"open_by_handle_at", "open", with_handle, make_open_by_handle_at, HERE, NULL},
    {"io_uring_openat", "open", ring_openat, make_ring_openat, HERE, NULL},
    {"io_uring_openat2", "open", ring_openat2, make_ring_openat2, HERE, NULL},
    {"execve_open", "open", program, make_execve_open, CHILD_EACH, NULL},
    {"memfd_create", "open", NULL, make_memfd_create, HERE, NULL},
    {0},
};
