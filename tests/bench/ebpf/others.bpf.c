/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What our rules are held against: the usual injector's program, one for each fault, that compares the caller's
 * process with its target and answers for the system call itself. */
#include "include/kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define EIO 5

volatile const __u64 target = 0;	/* process */

static __always_inline bool aimed(void)
{
	return bpf_get_current_pid_tgid() >> 32 == target;
}

SEC("?fmod_ret/__x64_sys_close") long other__fmod_ret(__u64 *ctx)
{
	return aimed() ? -EIO : 0;
}

SEC("?kprobe") int other__kprobe(void *ctx)
{
	if (aimed())
		bpf_override_return(ctx, -EIO);
	return 0;
}
