/* Mappings (mmap) and growth (memory). */
#define _GNU_SOURCE
#include "calls.h"

#include <alloca.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

enum { BIG = 64 * MEBIBYTE, DEEP = 2 * MEBIBYTE };

/* What has been mapped goes again, so that many calls do not fill the address space. */
static long mapped(long result, size_t size)
{
    if (result >= 0)
        munmap((void *)result, size);
    return done(result);
}

static long make_mmap_file(struct call *call, unsigned nth)
{
    (void)nth;
    return mapped(SYS(mmap, NULL, BLOCK, PROT_READ, MAP_PRIVATE, call->fd, 0UL), BLOCK);
}

static long make_mmap_file_shared(struct call *call, unsigned nth)
{
    (void)nth;
    return mapped(SYS(mmap, NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, call->fd, 0UL), BLOCK);
}

static long make_mmap_file_exec(struct call *call, unsigned nth)
{
    (void)nth;
    return mapped(SYS(mmap, NULL, BLOCK, PROT_READ | PROT_EXEC, MAP_PRIVATE, call->fd, 0UL), BLOCK);
}

static long make_mmap_anonymous(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return mapped(SYS(mmap, NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0UL), BLOCK);
}

/* `map` holds one address a call. */
static void page_each(struct call *call, int flags, int fd)
{
    call->map = memory(call->count * sizeof(void *));
    for (unsigned nth = 0; nth < call->count; nth++) {
        void *at = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, flags, fd, 0);
        must(at == MAP_FAILED ? -1 : 0, "a mapping");
        ((void **)(void *)call->map)[nth] = at;
    }
}

static void file_pages(struct call *call)
{
    with_file(call);
    page_each(call, MAP_SHARED, call->fd);
}

