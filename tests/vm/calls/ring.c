/* io_uring by its own system calls (io_uring_setup(2), io_uring_enter(2); include/uapi/linux/io_uring.h). */
#define _GNU_SOURCE
#include "calls.h"

#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEPTH = 4, PROBED = 256 };

struct ring {
    int fd;
    bool polled; /* a kernel thread takes the entries */
    unsigned *sq_head, *sq_tail, *sq_mask, *sq_flags, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static void *mapped(int fd, size_t size, off_t offset)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    must(at == MAP_FAILED ? -1 : 0, "a ring's memory");
    return at;
}

static void needs(int fd, unsigned code)
{
    struct io_uring_probe *probe = memory(sizeof *probe + PROBED * sizeof probe->ops[0]);
    must(syscall(SYS_io_uring_register, fd, IORING_REGISTER_PROBE, probe, PROBED), "io_uring's probe");
    if (code > probe->last_op || !(probe->ops[code].flags & IO_URING_OP_SUPPORTED))
        unable("this kernel's io_uring lacks operation %u", code);
}

void with_ring(struct call *call, unsigned code, unsigned how)
{
    struct io_uring_params with = {0};
    struct ring *ring = memory(sizeof *ring);
    if (how & RING_POLLED) {
        ring->polled = true;
        with.flags = IORING_SETUP_SQPOLL;
        with.sq_thread_idle = 50; /* ms */
    }
    ring->fd = (int)must(syscall(SYS_io_uring_setup, DEPTH, &with), "io_uring_setup");
    needs(ring->fd, code);
    char *sq = mapped(ring->fd, with.sq_off.array + with.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = mapped(ring->fd, with.cq_off.cqes + with.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    ring->sqes = mapped(ring->fd, with.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring->sq_head = (unsigned *)(sq + with.sq_off.head);
    ring->sq_tail = (unsigned *)(sq + with.sq_off.tail);
    ring->sq_mask = (unsigned *)(sq + with.sq_off.ring_mask);
    ring->sq_flags = (unsigned *)(sq + with.sq_off.flags);
    ring->sq_array = (unsigned *)(sq + with.sq_off.array);
    ring->cq_head = (unsigned *)(cq + with.cq_off.head);
    ring->cq_tail = (unsigned *)(cq + with.cq_off.tail);
    ring->cq_mask = (unsigned *)(cq + with.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(cq + with.cq_off.cqes);
    call->ring = ring;
}

static long enter(struct ring *ring, unsigned submit)
{
    unsigned flags = IORING_ENTER_GETEVENTS;
    if (ring->polled && __atomic_load_n(ring->sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)
        flags |= IORING_ENTER_SQ_WAKEUP;
    return SYS(io_uring_enter, ring->fd, ring->polled ? 0 : submit, 1, flags, NULL, 0);
}

static bool completed(struct ring *ring, long *result)
{
    unsigned head = *ring->cq_head;
    while (head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
        struct io_uring_cqe *cqe = &ring->cqes[head++ & *ring->cq_mask];
        bool notice = cqe->flags & IORING_CQE_F_NOTIF; /* "the buffer is free again", after IORING_OP_SEND_ZC */
        *result = cqe->res;
        __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
        if (!notice)
            return true;
    }
    return false;
}

long ring_call(struct call *call, const struct io_uring_sqe *entry)
{
    struct ring *ring = call->ring;
    unsigned tail = *ring->sq_tail;
    long result = UNSET;
    ring->sqes[tail & *ring->sq_mask] = *entry;
    ring->sq_array[tail & *ring->sq_mask] = tail & *ring->sq_mask;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_SEQ_CST);
    long entered = enter(ring, 1);
    if (entered < 0 && !ring->polled && *ring->sq_head == tail)
        __atomic_store_n(ring->sq_tail, tail, __ATOMIC_RELEASE); /* refused as a whole: nothing is left behind */
    while (entered >= 0 && !completed(ring, &result))
        entered = enter(ring, 0);
    return entered < 0 ? entered : result;
}

long ring_op(struct call *call, unsigned code, int fd, const void *address, unsigned length, uint64_t offset)
{
    struct io_uring_sqe entry = {
        .opcode = (uint8_t)code, .fd = fd, .addr = (uintptr_t)address, .len = length, .off = offset};
    return ring_call(call, &entry);
}
