/* Sockets that more than one family is measured on: loopback and unix only. */
#define _GNU_SOURCE
#include "calls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { ROOM = 8 * MEBIBYTE };

int tcp(int domain)
{
    return (int)must(socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0), "a socket");
}

void loopback(int domain, uint16_t port, void *address, unsigned *size)
{
    if (domain == AF_INET6) {
        struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        memcpy(address, &six, *size = sizeof six);
    } else {
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        memcpy(address, &four, *size = sizeof four);
    }
}

/* Relative to the working directory: a unix address has 108 bytes. */
void unix_name(struct call *call, const char *stem, unsigned nth, void *address, unsigned *size)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/%s%u", call->entry->name, stem, nth);
    memcpy(address, &name, *size = sizeof name);
}

/* Bound to a free loopback port, which `address` (a sockaddr_storage) then has. */
int listener(int domain, unsigned backlog, void *address, unsigned *size)
{
    int fd = tcp(domain);
    loopback(domain, 0, address, size);
    must(bind(fd, address, *size), "a listener's bind");
    must(getsockname(fd, address, size), "getsockname");
    must(listen(fd, (int)backlog), "listen");
    return fd;
}

/* Without the privilege to go over the limit the kernel gives what it allows, which is enough for few calls. */
void roomy(int fd)
{
    int room = ROOM;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) < 0)
        must(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), "SO_SNDBUF");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) < 0)
        must(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), "SO_RCVBUF");
}

static void ready(struct call *call)
{
    roomy(call->fd);
    roomy(call->other);
    call->buffer = memory(BLOCKS * BLOCK);
}

void with_tcp_pair(struct call *call)
{
    struct sockaddr_storage address;
    unsigned size;
    int door = listener(AF_INET, 1, &address, &size);
    call->fd = tcp(AF_INET);
    must(connect(call->fd, (struct sockaddr *)&address, size), "connect");
    call->other = (int)must(accept4(door, NULL, NULL, SOCK_CLOEXEC), "accept4");
    close(door);
    ready(call);
}

void with_udp_pair(struct call *call)
{
    struct sockaddr_storage address[2];
    unsigned size[2];
    int ends[2];
    for (int end = 0; end < 2; end++) {
        ends[end] = (int)must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "a socket");
        loopback(AF_INET, 0, &address[end], &size[end]);
        must(bind(ends[end], (struct sockaddr *)&address[end], size[end]), "bind");
        must(getsockname(ends[end], (struct sockaddr *)&address[end], &size[end]), "getsockname");
    }
    must(connect(ends[0], (struct sockaddr *)&address[1], size[1]), "connect");
    must(connect(ends[1], (struct sockaddr *)&address[0], size[0]), "connect");
    call->fd = ends[0];
    call->other = ends[1];
    ready(call);
}

void with_unix_pair(struct call *call)
{
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
    call->fd = ends[0];
    call->other = ends[1];
    ready(call);
}