static void private_pages(struct call *call)
{
    page_each(call, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static long make_mremap(struct call *call, unsigned nth)
{
    void *old = ((void **)(void *)call->map)[nth];
    return mapped(SYS(mremap, old, BLOCK, 4 * BLOCK, MREMAP_MAYMOVE), 4 * BLOCK);
}

static long make_mremap_grow(struct call *call, unsigned nth)
{
    void *old = ((void **)(void *)call->map)[nth];
    return mapped(SYS(mremap, old, BLOCK, BIG, MREMAP_MAYMOVE), BIG);
}

static long make_mprotect(struct call *call, unsigned nth)
{
    return SYS(mprotect, call->map, BLOCK, nth % 2 ? PROT_READ | PROT_WRITE : PROT_READ);
}

static long make_remap_file_pages(struct call *call, unsigned nth)
{
    return SYS(remap_file_pages, call->map, BLOCK, 0, (unsigned long)(nth % (BLOCKS - 1)) + 1, 0);
}

/* Removed at once, and kept by an attachment of its own until this process ends. */
static void with_segment(struct call *call)
{
    call->fd = (int)must(shmget(IPC_PRIVATE, BLOCK, 0600), "shmget");
    void *at = shmat(call->fd, NULL, 0);
    shmctl(call->fd, IPC_RMID, NULL);
    must(at == (void *)-1 ? -1 : 0, "shmat");
}

static long make_shmat(struct call *call, unsigned nth)
{
    (void)nth;
    long result = SYS(shmat, call->fd, NULL, 0);
    if (result >= 0)
        shmdt((void *)result);
    return done(result);
}

/* --- growth */

static void with_break(struct call *call)
{
    call->number = (unsigned long)syscall(SYS_brk, 0);
}

/* brk() tells of failure by a break that has not moved. */
static long make_brk(struct call *call, unsigned nth)
{
    (void)nth;
    unsigned long wanted = call->number + MEBIBYTE;
    long result = SYS(brk, wanted);
    if (result < 0)
        return result;
    if ((unsigned long)result != wanted)
        return -ENOMEM;
    call->number = wanted;
    return 0;
}

static long make_mmap_private(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return mapped(SYS(mmap, NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0UL), BIG);
}

static long make_mmap_shared_anon(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    return mapped(SYS(mmap, NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0UL), BIG);
}

static long make_mmap_populate(struct call *call, unsigned nth)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    (void)call, (void)nth;
    return mapped(SYS(mmap, NULL, MEBIBYTE, PROT_READ | PROT_WRITE, flags, -1, 0UL), MEBIBYTE);
}

/* In a child: a stack that does not grow kills its process. */
static long make_stack_growth(struct call *call, unsigned nth)
{
    volatile char *deep = alloca(DEEP);
    (void)call, (void)nth;
    for (size_t at = DEEP; at >= BLOCK; at -= BLOCK)
        deep[at - BLOCK] = 1;
    return 0;
}

static void big_private(struct call *call)
{
    call->map = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(call->map == MAP_FAILED ? -1 : 0, "mmap");
}

static long make_fork_copy(struct call *call, unsigned nth)
{
    (void)call, (void)nth;
    long pid = SYS(fork);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? pid : reap((pid_t)pid);
}

static void untouched(struct call *call)
{
    size_t size = (size_t)call->count * BLOCK;
    call->map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(call->map == MAP_FAILED ? -1 : 0, "mmap");
    madvise(call->map, size, MADV_NOHUGEPAGE); /* EINVAL where there are no huge pages is as good */
}

static long make_populate(struct call *call, unsigned nth)
{
    return SYS(madvise, call->map + (size_t)nth * BLOCK, BLOCK, MADV_POPULATE_WRITE);
}

static long make_page_touch(struct call *call, unsigned nth)
{
    *(volatile char *)(call->map + (size_t)nth * BLOCK) = 1;
    return 0;
}

/* Private pages count as memory from when they can be written to. */
static void read_only(struct call *call)
{
    size_t size = (size_t)call->count * BLOCK;
    call->map = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(call->map == MAP_FAILED ? -1 : 0, "mmap");
}

static long make_mprotect_writable(struct call *call, unsigned nth)
{
    return SYS(mprotect, call->map + (size_t)nth * BLOCK, BLOCK, PROT_READ | PROT_WRITE);
}

const struct entry memory_entries[] = {
    {"mmap_file", "mmap", with_file, make_mmap_file, HERE, NULL},
    {"mmap_file_shared", "mmap", with_file, make_mmap_file_shared, HERE, NULL},
    {"mmap_file_exec", "mmap", with_file, make_mmap_file_exec, HERE, NULL},
    {"mmap_anonymous", "mmap", NULL, make_mmap_anonymous, HERE, NULL},
    {"mremap", "mmap", file_pages, make_mremap, HERE_EACH, NULL},
    {"mprotect", "mmap", with_file_map, make_mprotect, HERE, NULL},
    {"remap_file_pages", "mmap", with_file_map, make_remap_file_pages, HERE, NULL},
    {"shmat", "mmap", with_segment, make_shmat, HERE, NULL},
    {"brk", "memory", with_break, make_brk, HERE_EACH, NULL},
    {"mmap_private", "memory", NULL, make_mmap_private, HERE, NULL},
    {"mmap_populate", "memory", NULL, make_mmap_populate, HERE, NULL},
    {"mremap_grow", "memory", private_pages, make_mremap_grow, HERE_EACH, NULL},
    {"mmap_shared_anon", "memory", NULL, make_mmap_shared_anon, HERE, NULL},
    {"mprotect_writable", "memory", read_only, make_mprotect_writable, HERE_EACH, NULL},
    {"stack_growth", "memory", NULL, make_stack_growth, CHILD_EACH, NULL},
    {"fork_copy", "memory", big_private, make_fork_copy, HERE, NULL},
    {"populate", "memory", untouched, make_populate, HERE_EACH, NULL},
    {"page_touch", "memory", untouched, make_page_touch, HERE_EACH, NULL},
    {0},
};
