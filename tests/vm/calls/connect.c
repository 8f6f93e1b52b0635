/* Connecting, with a socket of its own for each call. `buffer` has the address, `size` its size, `fd` who answers. */
#define _GNU_SOURCE
#include "calls.h"

#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static void sockets(struct call *call, int domain, int type)
{
    each(call);
    for (unsigned nth = 0; nth < call->count; nth++)
        call->each[nth] = (int)must(socket(domain, type | SOCK_CLOEXEC, 0), "a socket");
}

static void to_tcp(struct call *call, int domain, int flags)
{
    unsigned size;
    call->buffer = memory(BLOCK);
    call->fd = listener(domain, call->count, call->buffer, &size);
    call->size = size;
    sockets(call, domain, SOCK_STREAM | flags);
}

static void tcp4(struct call *call)
{
    to_tcp(call, AF_INET, 0);
}

static void tcp6(struct call *call)
{
    to_tcp(call, AF_INET6, 0);
}

static void tcp4_nonblock(struct call *call)
{
    to_tcp(call, AF_INET, SOCK_NONBLOCK);
}

static void to_udp(struct call *call)
{
    unsigned size;
    call->buffer = memory(BLOCK);
    call->fd = (int)must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "a socket");
    roomy(call->fd);
    loopback(AF_INET, 0, call->buffer, &size);
    must(bind(call->fd, (struct sockaddr *)call->buffer, size), "bind");
    must(getsockname(call->fd, (struct sockaddr *)call->buffer, &size), "getsockname");
    call->size = size;
    sockets(call, AF_INET, SOCK_DGRAM);
}

static void to_unix(struct call *call)
{
    unsigned size;
    call->buffer = memory(BLOCK);
    call->fd = tcp(AF_UNIX);
    unix_name(call, "door", 0, call->buffer, &size);
    must(bind(call->fd, (struct sockaddr *)call->buffer, size), "bind");
    must(listen(call->fd, (int)call->count), "listen");
    call->size = size;
    sockets(call, AF_UNIX, SOCK_STREAM);
}

static long make_connect(struct call *call, unsigned nth)
{
    return SYS(connect, call->each[nth], call->buffer, call->size);
}

static long make_connect_nonblock(struct call *call, unsigned nth)
{
    struct pollfd connected = {.fd = call->each[nth], .events = POLLOUT};
    int failed = 0;
    unsigned size = sizeof failed;
    long result = SYS(connect, call->each[nth], call->buffer, call->size);
    if (result != -EINPROGRESS)
        return result;
    if (poll(&connected, 1, DEADLINE_S * 1000) < 0 ||
        getsockopt(call->each[nth], SOL_SOCKET, SO_ERROR, &failed, &size) < 0)
        return -errno;
    return -failed;
}

static void ring_tcp4(struct call *call)
{
    tcp4(call);
    with_ring(call, IORING_OP_CONNECT, 0);
}

static long make_ring_connect(struct call *call, unsigned nth)
{
    return ring_op(call, IORING_OP_CONNECT, call->each[nth], call->buffer, 0, call->size);
}

static const char message[MESSAGE] = "fifteen letters";

static long make_sendto_fastopen(struct call *call, unsigned nth)
{
    return SYS(sendto, call->each[nth], message, MESSAGE, MSG_FASTOPEN, call->buffer, call->size);
}

static long make_sendto_udp(struct call *call, unsigned nth)
{
    return SYS(sendto, call->each[nth], message, MESSAGE, 0, call->buffer, call->size);
}

static long make_sendmsg_udp(struct call *call, unsigned nth)
{
    struct iovec one = {(void *)message, MESSAGE};
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = call->buffer};
    header.msg_namelen = (socklen_t)call->size;
    return SYS(sendmsg, call->each[nth], &header, 0);
}

const struct entry connect_entries[] = {
    {"connect_tcp4", "connect", tcp4, make_connect, HERE_EACH, NULL},
    {"connect_tcp6", "connect", tcp6, make_connect, HERE_EACH, NULL},
    {"connect_udp4", "connect", to_udp, make_connect, HERE_EACH, NULL},
    {"connect_unix", "connect", to_unix, make_connect, HERE_EACH, NULL},
    {"connect_nonblock", "connect", tcp4_nonblock, make_connect_nonblock, HERE_EACH, NULL},
    {"io_uring_connect", "connect", ring_tcp4, make_ring_connect, HERE_EACH, NULL},
    {"sendto_fastopen", "connect send", tcp4, make_sendto_fastopen, HERE_EACH, NULL},
    {"sendto_udp", "connect send", to_udp, make_sendto_udp, HERE_EACH, NULL},
    {"sendmsg_udp", "connect send", to_udp, make_sendmsg_udp, HERE_EACH, NULL},
    {0},
};
