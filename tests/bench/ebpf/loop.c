/* Makes one system call again and again and tells the time of one, in nanoseconds by CLOCK_MONOTONIC.
 *
 *   loop CALL CALLS ROUNDS [none|other|errno]
 *
 * CALL: pread (4 KiB, cached), openat (with its close), connect (TCP, to a closed port of 127.0.0.1). ROUNDS times
 * CALLS calls are made after a warm-up, each round is timed. Before the first it says "ready" and waits for
 * standard input. Output: the times, then how many calls failed in all and how many were made. The last word asks for a seccomp filter first: on another call (getppid), or one that
 * answers EIO to this one. Under `-icount shift=0` a nanosecond is an instruction.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int file, tcp;
static char page[4096];
static const char *path;
static struct sockaddr_in closed;

static long do_pread(void) { return syscall(SYS_pread64, file, page, sizeof(page), 0); }

static long do_openat(void)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);

	if (fd >= 0)
		close(fd);
	return fd;
}

/* A refused connection is what success looks like here; only another answer counts as a failure. */
static long do_connect(void)
{
	long answer = syscall(SYS_connect, tcp, &closed, sizeof(closed));

	return answer < 0 && errno == ECONNREFUSED ? 0 : answer;
}

static const struct {
	const char *name;
	long number;
	long (*make)(void);
} calls[] = {
	{ "pread", SYS_pread64, do_pread },
	{ "openat", SYS_openat, do_openat },
	{ "connect", SYS_connect, do_connect },
};

static void filter(long number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("seccomp");
		exit(2);
	}
}

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void prepare(void)
{
	path = getenv("LOOP_FILE");
	file = path ? open(path, O_RDONLY) : -1;
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	if (file < 0 || tcp < 0 || pread(file, page, sizeof(page), 0) != sizeof(page)) {
		perror("LOOP_FILE, a file of at least 4 KiB");
		exit(2);
	}
	closed.sin_family = AF_INET;
	closed.sin_port = htons(9);
	closed.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

int main(int argc, char **argv)
{
	long count = argc > 3 ? atol(argv[2]) : 0, rounds = argc > 3 ? atol(argv[3]) : 0, failed = 0, made = 0;
	unsigned which = 0;
	struct pollfd released = { .fd = 0, .events = POLLIN };

	while (argc > 1 && which < sizeof(calls) / sizeof(*calls) && strcmp(calls[which].name, argv[1]))
		which++;
	if (count < 1 || rounds < 1 || which == sizeof(calls) / sizeof(*calls)) {
		fprintf(stderr, "loop pread|openat|connect CALLS ROUNDS [none|other|errno]\n");
		return 64;
	}
	prepare();
	if (argc > 4 && strcmp(argv[4], "none"))
		filter(strcmp(argv[4], "errno") ? SYS_getppid : calls[which].number);
	if (write(1, "ready\n", 6) != 6 || poll(&released, 1, -1) != 1)	/* no call that is failed here */
		return 2;
	for (long round = -1; round < rounds; round++) {	/* the first one warms up */
		long times = round < 0 ? 1 + count / 10 : count;
		long long start = now();

		for (long i = 0; i < times; i++)
			failed += calls[which].make() < 0;
		made += times;
		if (round >= 0)
			printf("%.2f ", (double)(now() - start) / times);
	}
	printf("%ld %ld\n", failed, made);
	return 0;
}
