/* Making data last. Each call finds a page that a store into a mapping has dirtied, without a system call. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/uio.h>

static void dirty(struct call *call, unsigned nth)
{
    *(volatile char *)(call->map + (size_t)(nth % BLOCKS) * BLOCK) = (char)nth;
}

static long make_fsync(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return SYS(fsync, call->fd);
}

static void with_directory(struct call *call)
{
    close(file(call, "file", 0, 0));
    call->fd = (int)must(open(call->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "a directory");
}

static long make_fsync_directory(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(fsync, call->fd);
}

static long make_fdatasync(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return SYS(fdatasync, call->fd);
}

static long make_sync_file_range(struct call *call, unsigned nth)
{
    unsigned whole = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    dirty(call, nth);
    return SYS(sync_file_range, call->fd, (off_t)0, (off_t)0, whole);
}

static long make_msync(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return SYS(msync, call->map, call->size, MS_SYNC);
}

static long make_syncfs(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return SYS(syncfs, call->fd);
}

static long make_sync(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return SYS(sync);
}

static void ring_fsync(struct call *call)
{
    with_file_map(call);
    with_ring(call, IORING_OP_FSYNC, 0);
}

static long make_ring_fsync(struct call *call, unsigned nth)
{
    dirty(call, nth);
    return ring_op(call, IORING_OP_FSYNC, call->fd, NULL, 0, 0);
}

static void ring_sync_file_range(struct call *call)
{
    with_file_map(call);
    with_ring(call, IORING_OP_SYNC_FILE_RANGE, 0);
}

static long make_ring_sync_file_range(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_SYNC_FILE_RANGE, .fd = call->fd};
    entry.sync_range_flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    dirty(call, nth);
    return ring_call(call, &entry);
}

static void with_aio(struct call *call)
{
    aio_context_t context = 0;
    with_file_map(call);
    must(syscall(SYS_io_setup, 4, &context), "io_setup");
    call->number = context;
}

static long make_aio_fsync(struct call *call, unsigned nth)
{
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_FSYNC, .aio_fildes = (unsigned)call->fd};
    struct iocb *blocks[] = {&block};
    struct io_event event;
    dirty(call, nth);
    long submitted = SYS(io_submit, call->number, 1, blocks);
    if (submitted < 1)
        return submitted;
    long ended = SYS(io_getevents, call->number, 1, 1, &event, NULL);
    return ended == 1 ? (long)event.res : ended;
}

static void with_o_dsync(struct call *call)
{
    with_file(call);
    close(call->fd);
    call->fd = (int)must(open(path(call, "file", 0), O_RDWR | O_DSYNC | O_CLOEXEC), "O_DSYNC");
}

static long make_write_o_dsync(struct call *call, unsigned nth)
{
    return SYS(pwrite64, call->fd, call->buffer, BLOCK, (off_t)(nth % BLOCKS) * BLOCK);
}

static long make_pwritev2_dsync(struct call *call, unsigned nth)
{
    struct iovec one = {call->buffer, BLOCK};
    return SYS(pwritev2, call->fd, &one, 1, (unsigned long)(nth % BLOCKS) * BLOCK, 0UL, RWF_DSYNC);
}

const struct entry fsync_entries[] = {
    {"fsync", "fsync", with_file_map, make_fsync, HERE, NULL},
    {"fsync_directory", "fsync", with_directory, make_fsync_directory, HERE, NULL},
    {"fdatasync", "fsync", with_file_map, make_fdatasync, HERE, NULL},
    {"sync_file_range", "fsync", with_file_map, make_sync_file_range, HERE, NULL},
    {"msync", "fsync", with_file_map, make_msync, HERE, NULL},
    {"syncfs", "fsync", with_file_map, make_syncfs, HERE, NULL},
    {"sync", "fsync", with_file_map, make_sync, HERE, NULL},
    {"io_uring_fsync", "fsync", ring_fsync, make_ring_fsync, HERE, NULL},
    {"io_uring_sync_file_range", "fsync", ring_sync_file_range, make_ring_sync_file_range, HERE, NULL},
    {"aio_fsync", "fsync", with_aio, make_aio_fsync, HERE, NULL},
    {"write_o_dsync", "write fsync", with_o_dsync, make_write_o_dsync, HERE, NULL},
    {"pwritev2_dsync", "write fsync", with_file, make_pwritev2_dsync, HERE, NULL},
    {0},
};
