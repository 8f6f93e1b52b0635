/* Sending on connected sockets. The other end has room for all and reads nothing. */
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

static long make_send(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(sendto, call->fd, call->buffer, MESSAGE, 0, NULL, 0);
}

static long make_sendmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
    (void)nth;
    return SYS(sendmsg, call->fd, &header, 0);
}

static long make_sendmmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct mmsghdr header = {.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}};
    (void)nth;
    return SYS(sendmmsg, call->fd, &header, 1, 0);
}

static long make_write_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(write, call->fd, call->buffer, MESSAGE);
}

static long make_writev_socket(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    (void)nth;
    return SYS(writev, call->fd, &one, 1);
}

static void from_file(struct call *call)
{
    with_tcp_pair(call);
    close(file(call, "file", 0, BLOCK));
    call->other = (int)must(open(path(call, "file", 0), O_RDONLY | O_CLOEXEC), "a file");
}

static long make_sendfile_to_socket(struct call *call, unsigned nth)
{
    off_t from = 0;
    (void)nth;
    return SYS(sendfile, call->fd, call->other, &from, MESSAGE);
}

static void from_pipe(struct call *call)
{
    with_pipe(call);
    int from = call->fd;
    fill(call->other, call->count * MESSAGE);
    with_tcp_pair(call);
    call->other = from; /* the socket's other end stays open, and unread */
}

static long make_splice_to_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(splice, call->other, NULL, call->fd, NULL, MESSAGE, 0);
}

static void ring_send(struct call *call)
{
    with_tcp_pair(call);
    with_ring(call, IORING_OP_SEND, 0);
}

static long make_ring_send(struct call *call, unsigned nth)
{
    (void)nth;
    return ring_op(call, IORING_OP_SEND, call->fd, call->buffer, MESSAGE, 0);
}

static long make_ring_sendmsg(struct call *call, unsigned nth)
{
    struct iovec one = vector(call);
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
    (void)nth;
    return ring_op(call, IORING_OP_SENDMSG, call->fd, &header, 1, 0);
}

static long make_ring_write_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return ring_op(call, IORING_OP_WRITE, call->fd, call->buffer, MESSAGE, 0);
}

static void ring_send_zc(struct call *call)
{
    with_tcp_pair(call);
    with_ring(call, IORING_OP_SEND_ZC, 0);
}

static long make_ring_send_zc(struct call *call, unsigned nth)
{
    (void)nth;
    return ring_op(call, IORING_OP_SEND_ZC, call->fd, call->buffer, MESSAGE, 0);
}

const struct entry send_entries[] = {
    {"send", "send", with_tcp_pair, make_send, HERE_EACH, NULL},
    {"send_udp", "send", with_udp_pair, make_send, HERE_EACH, NULL},
    {"send_unix", "send", with_unix_pair, make_send, HERE_EACH, NULL},
    {"sendmsg", "send", with_tcp_pair, make_sendmsg, HERE_EACH, NULL},
    {"sendmmsg", "send", with_tcp_pair, make_sendmmsg, HERE_EACH, NULL},
    {"write_socket", "write send", with_tcp_pair, make_write_socket, HERE_EACH, NULL},
    {"writev_socket", "send", with_tcp_pair, make_writev_socket, HERE_EACH, NULL},
    {"sendfile_to_socket", "send", from_file, make_sendfile_to_socket, HERE_EACH, NULL},
    {"splice_to_socket", "send", from_pipe, make_splice_to_socket, HERE_EACH, NULL},
    {"io_uring_send", "send", ring_send, make_ring_send, HERE_EACH, NULL},
    {"io_uring_sendmsg", "send", ring_send, make_ring_sendmsg, HERE_EACH, NULL},
    {"io_uring_write_socket", "send", ring_send, make_ring_write_socket, HERE_EACH, NULL},
    {"io_uring_send_zc", "send", ring_send_zc, make_ring_send_zc, HERE_EACH, NULL},
    {0},
};
