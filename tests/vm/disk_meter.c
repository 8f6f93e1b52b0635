/* Runs on a node: how long each I/O takes, and load of many I/Os at once that are all compared.
 *
 *   disk_meter times r|w|f PATH OFFSET STEP COUNT   direct I/O of 4 KiB at OFFSET, OFFSET+STEP, ...: a line of µs each.
 *                                                   f: writes a byte through the cache and waits for fdatasync
 *   disk_meter load PATH THREADS                    each thread writes, reads back and compares a block of its own with
 *                                                   direct I/O until standard input ends; prints I/Os, failed, wrong
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, STACK = 32768 };

static int fd;
static atomic_bool ending;
static atomic_ulong done, failed, wrong;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void *room(void)
{
	void *at = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	return at;
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int times(char op, const char *path, off_t offset, off_t step, int count)
{
	char *buffer = room();

	memset(buffer, 'W', BLOCK);
	fd = open(path, (op == 'r' ? O_RDONLY : O_RDWR) | (op == 'f' ? 0 : O_DIRECT));
	if (fd < 0)
		die(path);
	for (int i = 0; i < count; i++, offset += step) {
		uint64_t began = now_us();
		ssize_t got = op == 'r'	  ? pread(fd, buffer, BLOCK, offset)
			      : op == 'w' ? pwrite(fd, buffer, BLOCK, offset)
					  : pwrite(fd, buffer, 1, offset);

		if (got < 0 || (op == 'f' && fdatasync(fd) < 0))
			die("I/O");
		printf("%llu\n", (unsigned long long)(now_us() - began));
	}
	return 0;
}

static void *worker(void *number)
{
	uint64_t *buffer = room();
	off_t offset = (off_t)(intptr_t)number * BLOCK;

	for (uint64_t round = 1; !ending; round++) {
		uint64_t word = round * 2654435761u + (uint64_t)offset;

		for (int i = 0; i < BLOCK / 8; i++)
			buffer[i] = word + (uint64_t)i;
		if (pwrite(fd, buffer, BLOCK, offset) != BLOCK)
			failed++;
		memset(buffer, 0, BLOCK);
		if (pread(fd, buffer, BLOCK, offset) != BLOCK)
			failed++;
		for (int i = 0; i < BLOCK / 8; i++)
			if (buffer[i] != word + (uint64_t)i) {
				wrong++;
				break;
			}
		done += 2;
	}
	return NULL;
}

static int load(const char *path, int threads)
{
	pthread_t *ids = calloc((size_t)threads, sizeof *ids);
	pthread_attr_t small;
	size_t size = (size_t)threads * BLOCK;
	char *zeros = calloc(1, size), byte;

	if (!zeros || !ids)
		die("calloc");
	fd = open(path, O_RDWR | O_CREAT, 0600); /* all at once, so that no direct write has to make room */
	if (fd < 0 || pwrite(fd, zeros, size, 0) != (ssize_t)size || fsync(fd) < 0)
		die(path);
	close(fd);
	fd = open(path, O_RDWR | O_DIRECT);
	if (fd < 0)
		die(path);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK);
	for (int i = 0; i < threads; i++)
		if ((errno = pthread_create(&ids[i], &small, worker, (void *)(intptr_t)i)))
			die("pthread_create");
	puts("goes");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	ending = true;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%lu %lu %lu\n", (unsigned long)done, (unsigned long)failed, (unsigned long)wrong);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 7 && !strcmp(argv[1], "times"))
		return times(argv[2][0], argv[3], atoll(argv[4]), atoll(argv[5]), atoi(argv[6]));
	if (argc == 4 && !strcmp(argv[1], "load"))
		return load(argv[2], atoi(argv[3]));
	fputs("usage: disk_meter times r|w|f PATH OFFSET STEP COUNT | load PATH THREADS\n", stderr);
	return 64;
}
