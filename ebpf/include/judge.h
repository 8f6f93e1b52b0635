/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The judgement every hook shares: which rules apply to this call, and what is answered. */
#pragma once
#include "members.h"
#include "schedule.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define PF_KTHREAD 0x00200000

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_BINDINGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct binding_key);
	__type(value, struct binding);
} bindings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RULES);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} samples SEC(".maps");

/* Set before loading. The first two are for a system call by name; some kinds of program may not send signals. */
volatile const __u64 call_operation = 0;
volatile const __u64 call_has_descriptor = 0;
volatile const __u64 cannot_signal = 0;

/* What a call is about, as far as its hook can tell. */
struct subject {
	__u64 operation;
	__u64 size;
	__u64 dentry, inode;	/* addresses: read, never followed by the verifier */
	__u32 kind;
	__u32 open_flags;
	__u32 family;
	__u32 port;
	__u32 address[4];
};

static __always_inline __u32 kind_of_mode(__u32 mode)
{
	switch (mode & 0170000) {
	case 0100000:
		return KIND_REGULAR;
	case 0040000:
		return KIND_DIRECTORY;
	case 0060000:
		return KIND_BLOCK;
	case 0020000:
		return KIND_CHARACTER;
	case 0010000:
		return KIND_PIPE;
	case 0140000:
		return KIND_SOCKET;
	}
	return KIND_OTHER;
}

static __always_inline __u32 kind_of(struct inode *inode)
{
	return kind_of_mode(BPF_CORE_READ(inode, i_mode));
}

/* Where a comparison of a name with a pattern stands. */
struct comparison {
	const struct label *pattern, *name;
	__u32 p, n;		/* positions */
	__u32 star, mark;	/* where the last * was met */
	__u32 starred;
	int result;
};

static long compare(__u64 round, struct comparison *at)
{
	__u32 p = at->p & (NAME_LEN - 1), n = at->n & (NAME_LEN - 1);
	char want = at->pattern->text[p], have = at->name->text[n];

	if (have == 0 && want == 0) {
		at->result = 1;
		return 1;
	}
	if (want == '*') {
		at->p = at->star = (p + 1) & (NAME_LEN - 1);
		at->mark = n;
		at->starred = 1;
	} else if (have == 0) {
		return 1;
	} else if (want == have || want == '?') {
		at->p = (p + 1) & (NAME_LEN - 1);
		at->n = (n + 1) & (NAME_LEN - 1);
	} else if (at->starred) {
		at->p = at->star & (NAME_LEN - 1);
		at->n = at->mark = (at->mark + 1) & (NAME_LEN - 1);
	} else {
		return 1;
	}
	return 0;
}

/* Does `name` fit `pattern` (* and ?)? Positions begin at `zero`, which the verifier takes for any number, and stay
 * below NAME_LEN: every round then looks the same to it, and it need not follow each way through the loop. */
__noinline int fits(const struct label *pattern, const struct label *name, __u32 zero)
{
	struct comparison at = { .pattern = pattern, .name = name, .starred = zero & 1 };

	if (!pattern || !name)
		return 0;
	at.p = at.n = at.star = at.mark = zero & (NAME_LEN - 1);
	bpf_loop(NAME_LEN * NAME_LEN, compare, &at, 0);
	return at.result;
}

static __always_inline bool is_root(struct rule *rule, struct dentry *dentry)
{
	struct inode *inode = BPF_CORE_READ(dentry, d_inode);
	__u64 number, device;

	if (!inode)
		return false;
	number = BPF_CORE_READ(inode, i_ino);
	device = BPF_CORE_READ(inode, i_sb, s_dev);
	for (int i = 0; i < MAX_ROOTS; i++)
		if (i < rule->root_count && rule->roots[i].inode == number && rule->roots[i].device == device)
			return true;
	return false;
}

/* A way up from a file to the directories a rule names. */
struct ascent {
	struct rule *rule;
	__u64 dentry;
	int result;
};

static long ascend(__u64 round, struct ascent *at)
{
	struct dentry *dentry = (void *)at->dentry;
	__u64 parent;

	if (is_root(at->rule, dentry)) {
		at->result = 1;
		return 1;
	}
	parent = (__u64)BPF_CORE_READ(dentry, d_parent);
	if (!(at->rule->wants & WANT_ANY_DEPTH) || parent == at->dentry)
		return 1;
	at->dentry = parent;
	return 0;
}

