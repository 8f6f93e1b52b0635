/* Receiving what already waits in a connected socket. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static struct iovec vector(struct call *call)
{
    return (struct iovec){call->buffer, MESSAGE};
}

static void tcp_data(struct call *call)
{
    with_tcp_pair(call);
    fill(call->other, call->count * MESSAGE);
}

static void unix_data(struct call *call)
{
    with_unix_pair(call);
    fill(call->other, call->count * MESSAGE);
}

static void udp_data(struct call *call)
{
    with_udp_pair(call);
    for (unsigned nth = 0; nth < call->count; nth++)
        fill(call->other, MESSAGE);
}

static long make_recv(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(recvfrom, call->fd, call->buffer, MESSAGE, 0, NULL, NULL);
}

static long make_recvmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
    (void)nth;
    return SYS(recvmsg, call->fd, &header, 0);
}

static long make_recvmmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct mmsghdr header = {.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}};
    (void)nth;
    return SYS(recvmmsg, call->fd, &header, 1, 0, NULL);
}

static long make_read_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(read, call->fd, call->buffer, MESSAGE);
}

static long make_readv_socket(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    (void)nth;
    return SYS(readv, call->fd, &one, 1);
}

static void to_pipes(struct call *call)
{
    tcp_data(call);
    each(call);
    for (unsigned nth = 0; nth < call->count; nth++) {
        int ends[2];
        must(pipe2(ends, O_CLOEXEC), "a pipe");
        call->peers[nth] = ends[0];
        call->each[nth] = ends[1];
    }
}

static long make_splice_from_socket(struct call *call, unsigned nth)
{
    return SYS(splice, call->fd, NULL, call->each[nth], NULL, MESSAGE, 0);
}

static void ring_data(struct call *call)
{
    tcp_data(call);
    with_ring(call, IORING_OP_RECV, 0);
}

static long make_ring_recv(struct call *call, unsigned nth)
{
    (void)nth;
    return ring_op(call, IORING_OP_RECV, call->fd, call->buffer, MESSAGE, 0);
}

static long make_ring_recvmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
    (void)nth;
    return ring_op(call, IORING_OP_RECVMSG, call->fd, &header, 1, 0);
}

static long make_ring_read_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return ring_op(call, IORING_OP_READ, call->fd, call->buffer, MESSAGE, 0);
}

const struct entry recv_entries[] = {
    {"recv", "recv", tcp_data, make_recv, HERE_EACH, NULL},
    {"recvfrom_udp", "recv", udp_data, make_recv, HERE_EACH, NULL},
    {"recv_unix", "recv", unix_data, make_recv, HERE_EACH, NULL},
    {"recvmsg", "recv", tcp_data, make_recvmsg, HERE_EACH, NULL},
    {"recvmmsg", "recv", tcp_data, make_recvmmsg, HERE_EACH, NULL},
    {"read_socket", "read recv", tcp_data, make_read_socket, HERE_EACH, NULL},
    {"readv_socket", "recv", tcp_data, make_readv_socket, HERE_EACH, NULL},
    {"splice_from_socket", "recv", to_pipes, make_splice_from_socket, HERE_EACH, NULL},
    {"io_uring_recv", "recv", ring_data, make_ring_recv, HERE_EACH, NULL},
    {"io_uring_recvmsg", "recv", ring_data, make_ring_recvmsg, HERE_EACH, NULL},
    {"io_uring_read_socket", "recv", ring_data, make_ring_read_socket, HERE_EACH, NULL},
    {0},
};
