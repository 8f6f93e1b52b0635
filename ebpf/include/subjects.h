/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* From what a hook is given to what the judgement asks. One function for each shape of arguments. */
#pragma once
#include "judge.h"
#include "operations.h"

#define AF_INET 2
#define AF_INET6 10
#define CLONE_THREAD 0x00010000

static __always_inline int about_file(__u64 operation, struct file *file)
{
	struct subject call = { .operation = operation };

	call.inode = (__u64)BPF_CORE_READ(file, f_inode);
	call.dentry = (__u64)BPF_CORE_READ(file, f_path.dentry);
	call.open_flags = BPF_CORE_READ(file, f_flags);
	call.kind = kind_of((void *)call.inode);
	return judge(&call);
}

/* A name in a directory; the inode is the directory's where the name has none. */
static __always_inline int about_name(__u64 operation, struct inode *directory, struct dentry *dentry)
{
	struct subject call = { .operation = operation };
	struct inode *inode = BPF_CORE_READ(dentry, d_inode);

	call.dentry = (__u64)dentry;
	call.inode = inode ? (__u64)inode : (__u64)directory;
	if (inode)
		call.kind = kind_of(inode);
	return judge(&call);
}

/* A name that is being made: it has no inode yet, and will be of this kind. */
static __always_inline int about_new(struct inode *directory, struct dentry *dentry, __u32 kind)
{
	struct subject call = { .operation = OP_CREATE, .kind = kind };

	call.dentry = (__u64)dentry;
	call.inode = (__u64)directory;
	return judge(&call);
}

static __always_inline int about_path(__u64 operation, struct path *path)
{
	struct dentry *dentry = BPF_CORE_READ(path, dentry);

	return about_name(operation, BPF_CORE_READ(dentry, d_inode), dentry);
}

static __always_inline int about_size(__u64 operation, __u64 size)
{
	struct subject call = { .operation = operation, .size = size };

	return judge(&call);
}

static __always_inline int about_kind(__u64 operation, __u32 kind)
{
	struct subject call = { .operation = operation, .kind = kind };

	return judge(&call);
}

static __always_inline void read_address(struct subject *call, void *address)
{
	struct { __u16 family; __be16 port; __be32 rest[6]; } raw = {};

	bpf_probe_read_kernel(&raw.family, sizeof(raw.family), address);
	call->family = raw.family;
	if (raw.family == AF_INET) {
		bpf_probe_read_kernel(&raw, 8, address);
		call->address[0] = raw.rest[0];
	} else if (raw.family == AF_INET6) {
		bpf_probe_read_kernel(&raw, 28, address);
		call->address[0] = raw.rest[1];
		call->address[1] = raw.rest[2];
		call->address[2] = raw.rest[3];
		call->address[3] = raw.rest[4];
	}
	call->port = bpf_ntohs(raw.port);
}

/* The far end of a connected socket, or the near port of one that has none. */
static __always_inline void read_peer(struct subject *call, struct socket *socket)
{
	struct sock *sk = BPF_CORE_READ(socket, sk);

	call->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	call->port = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (call->family == AF_INET) {
		call->address[0] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	} else if (call->family == AF_INET6) {
		call->address[0] = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[0]);
		call->address[1] = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[1]);
		call->address[2] = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[2]);
		call->address[3] = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[3]);
	} else {
		call->port = 0;
	}
}

static __always_inline int about_address(__u64 operation, void *address)
{
	struct subject call = { .operation = operation, .kind = KIND_SOCKET };

	read_address(&call, address);
	return judge(&call);
}

/* An IPv4 hook may not look at IPv6 fields, nor the other way round: `four` is known when this is compiled. */
static __always_inline int about_sock_addr(__u64 operation, struct bpf_sock_addr *ctx, bool four)
{
	struct subject call = { .operation = operation, .kind = KIND_SOCKET, .family = four ? AF_INET : AF_INET6 };

	call.port = bpf_ntohs(ctx->user_port);
	if (four) {
		call.address[0] = ctx->user_ip4;
	} else {
		call.address[0] = ctx->user_ip6[0];
		call.address[1] = ctx->user_ip6[1];
		call.address[2] = ctx->user_ip6[2];
		call.address[3] = ctx->user_ip6[3];
	}
	return judge(&call);
}

static __always_inline int about_listener(__u64 operation, struct socket *socket)
{
	struct subject call = { .operation = operation, .kind = KIND_SOCKET };

	read_peer(&call, socket);
	if (call.family == AF_INET || call.family == AF_INET6)
		call.port = BPF_CORE_READ(socket, sk, __sk_common.skc_num);
	return judge(&call);
}

static __always_inline int about_message(__u64 operation, struct socket *socket, struct msghdr *message, __u64 size)
{
	struct subject call = { .operation = operation, .kind = KIND_SOCKET, .size = size };
	void *name = operation == OP_SEND ? BPF_CORE_READ(message, msg_name) : 0;

	read_peer(&call, socket);
	if (name && (call.family == AF_INET || call.family == AF_INET6))
		read_address(&call, name);
	return judge(&call);
}

static __always_inline int about_family(__u64 operation, __u32 family)
{
	struct subject call = { .operation = operation, .kind = KIND_SOCKET, .family = family };

	return judge(&call);
}

/* A system call as such; with a file where its first argument is a descriptor. */
static __always_inline int about_call(__u64 operation, bool has_descriptor, __u64 descriptor)
{
	struct subject call = { .operation = operation };

	if (has_descriptor) {
		struct task_struct *task = bpf_get_current_task_btf();
		struct fdtable *table = BPF_CORE_READ(task, files, fdt);
		struct file *file = 0;

		if (descriptor < BPF_CORE_READ(table, max_fds))
			bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + descriptor);
		if (file) {
			call.inode = (__u64)BPF_CORE_READ(file, f_inode);
			call.dentry = (__u64)BPF_CORE_READ(file, f_path.dentry);
			call.open_flags = BPF_CORE_READ(file, f_flags);
			call.kind = kind_of((void *)call.inode);
		}
	}
	return judge(&call);
}
