/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The rule table: what the agent and the programs agree on. ebpf/loader/abi.py has the same in ctypes, and a test
 * holds the two against each other by the type information in the compiled object.
 *
 * A cgroup has the tokens of all cgroups above it, too. Whoever is in no scope is told by one byte (struct hints).
 * Others' calls are looked up in three steps, each a hash look-up: cost does not grow with the number of rules.
 *   members:  cgroup id or process id of the caller                    ->  tokens, one for each scope it is in
 *   bindings: (token, operation)                                       ->  slots of the rules that apply
 *   rules, counters: slot                                              ->  the rule, and what it has done
 */
#pragma once
#include "kernel.h"

#define MAX_RULES 4096
#define MAX_MEMBERS 16384
#define MAX_BINDINGS 32768
#define MAX_TOKENS 16	/* scopes that hold one cgroup or process */
#define MAX_COMPOSED 16	/* rules of one scope and operation */
#define HINTS 65536	/* remainders of an id that are told apart before anything is looked up */
#define MAX_ROOTS 4	/* directories of one path, its mounts included */
#define MAX_PARTS 4	/* parts of a path pattern */
#define MAX_DEPTH 48	/* directories between a file and the directory that a rule names */
#define NAME_LEN 64
#define PATH_LEN 256

enum schedule_kind {
	SCHEDULE_ALWAYS,
	SCHEDULE_PROBABILITY,	/* a of 2^32 */
	SCHEDULE_EVERY,		/* each a-th */
	SCHEDULE_AFTER,		/* all but the first a */
	SCHEDULE_FIRST,		/* only the first a */
	SCHEDULE_BURST,		/* a ns on, b ns off */
	SCHEDULE_RATIO,		/* exactly a of every b */
};

/* Which predicates of a rule are set. */
enum predicate {
	WANT_KIND = 1,		/* subject's kind is in `kinds` */
	WANT_DEVICE = 2,	/* the file lies on, or is, device `device` */
	WANT_PATH = 4,		/* the file lies below one of `roots`, by `parts` */
	WANT_ANY_DEPTH = 8,	/* any number of directories between root and parts */
	WANT_ADDRESS = 16,
	WANT_PORT = 32,
	WANT_SIZE = 64,		/* at least `size` bytes */
	WANT_FLAGS = 128,	/* opened with one of `open_flags` */
	WANT_FAMILY = 256,	/* a socket of address family `family` */
	WANT_CALL = 512,	/* in the system call of number `call` */
};

enum subject_kind {
	KIND_NONE = 0,
	KIND_REGULAR = 1,
	KIND_DIRECTORY = 2,
	KIND_BLOCK = 4,
	KIND_CHARACTER = 8,
	KIND_PIPE = 16,
	KIND_SOCKET = 32,
	KIND_OTHER = 64,	/* anonymous inodes: eventfd, epoll, io_uring … */
	KIND_THREAD = 128,	/* of fork: a thread, not a process */
	KIND_PROCESS = 256,
};

struct root {
	__u64 inode;
	__u64 device;
};

struct label {
	char text[NAME_LEN];
};

struct rule {
	__u64 deadline_ns;	/* CLOCK_BOOTTIME; 0 is in the past */
	__u64 armed_ns;
	__u64 budget;		/* most injections; 0: no limit */
	__u64 seed;
	__u64 a, b;		/* of the schedule */
	__u64 size;
	__s32 answer;		/* -errno; 0: the call goes on */
	__u32 signal;		/* sent to the caller; 0: none */
	__u32 schedule;
	__u32 wants;
	__u32 kinds;
	__u32 device;		/* as the kernel numbers it: major << 20 | minor */
	__u32 open_flags;
	__u32 family;
	__u32 port;
	__u32 prefix_bits;
	__u32 address[4];	/* network order; IPv4 in the first */
	__u32 root_count;
	__u32 part_count;
	__u32 zero;	/* always 0, and the verifier does not know it */
	__u32 call;
	struct root roots[MAX_ROOTS];
	struct label parts[MAX_PARTS];	/* last part first; * and ? are wildcards */
};

struct counters {
	__u64 seen;		/* calls of the operation by the scope */
	__u64 matched;		/* of these, with all predicates */
	__u64 injected;
	__u64 by_deadline, by_budget, by_schedule, by_guard;	/* matched, and not injected */
	__u64 ticket;		/* number of the next call that the schedule decides on */
	__u64 last_hit_ns;
	__u64 last_sample_ns;
};

/* A scope. A process hands tokens with this bit to its children. */
#define INHERITED (1ULL << 63)

struct tokens {
	__u64 at[MAX_TOKENS];	/* 0: free */
};

struct binding_key {
	__u64 token;
	__u64 operation;
};

struct binding {
	__u32 count;
	__u32 slot[MAX_COMPOSED];
};

struct config {
	__u64 processes;	/* number of member processes */
	__u32 agent;		/* never hit */
	__u32 spare;
};

/* Who may be in a scope, by the remainder of the id: not 0 for every member, and for few others. A byte is set before
 * its member runs, and all are cleared when no scope of the kind is left. processes[0]: there are any. */
struct hints {
	__u8 cgroups[HINTS];
	__u8 processes[HINTS];
};

/* A cgroup by its path below the cgroup root, filled up with zeroes: it gets its tokens when it is made. */
struct cgroup_path {
	char text[PATH_LEN];
};

/* A hit, as it goes through the ring buffer. */
struct sample {
	__u64 time_ns;
	__u64 operation;
	__u32 slot;
	__u32 pid, tid;
	__s32 answer;
	__u32 family;
	__u32 port;
	__u32 address[4];
	char comm[16];
	struct label name;
	struct label parent;
};
