// A program that the verifier refuses: it reads through a pointer that may be null.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

SEC("raw_tp/sys_enter")
int refused(void *context)
{
	__u32 first = 0;
	__u64 *value = bpf_map_lookup_elem(&hits, &first);

	return *value;
}

char LICENSE[] SEC("license") = "GPL";
