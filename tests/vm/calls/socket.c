/* Sockets on the serving side: socket, bind, listen, accept. */
#define _GNU_SOURCE
#include "calls.h"

#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Newer than the headers of Debian 12: both came with Linux 6.11. */
enum { OP_BIND = 56, OP_LISTEN = 57 };

static long make_socket_tcp(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static long make_socket_tcp6(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(socket, AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static long make_socket_udp(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

static long make_socket_unix(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static long make_socket_netlink(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
}

static long make_socketpair(struct call *call, unsigned nth)
{
    int ends[2];
    (void)call, (void)nth;
    long result = SYS(socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    if (result == 0) {
        close(ends[0]);
        close(ends[1]);
    }
    return result;
}

static void ring_socket(struct call *call)
{
    with_ring(call, IORING_OP_SOCKET, 0);
}

static long make_ring_socket(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(ring_op(call, IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM));
}

/* --- bind, listen: `buffer` has the address, `size` its size */

static void sockets(struct call *call, int domain, int type)
{
    each(call);
    call->buffer = memory(BLOCK);
    for (unsigned nth = 0; nth < call->count; nth++)
        call->each[nth] = (int)must(socket(domain, type | SOCK_CLOEXEC, 0), "a socket");
    unsigned size = 0;
    if (domain != AF_UNIX)
        loopback(domain, 0, call->buffer, &size);
    call->size = size;
}

static void tcp4(struct call *call)
{
    sockets(call, AF_INET, SOCK_STREAM);
}

static void tcp6(struct call *call)
{
    sockets(call, AF_INET6, SOCK_STREAM);
}

static void udp4(struct call *call)
{
    sockets(call, AF_INET, SOCK_DGRAM);
}

static long make_bind(struct call *call, unsigned nth)
{
    return SYS(bind, call->each[nth], call->buffer, call->size);
}

static long make_bind_abstract(struct call *call, unsigned nth)
{
    sa_family_t family = AF_UNIX; /* nothing but the family: the kernel chooses an abstract name, unix(7) */
    return SYS(bind, call->each[nth], &family, sizeof family);
}

static void unix_sockets(struct call *call)
{
    sockets(call, AF_UNIX, SOCK_STREAM);
}

/* A UDP socket gets a port when it is connected. The target is a port that a socket of ours has. */
static void udp_target(struct call *call)
{
    udp4(call);
    unsigned size = (unsigned)call->size;
    call->fd = (int)must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "a socket");
    must(bind(call->fd, (struct sockaddr *)call->buffer, size), "bind");
    must(getsockname(call->fd, (struct sockaddr *)call->buffer, &size), "getsockname");
}

static long make_autobind(struct call *call, unsigned nth)
{
    return SYS(connect, call->each[nth], call->buffer, call->size);
}

static void ring_bind(struct call *call)
{
    tcp4(call);
    with_ring(call, OP_BIND, 0);
}

static long make_ring_bind(struct call *call, unsigned nth)
{
    return ring_op(call, OP_BIND, call->each[nth], call->buffer, 0, call->size);
}

static void bound(struct call *call)
{
    for (unsigned nth = 0; nth < call->count; nth++)
        must(bind(call->each[nth], (struct sockaddr *)call->buffer, (unsigned)call->size), "bind");
}

static void bound_tcp4(struct call *call)
{
    tcp4(call);
    bound(call);
}

static void bound_tcp6(struct call *call)
{
    tcp6(call);
    bound(call);
}

static void bound_unix(struct call *call)
{
    unix_sockets(call);
    for (unsigned nth = 0; nth < call->count; nth++) {
        struct sockaddr_un name;
        unsigned size;
        unix_name(call, "door", nth, &name, &size);
        must(bind(call->each[nth], (struct sockaddr *)&name, size), "bind");
    }
}

static long make_listen(struct call *call, unsigned nth)
{
    return SYS(listen, call->each[nth], 8);
}

static void ring_listen(struct call *call)
{
    bound_tcp4(call);
    with_ring(call, OP_LISTEN, 0);
}

static long make_ring_listen(struct call *call, unsigned nth)
{
    return ring_op(call, OP_LISTEN, call->each[nth], NULL, 8, 0);
}

/* --- accept: `fd` listens, and as many connections wait as calls will be made */

static void waiting_tcp(struct call *call)
{
    struct sockaddr_storage address;
    unsigned size;
    each(call);
    call->fd = listener(AF_INET, call->count, &address, &size);
    for (unsigned nth = 0; nth < call->count; nth++) {
        call->each[nth] = tcp(AF_INET);
        must(connect(call->each[nth], (struct sockaddr *)&address, size), "connect");
    }
}

static void waiting_unix(struct call *call)
{
    struct sockaddr_un name;
    unsigned size;
    each(call);
    call->fd = tcp(AF_UNIX);
    unix_name(call, "door", 0, &name, &size);
    must(bind(call->fd, (struct sockaddr *)&name, size), "bind");
    must(listen(call->fd, (int)call->count), "listen");
    for (unsigned nth = 0; nth < call->count; nth++) {
        call->each[nth] = tcp(AF_UNIX);
        must(connect(call->each[nth], (struct sockaddr *)&name, size), "connect");
    }
}

static long make_accept(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(accept, call->fd, NULL, NULL));
}

static long make_accept4(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(accept4, call->fd, NULL, NULL, SOCK_CLOEXEC));
}

static void ring_accept(struct call *call)
{
    waiting_tcp(call);
    with_ring(call, IORING_OP_ACCEPT, 0);
}

static long make_ring_accept(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(ring_op(call, IORING_OP_ACCEPT, call->fd, NULL, 0, 0));
}

const struct entry socket_entries[] = {
    {"socket_tcp", "socket", NULL, make_socket_tcp, HERE, NULL},
    {"socket_tcp6", "socket", NULL, make_socket_tcp6, HERE, NULL},
    {"socket_udp", "socket", NULL, make_socket_udp, HERE, NULL},
    {"socket_unix", "socket", NULL, make_socket_unix, HERE, NULL},
    {"socket_netlink", "socket", NULL, make_socket_netlink, HERE, NULL},
    {"socketpair", "socket", NULL, make_socketpair, HERE, NULL},
    {"io_uring_socket", "socket", ring_socket, make_ring_socket, HERE, NULL},
    {"accept_creates", "socket", waiting_tcp, make_accept4, HERE_EACH, NULL},
    {"bind_tcp4", "bind", tcp4, make_bind, HERE_EACH, NULL},
    {"bind_tcp6", "bind", tcp6, make_bind, HERE_EACH, NULL},
    {"bind_udp4", "bind", udp4, make_bind, HERE_EACH, NULL},
    {"bind_unix_abstract", "bind", unix_sockets, make_bind_abstract, HERE_EACH, NULL},
    {"autobind", "bind", udp_target, make_autobind, HERE_EACH, NULL},
    {"io_uring_bind", "bind", ring_bind, make_ring_bind, HERE_EACH, NULL},
    {"listen_tcp4", "listen", bound_tcp4, make_listen, HERE_EACH, NULL},
    {"listen_tcp6", "listen", bound_tcp6, make_listen, HERE_EACH, NULL},
    {"listen_unix", "listen", bound_unix, make_listen, HERE_EACH, NULL},
    {"io_uring_listen", "listen", ring_listen, make_ring_listen, HERE_EACH, NULL},
    {"accept", "accept", waiting_tcp, make_accept, HERE_EACH, NULL},
    {"accept4", "accept", waiting_tcp, make_accept4, HERE_EACH, NULL},
    {"accept_unix", "accept", waiting_unix, make_accept4, HERE_EACH, NULL},
    {"io_uring_accept", "accept", ring_accept, make_ring_accept, HERE_EACH, NULL},
    {0},
};
