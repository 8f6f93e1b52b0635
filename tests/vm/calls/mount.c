/* Mounts, each in a child that has a mount namespace of its own: nothing of them is seen outside, or stays. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/stat.h>

static void with_target(struct call *call)
{
    must(mkdir(path(call, "target", 0), 0755), "a directory");
}

static void own_namespace(struct call *call)
{
    (void)call;
    must(unshare(CLONE_NEWNS), "a mount namespace");
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
}

static void mounted(struct call *call)
{
    own_namespace(call);
    must(mount("none", path(call, "target", 0), "tmpfs", 0, NULL), "a tmpfs");
}

static long make_mount(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(mount, "none", path(call, "target", 0), "tmpfs", 0, NULL);
}

static long make_mount_bind(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(mount, call->dir, path(call, "target", 0), NULL, MS_BIND, NULL);
}

static long make_mount_remount(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(mount, "none", path(call, "target", 0), NULL, MS_REMOUNT | MS_RDONLY, NULL);
}

static long make_mount_propagation(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(mount, "none", path(call, "target", 0), NULL, MS_SHARED, NULL);
}

static long make_umount2(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(umount2, path(call, "target", 0), MNT_DETACH);
}

static long make_fsopen(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return opened(SYS(fsopen, "tmpfs", FSOPEN_CLOEXEC));
}

static void with_context(struct call *call)
{
    own_namespace(call);
    call->fd = (int)must(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC), "fsopen");
}

static long make_fsconfig_create(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(fsconfig, call->fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
}

static void with_file_system(struct call *call)
{
    with_context(call);
    must(syscall(SYS_fsconfig, call->fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "fsconfig");
}

static long make_fsmount(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(fsmount, call->fd, FSMOUNT_CLOEXEC, 0));
}

static void with_mount(struct call *call)
{
    with_file_system(call);
    call->fd = (int)must(syscall(SYS_fsmount, call->fd, FSMOUNT_CLOEXEC, 0), "fsmount");
}

static long make_move_mount(struct call *call, unsigned nth)
{
    (void)nth;
    return SYS(move_mount, call->fd, "", AT_FDCWD, path(call, "target", 0), MOVE_MOUNT_F_EMPTY_PATH);
}

static long make_mount_setattr(struct call *call, unsigned nth)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY};
    (void)nth;
    return SYS(mount_setattr, AT_FDCWD, path(call, "target", 0), 0, &attributes, sizeof attributes);
}

static long make_open_tree(struct call *call, unsigned nth)
{
    (void)nth;
    return opened(SYS(open_tree, AT_FDCWD, path(call, "target", 0), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
}

const struct entry mount_entries[] = {
    {"mount", "mount", with_target, make_mount, CHILD_EACH, own_namespace},
    {"mount_bind", "mount", with_target, make_mount_bind, CHILD_EACH, own_namespace},
    {"mount_remount", "mount", with_target, make_mount_remount, CHILD_EACH, mounted},
    {"mount_propagation", "mount", with_target, make_mount_propagation, CHILD_EACH, mounted},
    {"umount2", "mount", with_target, make_umount2, CHILD_EACH, mounted},
    {"fsopen", "mount", NULL, make_fsopen, CHILD_EACH, own_namespace},
    {"fsconfig_create", "mount", NULL, make_fsconfig_create, CHILD_EACH, with_context},
    {"fsmount", "mount", NULL, make_fsmount, CHILD_EACH, with_file_system},
    {"move_mount", "mount", with_target, make_move_mount, CHILD_EACH, with_mount},
    {"mount_setattr", "mount", with_target, make_mount_setattr, CHILD_EACH, mounted},
    {"open_tree", "mount", with_target, make_open_tree, CHILD_EACH, mounted},
    {0},
};
