/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Operations by number. System calls by name are CALL_BASE + their number. ebpf/operations.py has the names. */
#pragma once

enum operation {
	OP_READ = 1,
	OP_WRITE,
	OP_OPEN,
	OP_CREATE,
	OP_UNLINK,
	OP_RENAME,
	OP_STAT,
	OP_FSYNC,
	OP_MMAP,
	OP_MEMORY,
	OP_FORK,
	OP_EXEC,
	OP_SOCKET,
	OP_BIND,
	OP_CONNECT,
	OP_LISTEN,
	OP_ACCEPT,
	OP_SEND,
	OP_RECV,
	OP_IOCTL,
	OP_KILL,
	OP_MOUNT,
	OP_LOCK,
	CALL_BASE = 4096,
};
