/* Writing: files and pipes. Sockets are in send.c. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>

static struct iovec vector(struct call *call)
{
    return (struct iovec){call->buffer, BLOCK};
}

static unsigned long place(unsigned nth)
{
    return (unsigned long)(nth % BLOCKS) * BLOCK;
}

static long make_write(struct call *call, unsigned nth)
{
    (void)nth;
    lseek(call->fd, 0, SEEK_SET);
    return SYS(write, call->fd, call->buffer, BLOCK);
}

static long make_writev(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    (void)nth;
    lseek(call->fd, 0, SEEK_SET);
    return SYS(writev, call->fd, &one, 1);
}

static long make_pwrite64(struct call *call, unsigned nth)
{
    return SYS(pwrite64, call->fd, call->buffer, BLOCK, place(nth));
}

static long make_pwritev(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return SYS(pwritev, call->fd, &one, 1, place(nth), 0UL);
}

static long make_pwritev2(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return SYS(pwritev2, call->fd, &one, 1, place(nth), 0UL, 0);
}

static void direct(struct call *call)
{
    with_file(call);
    must(fsync(call->fd), "fsync");
    close(call->fd);
    call->fd = (int)must(open(path(call, "file", 0), O_RDWR | O_DIRECT | O_CLOEXEC), "O_DIRECT");
}

/* --- io_uring, aio */

static void ring_file(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_WRITE, 0);
}

static void ring_direct(struct call *call)
{
    direct(call);
    with_ring(call, IORING_OP_WRITE, 0);
}

static void ring_polled(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_WRITE, RING_POLLED);
}

static long make_ring_write(struct call *call, unsigned nth)
{
    return ring_op(call, IORING_OP_WRITE, call->fd, call->buffer, BLOCK, place(nth));
}

static long make_ring_writev(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return ring_op(call, IORING_OP_WRITEV, call->fd, &one, 1, place(nth));
}

/* By a worker thread of the kernel instead of at once. */
static long make_ring_write_async(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_WRITE, .flags = IOSQE_ASYNC, .fd = call->fd, .len = BLOCK};
    entry.addr = (uintptr_t)call->buffer;
    entry.off = place(nth);
    return ring_call(call, &entry);
}

static void ring_fallocate(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_FALLOCATE, 0);
}

static long make_ring_fallocate(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_FALLOCATE, .fd = call->fd, .addr = BLOCK};
    entry.off = (uint64_t)(BLOCKS + nth) * BLOCK;
    return ring_call(call, &entry);
}

static void with_aio(struct call *call)
{
    aio_context_t context = 0;
    direct(call);
    must(syscall(SYS_io_setup, 4, &context), "io_setup");
    call->number = context;
}

static long make_aio_write(struct call *call, unsigned nth)
{
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (unsigned)call->fd, .aio_nbytes = BLOCK};
    struct iocb *blocks[] = {&block};
    struct io_event event;
    block.aio_buf = (uintptr_t)call->buffer;
    block.aio_offset = (long long)place(nth);
    long submitted = SYS(io_submit, call->number, 1, blocks);
    if (submitted < 1)
        return submitted;
    long ended = SYS(io_getevents, call->number, 1, 1, &event, NULL);
    return ended == 1 ? (long)event.res : ended;
}

/* --- something to a file */

static void from_file(struct call *call)
{
    with_file(call);
    call->other = file(call, "copy", 0, 0);
}

static long make_sendfile_to_file(struct call *call, unsigned nth)
{
    off_t from = (off_t)place(nth);
    lseek(call->other, from, SEEK_SET);
    return SYS(sendfile, call->other, call->fd, &from, BLOCK);
}

static void from_pipe(struct call *call)
{
    with_pipe(call);
    fill(call->other, call->count * MESSAGE);
    call->other = file(call, "copy", 0, 0);
}

static long make_splice_to_file(struct call *call, unsigned nth)
{
    off_t to = (off_t)nth * MESSAGE;
    return SYS(splice, call->fd, NULL, call->other, &to, MESSAGE, 0);
}

/* --- mapped */

