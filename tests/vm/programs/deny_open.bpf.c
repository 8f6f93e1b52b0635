// A CO-RE program: opening a file fails for one process, which the map `target` names, and is counted.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define EACCES 13

struct counters {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} target SEC(".maps");

struct file;

static __always_inline void count(__u32 index)
{
	__u64 *value = bpf_map_lookup_elem(&hits, &index);

	if (value)
		*value += 1;
}

SEC("lsm/file_open")
int BPF_PROG(deny_open, struct file *file)
{
	__u32 first = 0;
	__u64 *pid = bpf_map_lookup_elem(&target, &first);

	count(1);
	if (!pid || bpf_get_current_pid_tgid() >> 32 != *pid)
		return 0;
	count(0);
	return -EACCES;
}

char LICENSE[] SEC("license") = "GPL";
