"""The C library, for calls that Python has no word for or would begin again after a signal."""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """The library with the argument types set. Looked up once: making it takes a millisecond and more."""
    library = ctypes.CDLL(None, use_errno=True)
    size, offset = ctypes.c_size_t, ctypes.c_int64
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, offset)
    library.munmap.argtypes = (ctypes.c_void_p, size)
    library.mincore.argtypes = (ctypes.c_void_p, size, ctypes.c_char_p)
    library.sync_file_range.argtypes = (ctypes.c_int, offset, offset, ctypes.c_uint)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal.restype = ctypes.c_void_p
    library.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
    return library


def check(result: int | None, name: str = "") -> None:
    """Raise OSError with errno where a call answered -1 (mmap: its equal as a pointer)."""
    if result in (-1, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), *((name,) if name else ()))


def ioctl(fd: int, request: int, buffer: ctypes.Array[ctypes.c_char], name: str = "") -> None:
    """ioctl(2) with a buffer both ways. Not fcntl's: an interrupted one must come back as EINTR."""
    check(libc().ioctl(fd, request, buffer), name)
