/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One program a hook. Each tells the judgement what the call is about and answers what it says.
 *
 * A hook has up to two programs with one body, by how it is attached: lsm, and fmod_ret on the security_ function
 * (where the bpf LSM is not active). The agent loads the one it needs. The body is a function of its own, so that
 * those whom no rule is about do not even save registers for it.
 */
#include "include/subjects.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MAY_WRITE 2
#define MAY_READ 4
#define PAGE_BYTES 4096

#define ARG(type, n) ((type)ctx[n])

#define BODY(name, expression)									\
	static __noinline int body__##name(__u64 *ctx)						\
	{											\
		return bounded(expression);							\
	}

#define PROGRAM(section, flavour, name)								\
	SEC("?" section) int flavour##__##name(__u64 *ctx)					\
	{											\
		return may_concern() ? body__##name(ctx) : 0;					\
	}

#define FMOD_RET(name, function, expression)							\
	BODY(name, expression)									\
	PROGRAM("fmod_ret/" #function, fmod_ret, name)

#define HOOK_AS(name, function, expression)							\
	FMOD_RET(name, function, expression)							\
	PROGRAM("lsm/" #name, lsm, name)

#define HOOK(name, expression) HOOK_AS(name, security_##name, expression)

static __always_inline int transfer(struct file *file, int mask)
{
	if (mask & MAY_READ)
		return about_file(OP_READ, file);
	if (mask & MAY_WRITE)
		return about_file(OP_WRITE, file);
	return 0;
}

/* truncate and ftruncate, of 64-bit and of 32-bit programs. Opening with O_TRUNC meets the same hooks, and is no
 * write: programs that do so are told of a write that fails when they write. */
static __always_inline bool truncating(void)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	switch (BPF_CORE_READ(regs, orig_ax)) {
	case 76: case 77:
	case 92: case 93: case 193: case 194:
		return true;
	}
	return false;
}

static __always_inline int rename(struct inode *from, struct dentry *old, struct inode *to, struct dentry *new)
{
	int answer = about_name(OP_RENAME, from, old);

	return answer ? answer : about_name(OP_RENAME, to, new);
}

static __always_inline int map(struct file *file)
{
	return file ? about_file(OP_MMAP, file) : about_kind(OP_MMAP, KIND_NONE);
}

HOOK(file_permission, transfer(ARG(struct file *, 0), ARG(int, 1)))
HOOK(path_truncate, truncating() ? about_path(OP_WRITE, ARG(struct path *, 0)) : 0)
HOOK(file_truncate, truncating() ? about_file(OP_WRITE, ARG(struct file *, 0)) : 0)
HOOK(file_open, about_file(OP_OPEN, ARG(struct file *, 0)))
HOOK(inode_create, about_new(ARG(struct inode *, 0), ARG(struct dentry *, 1), KIND_REGULAR))
HOOK(inode_mkdir, about_new(ARG(struct inode *, 0), ARG(struct dentry *, 1), KIND_DIRECTORY))
HOOK(inode_mknod, about_new(ARG(struct inode *, 0), ARG(struct dentry *, 1), kind_of_mode(ARG(__u32, 2))))
HOOK(inode_symlink, about_new(ARG(struct inode *, 0), ARG(struct dentry *, 1), KIND_OTHER))
HOOK(inode_link, about_new(ARG(struct inode *, 1), ARG(struct dentry *, 2),
			   kind_of(BPF_CORE_READ(ARG(struct dentry *, 0), d_inode))))
HOOK(inode_unlink, about_name(OP_UNLINK, ARG(struct inode *, 0), ARG(struct dentry *, 1)))
HOOK(inode_rmdir, about_name(OP_UNLINK, ARG(struct inode *, 0), ARG(struct dentry *, 1)))
HOOK(inode_rename, rename(ARG(struct inode *, 0), ARG(struct dentry *, 1), ARG(struct inode *, 2),
			  ARG(struct dentry *, 3)))
HOOK(inode_getattr, about_path(OP_STAT, ARG(struct path *, 0)))
HOOK(mmap_file, map(ARG(struct file *, 0)))
HOOK(task_alloc, about_kind(OP_FORK, ARG(unsigned long, 1) & CLONE_THREAD ? KIND_THREAD : KIND_PROCESS))
HOOK_AS(bprm_check_security, security_bprm_check,
	about_file(OP_EXEC, BPF_CORE_READ(ARG(struct linux_binprm *, 0), file)))
HOOK(socket_create, ARG(int, 3) ? 0 : about_family(OP_SOCKET, ARG(__u32, 0)))
HOOK(socket_bind, about_address(OP_BIND, ARG(void *, 1)))
HOOK(socket_connect, about_address(OP_CONNECT, ARG(void *, 1)))
HOOK(socket_listen, about_listener(OP_LISTEN, ARG(struct socket *, 0)))
HOOK(socket_accept, about_listener(OP_ACCEPT, ARG(struct socket *, 0)))
HOOK(socket_sendmsg, about_message(OP_SEND, ARG(struct socket *, 0), ARG(struct msghdr *, 1), ARG(__u32, 2)))
HOOK(socket_recvmsg, about_message(OP_RECV, ARG(struct socket *, 0), ARG(struct msghdr *, 1), ARG(__u32, 2)))
HOOK(file_ioctl, about_file(OP_IOCTL, ARG(struct file *, 0)))
HOOK(file_ioctl_compat, about_file(OP_IOCTL, ARG(struct file *, 0)))
HOOK(task_kill, about_kind(OP_KILL, KIND_NONE))
HOOK(sb_mount, about_kind(OP_MOUNT, KIND_NONE))
HOOK(sb_umount, about_kind(OP_MOUNT, KIND_NONE))
HOOK(move_mount, about_kind(OP_MOUNT, KIND_NONE))
HOOK(file_lock, about_file(OP_LOCK, ARG(struct file *, 0)))
/* What the lsm hook of this name answers is only about privilege; the function around it can refuse memory. */
FMOD_RET(vm_enough_memory, security_vm_enough_memory_mm, about_size(OP_MEMORY, ARG(__u64, 1) * PAGE_BYTES))

/* The socket hooks of control groups, attached at the root: for kernels whose security hooks cannot be reached. They
 * see IPv4 and IPv6 only, and take what is answered from bpf_set_retval. */
#define SOCKET_HOOK(name, operation, four)							\
	SEC("?cgroup/" #name) int cgroup__##name(struct bpf_sock_addr *ctx)			\
	{											\
		int answer = may_concern() ? bounded(about_sock_addr(operation, ctx, four)) : 0; \
												\
		if (!answer)									\
			return 1;								\
		bpf_set_retval(answer);								\
		return 0;									\
	}

SOCKET_HOOK(connect4, OP_CONNECT, true)
SOCKET_HOOK(connect6, OP_CONNECT, false)
SOCKET_HOOK(bind4, OP_BIND, true)
SOCKET_HOOK(bind6, OP_BIND, false)

/* A system call by name, where the kernel allows to override it: the agent sets what it attaches to. */

static __noinline int override(struct pt_regs *regs)
{
	return bounded(about_call(call_operation, call_has_descriptor, BPF_CORE_READ(regs, di)));
}

SEC("?fmod_ret/__x64_sys_close") long override__fmod_ret(__u64 *ctx)
{
	return may_concern() ? override(ARG(struct pt_regs *, 0)) : 0;
}

SEC("?kprobe") int override__kprobe(struct pt_regs *ctx)
{
	int answer = may_concern() ? override((void *)ctx->di) : 0;

	if (answer)
		bpf_override_return((void *)ctx, (long)answer);
	return 0;
}
