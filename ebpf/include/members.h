/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which scopes a caller is in: by cgroup, and by process. */
#pragma once
#include "rules.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_MEMBERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct tokens);
} cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_MEMBERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct tokens);
} processes SEC(".maps");

/* The agent and the programs write single bytes. Where it lies is known when a program is loaded: no look-up. */
struct hints hints SEC(".data.hints");

/* Cgroups that do not exist yet, by path: their tokens are given to them as they are made. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_RULES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct cgroup_path);
	__type(value, struct tokens);
} awaited SEC(".maps");
