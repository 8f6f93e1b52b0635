/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Who is in a scope, kept by the kernel itself: a unit that is started again and a child that is forked are members
 * before they run their first instruction, and what is gone is forgotten. */
#include "include/members.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Add tokens to those that are there; any there is no room for are lost. */
__noinline int add(struct tokens *tokens, struct tokens *more)
{
	if (!tokens || !more)
		return 0;
	for (int i = 0; i < MAX_TOKENS; i++)
		for (int j = 0; more->at[i] && j < MAX_TOKENS; j++)
			if (!tokens->at[j] || tokens->at[j] == more->at[i]) {
				tokens->at[j] = more->at[i];
				break;
			}
	return 0;
}

SEC("?tp_btf/cgroup_mkdir") int members__cgroup_mkdir(__u64 *ctx)
{
	struct cgroup *cgroup = (void *)ctx[0];
	struct tokens *inherited, *given, *first, *own;
	struct cgroup_path path = {};
	__u64 id;

	if (BPF_CORE_READ(cgroup, root, hierarchy_id) != 0)	/* a hierarchy of version 1 */
		return 0;
	bpf_probe_read_kernel_str(path.text, sizeof(path.text), (void *)ctx[1]);
	given = bpf_map_lookup_elem(&awaited, &path);
	id = BPF_CORE_READ(cgroup, self.parent, cgroup, kn, id);
	inherited = bpf_map_lookup_elem(&cgroups, &id);
	first = inherited;
	if (!first)
		first = given;
	if (!first)
		return 0;
	id = BPF_CORE_READ(cgroup, kn, id);
	bpf_map_update_elem(&cgroups, &id, first, BPF_ANY);
	own = bpf_map_lookup_elem(&cgroups, &id);
	if (own && inherited && given)
		add(own, given);
	hints.cgroups[id % HINTS] = 1;
	return 0;
}

SEC("?tp_btf/cgroup_rmdir") int members__cgroup_rmdir(__u64 *ctx)
{
	struct cgroup *cgroup = (void *)ctx[0];
	__u64 id = BPF_CORE_READ(cgroup, kn, id);

	if (BPF_CORE_READ(cgroup, root, hierarchy_id) == 0)
		bpf_map_delete_elem(&cgroups, &id);
	return 0;
}

SEC("?tp_btf/sched_process_fork") int members__sched_process_fork(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	__u64 from = BPF_CORE_READ(parent, tgid), to = BPF_CORE_READ(child, tgid);
	struct tokens *tokens, handed = {};
	bool any = false;

	if (from == to)
		return 0;
	tokens = bpf_map_lookup_elem(&processes, &from);
	if (!tokens)
		return 0;
	for (int i = 0; i < MAX_TOKENS; i++)
		if (tokens->at[i] & INHERITED) {
			handed.at[i] = tokens->at[i];
			any = true;
		}
	if (any) {
		bpf_map_update_elem(&processes, &to, &handed, BPF_ANY);
		hints.processes[to % HINTS] = 1;
	}
	return 0;
}

SEC("?tp_btf/sched_process_exit") int members__sched_process_exit(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u64 process = BPF_CORE_READ(task, tgid);

	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&processes, &process);
	return 0;
}