/* Path predicate: walk up from the name that was opened. The last parts must fit the patterns, then a root must
 * follow, at once or (WANT_ANY_DEPTH) after some directories. Directories are known by device and inode, so bind
 * mounts, mount namespaces and renames cannot hide a file. */
__noinline int path_fits(struct rule *rule, __u64 address)
{
	struct dentry *dentry = (void *)address;
	struct ascent at = { .rule = rule };
	struct label name;

	if (!rule || !dentry)
		return 0;
	for (int i = 0; i < MAX_PARTS; i++) {
		if (i >= rule->part_count)
			break;
		__builtin_memset(&name, 0, sizeof(name));
		bpf_probe_read_kernel_str(name.text, sizeof(name.text), BPF_CORE_READ(dentry, d_name.name));
		if (!fits(&rule->parts[i], &name, rule->zero))
			return 0;
		dentry = BPF_CORE_READ(dentry, d_parent);
	}
	at.dentry = (__u64)dentry;
	bpf_loop(MAX_DEPTH, ascend, &at, 0);
	return at.result;
}

static __always_inline bool address_fits(struct rule *rule, struct subject *call)
{
	__u32 bits = rule->prefix_bits;

	if (call->family != rule->family)
		return false;
	for (int i = 0; i < 4; i++) {
		__u32 have = bpf_ntohl(call->address[i]), want = bpf_ntohl(rule->address[i]);
		__u32 here = bits > 32 ? 32 : bits;

		if (here && (have ^ want) >> (32 - here))
			return false;
		bits -= here;
	}
	return true;
}

__noinline int matches(struct rule *rule, struct subject *call)
{
	if (!rule || !call)
		return 0;
	if (rule->wants & WANT_KIND && !(rule->kinds & call->kind))
		return 0;
	if (rule->wants & WANT_SIZE && call->size < rule->size)
		return 0;
	if (rule->wants & WANT_FLAGS && !(rule->open_flags & call->open_flags))
		return 0;
	if (rule->wants & WANT_FAMILY && call->family != rule->family)
		return 0;
	if (rule->wants & WANT_PORT && call->port != rule->port)
		return 0;
	if (rule->wants & WANT_ADDRESS && !address_fits(rule, call))
		return 0;
	if (rule->wants & WANT_CALL) {
		struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

		if (BPF_CORE_READ(regs, orig_ax) != rule->call)
			return 0;
	}
	if (rule->wants & WANT_DEVICE) {
		struct inode *inode = (void *)call->inode;
		__u32 on = BPF_CORE_READ(inode, i_sb, s_dev);
		__u32 is = call->kind == KIND_BLOCK ? BPF_CORE_READ(inode, i_rdev) : on;

		if (rule->device != on && rule->device != is)
			return 0;
	}
	if (rule->wants & WANT_PATH && !path_fits(rule, call->dentry))
		return 0;
	return 1;
}

/* pid 1, kernel threads, the agent and whatever serves ssh: never hit, whatever the scope. */
static __always_inline bool guarded(struct config *conf)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	char comm[16];

	if (process <= 1 || process == conf->agent || task->flags & PF_KTHREAD)
		return true;
	bpf_get_current_comm(comm, sizeof(comm));
	return comm[0] == 's' && comm[1] == 's' && comm[2] == 'h' && comm[3] == 'd';
}

__noinline int tell(struct rule *rule, __u32 slot, struct subject *call, __u64 now)
{
	struct sample *sample;
	__u64 who;

	if (!rule || !call)
		return 0;
	sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
	if (!sample)
		return 0;
	__builtin_memset(sample, 0, sizeof(*sample));
	who = bpf_get_current_pid_tgid();
	sample->time_ns = now;
	sample->operation = call->operation;
	sample->slot = slot;
	sample->pid = who >> 32;
	sample->tid = (__u32)who;
	sample->answer = rule->answer;
	sample->family = call->family;
	sample->port = call->port;
	__builtin_memcpy(sample->address, call->address, sizeof(sample->address));
	bpf_get_current_comm(sample->comm, sizeof(sample->comm));
	if (call->dentry) {
		struct dentry *dentry = (void *)call->dentry, *parent = BPF_CORE_READ(dentry, d_parent);

		bpf_probe_read_kernel_str(sample->name.text, NAME_LEN, BPF_CORE_READ(dentry, d_name.name));
		if (parent != dentry)
			bpf_probe_read_kernel_str(sample->parent.text, NAME_LEN, BPF_CORE_READ(parent, d_name.name));
	}
	bpf_ringbuf_submit(sample, 0);
	return 0;
}

