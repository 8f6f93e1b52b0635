/* Objects that more than one family is measured on. */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

extern jmp_buf give_up;
extern char reason[256];

void unable(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    longjmp(give_up, 1);
}

long must(long result, const char *what)
{
    if (result < 0)
        unable("%s: %s", what, strerrorname_np(errno));
    return result;
}

const char *path(struct call *call, const char *stem, unsigned nth)
{
    static char text[2][4096];
    static unsigned turn;
    turn ^= 1;
    snprintf(text[turn], sizeof text[turn], "%s/%s%u", call->dir, stem, nth);
    return text[turn];
}

/* Present, so that using it allocates nothing. */
void *memory(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must(at == MAP_FAILED ? -1 : 0, "memory");
    return at;
}

int file(struct call *call, const char *stem, unsigned nth, size_t size)
{
    int fd = (int)must(open(path(call, stem, nth), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644), "a file");
    fill(fd, size);
    must(lseek(fd, 0, SEEK_SET), "lseek");
    return fd;
}

void fill(int fd, size_t size)
{
    char bytes[BLOCK];
    memset(bytes, 'x', sizeof bytes);
    while (size > 0) {
        size_t part = size < sizeof bytes ? size : sizeof bytes;
        size -= (size_t)must(write(fd, bytes, part), "filling");
    }
}

void files(struct call *call, const char *stem)
{
    for (unsigned nth = 0; nth < call->count; nth++)
        close(file(call, stem, nth, 0));
}

void directories(struct call *call, const char *stem)
{
    for (unsigned nth = 0; nth < call->count; nth++)
        must(mkdir(path(call, stem, nth), 0755), "a directory");
}

void program(struct call *call)
{
    struct stat about;
    int from = (int)must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "this program");
    int to = (int)must(open(path(call, "program", 0), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755), "a program");
    must(fstat(from, &about), "fstat");
    for (off_t left = about.st_size; left > 0;)
        left -= must(sendfile(to, from, NULL, (size_t)left), "copying this program");
    close(to);
    close(from);
}

void each(struct call *call)
{
    call->each = memory(call->count * sizeof *call->each);
    call->peers = memory(call->count * sizeof *call->peers);
    memset(call->each, -1, call->count * sizeof *call->each);
    memset(call->peers, -1, call->count * sizeof *call->peers);
}

void with_file(struct call *call)
{
    call->fd = file(call, "file", 0, BLOCKS * BLOCK);
    call->buffer = memory(BLOCKS * BLOCK);
}

void with_file_map(struct call *call)
{
    with_file(call);
    call->size = BLOCKS * BLOCK;
    call->map = mmap(NULL, call->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, call->fd, 0);
    must(call->map == MAP_FAILED ? -1 : 0, "a mapped file");
}

/* `fd` is the end to read from, `other` the end to write to; there is room for every message. */
void with_pipe(struct call *call)
{
    int ends[2];
    must(pipe2(ends, O_CLOEXEC), "a pipe");
    call->fd = ends[0];
    call->other = ends[1];
    must(fcntl(call->other, F_SETPIPE_SZ, BLOCKS * BLOCK), "a pipe's size");
    call->buffer = memory(BLOCKS * BLOCK);
}
