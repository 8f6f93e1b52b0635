"""Runs on a node: reads one block of a file by every entry point there is; prints what each answered, as JSON.

Uses nothing of this project. Arguments: the file, the byte where the block begins. The page cache has to be asked
each time, so the block is evicted before each try.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

PATH, OFFSET, SIZE = sys.argv[1], int(sys.argv[2]), 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def failed() -> NoReturn:
    raise OSError(ctypes.get_errno(), "")


def read(fd: int) -> int:
    os.lseek(fd, OFFSET, os.SEEK_SET)
    return len(os.read(fd, SIZE))


def preadv2(fd: int) -> int:
    return os.preadv(fd, [bytearray(SIZE)], OFFSET, os.RWF_HIPRI * 0)


def readv(fd: int) -> int:
    os.lseek(fd, OFFSET, os.SEEK_SET)
    return os.readv(fd, [bytearray(100), bytearray(SIZE - 100)])


def direct(_: int) -> int:
    fd = os.open(PATH, os.O_RDONLY | os.O_DIRECT)
    return os.preadv(fd, [mmap.mmap(-1, SIZE)], OFFSET)


def mapped(fd: int) -> int | str:
    pid = os.fork()
    if pid == 0:
        view = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os._exit(0 * view[OFFSET])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        return signal.Signals(-status).name
    return SIZE


def sendfile(fd: int) -> int:
    left, right = socket.socketpair()
    return os.sendfile(left.fileno(), fd, OFFSET, SIZE) * bool(right)


def splice(fd: int) -> int:
    reading, writing = os.pipe()
    return os.splice(fd, writing, SIZE, offset_src=OFFSET) * bool(reading)


def copy_file_range(fd: int) -> int:
    out = os.open(f"{PATH}.copied", os.O_RDWR | os.O_CREAT)
    return os.copy_file_range(fd, out, SIZE, offset_src=OFFSET, offset_dst=0)


def io_uring(fd: int) -> int:
    """One IORING_OP_READ by the raw system calls (io_uring_setup(2), io_uring_enter(2))."""
    parameters = ctypes.create_string_buffer(120)
    ring = LIBC.syscall(425, 1, parameters)
    if ring < 0:
        failed()
    fields = struct.unpack("30I", parameters.raw)
    sq, cq = fields[10:20], fields[20:30]
    sq_ring = mmap.mmap(ring, sq[6] + 64, offset=0)
    cq_ring = mmap.mmap(ring, cq[5] + 64, offset=0x8000000)
    entries = mmap.mmap(ring, 64, offset=0x10000000)
    room = ctypes.create_string_buffer(SIZE)
    struct.pack_into("BBHiQQII", entries, 0, 22, 0, 0, fd, OFFSET, ctypes.addressof(room), SIZE, 0)
    struct.pack_into("I", sq_ring, sq[6], 0)
    struct.pack_into("I", sq_ring, sq[1], 1)
    if LIBC.syscall(426, ring, 1, 1, 1, None, 0) < 0:
        failed()
    result: int = struct.unpack_from("i", cq_ring, cq[5] + 8)[0]
    if result < 0:
        raise OSError(-result, "")
    return result


WAYS: Mapping[str, Callable[[int], int | str]] = {
    "read": read, "pread64": lambda fd: len(os.pread(fd, SIZE, OFFSET)), "readv": readv, "preadv2": preadv2,
    "O_DIRECT": direct, "mmap": mapped, "sendfile": sendfile, "splice": splice,
    "copy_file_range": copy_file_range, "io_uring": io_uring,
}  # fmt: skip


def main() -> None:
    answers: dict[str, int | str] = {}
    for name, way in WAYS.items():
        fd = os.open(PATH, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            answers[name] = way(fd)
        except OSError as error:
            answers[name] = errno.errorcode[error.errno or 0]
        os.close(fd)
    print(json.dumps(answers))


main()