static long make_mmap_store(struct call *call, unsigned nth)
{
    char *page = call->map + place(nth);
    *(volatile char *)page = (char)nth;
    return SYS(msync, page, BLOCK, MS_SYNC);
}

/* --- sizes */

static long make_fallocate(struct call *call, unsigned nth)
{
    return SYS(fallocate, call->fd, 0, (off_t)(BLOCKS + nth) * BLOCK, (off_t)BLOCK);
}

static long make_ftruncate(struct call *call, unsigned nth)
{
    return SYS(ftruncate, call->fd, (off_t)BLOCK + nth);
}

static long make_truncate(struct call *call, unsigned nth)
{
    return SYS(truncate, path(call, "file", 0), (off_t)BLOCK + nth);
}

/* --- pipes */

static long make_write_pipe(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(write, call->other, call->buffer, MESSAGE);
}

/* A pipe for each call: a page that is lent to a pipe takes a whole slot. */
static void pipes(struct call *call)
{
    each(call);
    call->buffer = memory(BLOCK);
    for (unsigned nth = 0; nth < call->count; nth++) {
        int ends[2];
        must(pipe2(ends, O_CLOEXEC), "a pipe");
        call->peers[nth] = ends[0];
        call->each[nth] = ends[1];
    }
}

static long make_vmsplice(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return SYS(vmsplice, call->each[nth], &one, 1, 0);
}

static void with_eventfd(struct call *call)
{
    call->fd = (int)must(eventfd(0, EFD_CLOEXEC), "eventfd");
    call->number = 1;
}

static long make_write_eventfd(struct call *call, unsigned nth)
{
    uint64_t one = 1;
    (void)nth;
    return SYS(write, call->fd, &one, sizeof one);
}

static void own_memory(struct call *call)
{
    call->buffer = memory(2 * BLOCK);
}

static long make_process_vm_writev(struct call *call, unsigned nth)
{
    struct iovec from = vector(call), to = {call->buffer + BLOCK, BLOCK};
    (void)nth;
    return SYS(process_vm_writev, getpid(), &from, 1, &to, 1, 0);
}

const struct entry write_entries[] = {
    {"write", "write", with_file, make_write, HERE, NULL},
    {"writev", "write", with_file, make_writev, HERE, NULL},
    {"pwrite64", "write", with_file, make_pwrite64, HERE, NULL},
    {"pwrite64_direct", "write", direct, make_pwrite64, HERE, NULL},
    {"pwritev", "write", with_file, make_pwritev, HERE, NULL},
    {"pwritev2", "write", with_file, make_pwritev2, HERE, NULL},
    {"io_uring_write", "write", ring_file, make_ring_write, HERE, NULL},
    {"io_uring_writev", "write", ring_file, make_ring_writev, HERE, NULL},
    {"io_uring_write_async", "write", ring_file, make_ring_write_async, HERE, NULL},
    {"io_uring_write_direct", "write", ring_direct, make_ring_write, HERE, NULL},
    {"io_uring_write_polled", "write", ring_polled, make_ring_write, HERE, NULL},
    {"io_uring_fallocate", "write", ring_fallocate, make_ring_fallocate, HERE, NULL},
    {"aio_write", "write", with_aio, make_aio_write, HERE, NULL},
    {"sendfile_to_file", "write", from_file, make_sendfile_to_file, HERE, NULL},
    {"splice_to_file", "write", from_pipe, make_splice_to_file, HERE_EACH, NULL},
    {"mmap_store", "write", with_file_map, make_mmap_store, HERE, NULL},
    {"fallocate", "write", with_file, make_fallocate, HERE, NULL},
    {"ftruncate", "write", with_file, make_ftruncate, HERE, NULL},
    {"truncate", "write", with_file, make_truncate, HERE, NULL},
    {"write_pipe", "write", with_pipe, make_write_pipe, HERE_EACH, NULL},
    {"vmsplice", "write", pipes, make_vmsplice, HERE_EACH, NULL},
    {"write_eventfd", "write", with_eventfd, make_write_eventfd, HERE, NULL},
    {"process_vm_writev", "write", own_memory, make_process_vm_writev, HERE, NULL},
    {0},
};
