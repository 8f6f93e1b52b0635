/* Reading: files, directories, pipes, links. Sockets are in recv.c. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static struct iovec vector(struct call *call)
{
    return (struct iovec){call->buffer, BLOCK};
}

static long make_read(struct call *call, unsigned nth)
{
    (void)nth;
    lseek(call->fd, 0, SEEK_SET);
    return SYS(read, call->fd, call->buffer, BLOCK);
}

static long make_readv(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    (void)nth;
    lseek(call->fd, 0, SEEK_SET);
    return SYS(readv, call->fd, &one, 1);
}

static long make_pread64(struct call *call, unsigned nth)
{
    return SYS(pread64, call->fd, call->buffer, BLOCK, (off_t)(nth % BLOCKS) * BLOCK);
}

static long make_preadv(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return SYS(preadv, call->fd, &one, 1, (unsigned long)(nth % BLOCKS) * BLOCK, 0UL);
}

static long make_preadv2(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return SYS(preadv2, call->fd, &one, 1, (unsigned long)(nth % BLOCKS) * BLOCK, 0UL, 0);
}

static long make_preadv2_nowait(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    (void)nth; /* the block that the preparation has read and so brought into the page cache */
    return SYS(preadv2, call->fd, &one, 1, 0UL, 0UL, RWF_NOWAIT);
}

static void cached(struct call *call)
{
    with_file(call);
    must(pread(call->fd, call->buffer, BLOCK, 0), "pread");
}

static void direct(struct call *call)
{
    with_file(call);
    must(fsync(call->fd), "fsync");
    close(call->fd);
    call->fd = (int)must(open(path(call, "file", 0), O_RDONLY | O_DIRECT | O_CLOEXEC), "O_DIRECT");
}

/* --- io_uring, aio */

static void ring_file(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_READ, 0);
}

static void ring_direct(struct call *call)
{
    direct(call);
    with_ring(call, IORING_OP_READ, 0);
}

static void ring_polled(struct call *call)
{
    with_file(call);
    with_ring(call, IORING_OP_READ, RING_POLLED);
}

static long make_ring_read(struct call *call, unsigned nth)
{
    return ring_op(call, IORING_OP_READ, call->fd, call->buffer, BLOCK, (nth % BLOCKS) * BLOCK);
}

static long make_ring_readv(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    return ring_op(call, IORING_OP_READV, call->fd, &one, 1, (nth % BLOCKS) * BLOCK);
}

/* By a worker thread of the kernel instead of at once. */
static long make_ring_read_async(struct call *call, unsigned nth)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = call->fd, .len = BLOCK};
    entry.addr = (uintptr_t)call->buffer;
    entry.off = (nth % BLOCKS) * BLOCK;
    return ring_call(call, &entry);
}

static void with_aio(struct call *call)
{
    aio_context_t context = 0;
    direct(call);
    must(syscall(SYS_io_setup, 4, &context), "io_setup");
    call->number = context;
}

static long make_aio_read(struct call *call, unsigned nth)
{
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)call->fd, .aio_nbytes = BLOCK};
    struct iocb *blocks[] = {&block};
    struct io_event event;
    block.aio_buf = (uintptr_t)call->buffer;
    block.aio_offset = (nth % BLOCKS) * BLOCK;
    long submitted = SYS(io_submit, call->number, 1, blocks);
    if (submitted < 1)
        return submitted;
    long ended = SYS(io_getevents, call->number, 1, 1, &event, NULL);
    return ended == 1 ? (long)event.res : ended;
}

/* --- file to something */

static void to_null(struct call *call)
{
    with_file(call);
    call->other = (int)must(open("/dev/null", O_WRONLY | O_CLOEXEC), "/dev/null");
}

static long make_sendfile(struct call *call, unsigned nth)
{
    off_t from = (off_t)(nth % BLOCKS) * BLOCK;
    return SYS(sendfile, call->other, call->fd, &from, BLOCK);
}

/* A pipe for each call: emptying a common one would be reads more. */
static void to_pipes(struct call *call)
{
    with_file(call);
    each(call);
    for (unsigned nth = 0; nth < call->count; nth++) {
        int ends[2];
        must(pipe2(ends, O_CLOEXEC), "a pipe");
        call->peers[nth] = ends[0];
        call->each[nth] = ends[1];
    }
}

static long make_splice(struct call *call, unsigned nth)
{
    off_t from = (off_t)(nth % BLOCKS) * BLOCK;
    return SYS(splice, call->fd, &from, call->each[nth], NULL, BLOCK, 0);
}

static void to_file(struct call *call)
{
    with_file(call);
    call->other = file(call, "copy", 0, 0);
}

static long make_copy_file_range(struct call *call, unsigned nth)
{
    off_t at = (off_t)(nth % BLOCKS) * BLOCK, to = at;
    return SYS(copy_file_range, call->fd, &at, call->other, &to, BLOCK, 0);
}

/* --- mapped */