#define SAMPLE_EVERY_NS 1000000	/* at most a thousand samples a second and rule */

/* One rule's word on one call: 0, or a negative errno. */
__noinline int verdict(__u32 slot, struct subject *call, struct config *conf)
{
	struct rule *rule = bpf_map_lookup_elem(&rules, &slot);
	struct counters *count = bpf_map_lookup_elem(&counters, &slot);
	__u64 now, n;

	if (!rule || !count || !call || !conf)
		return 0;
	__sync_fetch_and_add(&count->seen, 1);
	if (!matches(rule, call))
		return 0;
	__sync_fetch_and_add(&count->matched, 1);
	if (guarded(conf)) {
		__sync_fetch_and_add(&count->by_guard, 1);
		return 0;
	}
	now = bpf_ktime_get_boot_ns();
	if (now >= rule->deadline_ns) {
		__sync_fetch_and_add(&count->by_deadline, 1);
		return 0;
	}
	n = __sync_fetch_and_add(&count->ticket, 1);
	if (!scheduled(rule, n, now)) {
		__sync_fetch_and_add(&count->by_schedule, 1);
		return 0;
	}
	n = __sync_fetch_and_add(&count->injected, 1);
	if (rule->budget && n >= rule->budget) {
		__sync_fetch_and_add(&count->injected, -1);
		__sync_fetch_and_add(&count->by_budget, 1);
		return 0;
	}
	count->last_hit_ns = now;
	if (!cannot_signal && rule->signal)
		bpf_send_signal(rule->signal);
	if (now - count->last_sample_ns >= SAMPLE_EVERY_NS) {
		count->last_sample_ns = now;
		tell(rule, slot, call, now);
	}
	return rule->answer;
}

static __always_inline int ask_scope(struct tokens *tokens, struct subject *call, struct config *conf)
{
	if (!tokens || !call || !conf)
		return 0;
	for (int i = 0; i < MAX_TOKENS; i++) {
		struct binding_key key = { .token = tokens->at[i], .operation = call->operation };
		struct binding *binding;

		if (!key.token)
			continue;
		binding = bpf_map_lookup_elem(&bindings, &key);
		if (!binding)
			continue;
		for (int j = 0; j < MAX_COMPOSED; j++) {
			int answer;

			if (j >= binding->count)
				break;
			answer = verdict(binding->slot[j], call, conf);
			if (answer)
				return answer;
		}
	}
	return 0;
}

/* Can a rule be about the caller? A few instructions: what everybody pays who is in no scope. */
static __always_inline bool may_concern(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (hints.cgroups[task->cgroups->dfl_cgrp->kn->id % HINTS])
		return true;
	return hints.processes[0] && hints.processes[(__u32)task->tgid % HINTS];
}

/* The judgement: the first rule that bites answers. */
__noinline int judge(struct subject *call)
{
	__u32 zero = 0;
	struct config *conf = bpf_map_lookup_elem(&config, &zero);
	struct tokens *tokens;
	int answer;
	__u64 id;

	if (!conf || !call)
		return 0;
	if (conf->processes) {
		__u64 process = bpf_get_current_pid_tgid() >> 32;

		tokens = bpf_map_lookup_elem(&processes, &process);
		if (tokens) {
			answer = ask_scope(tokens, call, conf);
			if (answer)
				return answer;
		}
	}
	id = bpf_get_current_cgroup_id();
	tokens = bpf_map_lookup_elem(&cgroups, &id);
	return tokens ? ask_scope(tokens, call, conf) : 0;
}

/* What the verifier can prove to be an errno: 6.12 refuses an LSM program whose answer it cannot bound. */
static __always_inline int bounded(int answer)
{
	if (answer >= 0)
		return 0;
	asm volatile("" : "+r"(answer));
	if (answer < -4095)
		return 0;
	return answer;
}
