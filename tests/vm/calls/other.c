/* ioctl and file locks. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <net/if.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static long make_ioctl_file(struct call *call, unsigned nth)
{
    int bytes;
    (void)nth;
    return SYS(ioctl, call->fd, FIONREAD, &bytes);
}

/* Not every file system has it: ENOTTY then says so. */
static void with_flags(struct call *call)
{
    int flags;
    with_file(call);
    must(ioctl(call->fd, FS_IOC_GETFLAGS, &flags), "FS_IOC_GETFLAGS");
}

static long make_ioctl_getflags(struct call *call, unsigned nth)
{
    int flags;
    (void)nth;
    return SYS(ioctl, call->fd, FS_IOC_GETFLAGS, &flags);
}

static void with_socket(struct call *call)
{
    call->fd = (int)must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "a socket");
    call->buffer = memory(BLOCK);
}

static long make_ioctl_socket(struct call *call, unsigned nth)
{
    struct ifconf interfaces = {.ifc_len = BLOCK, .ifc_buf = call->buffer};
    (void)nth;
    return SYS(ioctl, call->fd, SIOCGIFCONF, &interfaces);
}

static long make_ioctl_pipe(struct call *call, unsigned nth)
{
    int on = nth % 2 == 0;
    return SYS(ioctl, call->fd, FIONBIO, &on);
}

static long make_flock(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(flock, call->fd, LOCK_EX | LOCK_NB);
}

static struct flock whole(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

static long make_fcntl_setlk(struct call *call, unsigned nth)
{
    struct flock lock = whole();
    (void)nth;
    return SYS(fcntl, call->fd, F_SETLK, &lock);
}

static long make_fcntl_setlkw(struct call *call, unsigned nth)
{
    struct flock lock = whole();
    (void)nth;
    return SYS(fcntl, call->fd, F_SETLKW, &lock);
}

static long make_fcntl_ofd_setlk(struct call *call, unsigned nth)
{
    struct flock lock = whole();
    (void)nth;
    return SYS(fcntl, call->fd, F_OFD_SETLK, &lock);
}

static long make_fcntl_setlease(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(fcntl, call->fd, F_SETLEASE, F_WRLCK);
}

const struct entry other_entries[] = {
    {"ioctl_file", "ioctl", with_file, make_ioctl_file, HERE, NULL},
    {"ioctl_getflags", "ioctl", with_flags, make_ioctl_getflags, HERE, NULL},
    {"ioctl_socket", "ioctl", with_socket, make_ioctl_socket, HERE, NULL},
    {"ioctl_pipe", "ioctl", with_pipe, make_ioctl_pipe, HERE, NULL},
    {"flock", "lock", with_file, make_flock, HERE, NULL},
    {"fcntl_setlk", "lock", with_file, make_fcntl_setlk, HERE, NULL},
    {"fcntl_setlkw", "lock", with_file, make_fcntl_setlkw, HERE, NULL},
    {"fcntl_ofd_setlk", "lock", with_file, make_fcntl_ofd_setlk, HERE, NULL},
    {"fcntl_setlease", "lock", with_file, make_fcntl_setlease, HERE, NULL},
    {0},
};