static void uncached_map(struct call *call)
{
    unsigned char resident;
    call->size = (size_t)call->count * BLOCK;
    call->fd = file(call, "file", 0, call->size);
    must(fsync(call->fd), "fsync");
    must(-posix_fadvise(call->fd, 0, 0, POSIX_FADV_DONTNEED), "fadvise");
    call->map = mmap(NULL, call->size, PROT_READ, MAP_SHARED, call->fd, 0);
    must(call->map == MAP_FAILED ? -1 : 0, "mmap");
    must(madvise(call->map, call->size, MADV_RANDOM), "madvise"); /* one page at a time, none around it */
    must(mincore(call->map, BLOCK, &resident), "mincore");
    if (resident & 1)
        unable("the file system does not let go of cached pages");
}

static long make_mmap_fault(struct call *call, unsigned nth)
{
    return *(volatile char *)(call->map + (size_t)nth * BLOCK) == 'x' ? 0 : -EILSEQ;
}

/* --- directories, links, pipes */

static void directory(struct call *call)
{
    call->fd = (int)must(open(call->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "a directory");
    call->buffer = memory(BLOCK);
}

static long make_getdents64(struct call *call, unsigned nth)
{
    (void)nth;
    lseek(call->fd, 0, SEEK_SET);
    return SYS(getdents64, call->fd, call->buffer, BLOCK);
}

static void with_link(struct call *call)
{
    must(symlink("target", path(call, "link", 0)), "a link");
    call->buffer = memory(BLOCK);
}

static long make_readlink(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(readlink, path(call, "link", 0), call->buffer, BLOCK);
}

static long make_readlinkat(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(readlinkat, AT_FDCWD, path(call, "link", 0), call->buffer, BLOCK);
}

static void full_pipe(struct call *call)
{
    with_pipe(call);
    fill(call->other, call->count * MESSAGE);
}

static long make_read_pipe(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(read, call->fd, call->buffer, MESSAGE);
}

static void with_eventfd(struct call *call)
{
    call->fd = (int)must(eventfd(call->count, EFD_CLOEXEC | EFD_SEMAPHORE), "eventfd");
    call->buffer = memory(BLOCK);
}

static long make_read_eventfd(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(read, call->fd, call->buffer, sizeof(uint64_t));
}

static void two_pipes(struct call *call)
{
    to_pipes(call);
    close(call->fd);
    full_pipe(call);
}

static long make_tee(struct call *call, unsigned nth)
{
    return SYS(tee, call->fd, call->each[nth], MESSAGE, 0);
}

static void own_memory(struct call *call)
{
    call->buffer = memory(2 * BLOCK);
}

static long make_process_vm_readv(struct call *call, unsigned nth)
{
    struct iovec to = vector(call), from = {call->buffer + BLOCK, BLOCK};
    (void)nth;
    return SYS(process_vm_readv, getpid(), &to, 1, &from, 1, 0);
}

const struct entry read_entries[] = {
    {"read", "read", with_file, make_read, HERE, NULL},
    {"readv", "read", with_file, make_readv, HERE, NULL},
    {"pread64", "read", with_file, make_pread64, HERE, NULL},
    {"pread64_direct", "read", direct, make_pread64, HERE, NULL},
    {"preadv", "read", with_file, make_preadv, HERE, NULL},
    {"preadv2", "read", with_file, make_preadv2, HERE, NULL},
    {"preadv2_nowait", "read", cached, make_preadv2_nowait, HERE, NULL},
    {"io_uring_read", "read", ring_file, make_ring_read, HERE, NULL},
    {"io_uring_readv", "read", ring_file, make_ring_readv, HERE, NULL},
    {"io_uring_read_async", "read", ring_file, make_ring_read_async, HERE, NULL},
    {"io_uring_read_direct", "read", ring_direct, make_ring_read, HERE, NULL},
    {"io_uring_read_polled", "read", ring_polled, make_ring_read, HERE, NULL},
    {"aio_read", "read", with_aio, make_aio_read, HERE, NULL},
    {"sendfile", "read", to_null, make_sendfile, HERE, NULL},
    {"splice", "read", to_pipes, make_splice, HERE_EACH, NULL},
    {"copy_file_range", "read write", to_file, make_copy_file_range, HERE, NULL},
    {"mmap_fault", "read", uncached_map, make_mmap_fault, HERE_EACH, NULL},
    {"getdents64", "read", directory, make_getdents64, HERE, NULL},
    {"readlink", "read", with_link, make_readlink, HERE, NULL},
    {"readlinkat", "read", with_link, make_readlinkat, HERE, NULL},
    {"read_pipe", "read", full_pipe, make_read_pipe, HERE_EACH, NULL},
    {"read_eventfd", "read", with_eventfd, make_read_eventfd, HERE, NULL},
    {"tee", "read", two_pipes, make_tee, HERE_EACH, NULL},
    {"process_vm_readv", "read", own_memory, make_process_vm_readv, HERE, NULL},
    {0},
};
