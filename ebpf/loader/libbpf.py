"""A small typed binding of libbpf 1.x by ctypes.

Only what the loader needs. Every failure is a :class:`BpfError` with the kernel's errno, what was tried, and,
where the verifier refused a program, the last lines it wrote. Source: libbpf's public headers (bpf/libbpf.h,
bpf/bpf.h), whose ABI is stable since 1.0.
"""

from __future__ import annotations

import ctypes as c
import errno as errnos
import os
import platform
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

LIBRARY = "libbpf.so.1"
_LOG_BYTES = 1 << 20
_LOG_LINES = 4

_SAMPLE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t)

_P, _I, _S = c.c_void_p, c.c_int, c.c_char_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_set_print": (_P, (_P,)),
    "bpf_object__open_mem": (_P, (_P, c.c_size_t, _P)),
    "bpf_object__load": (_I, (_P,)),
    "bpf_object__close": (None, (_P,)),
    "bpf_object__next_program": (_P, (_P, _P)),
    "bpf_object__next_map": (_P, (_P, _P)),
    "bpf_program__name": (_S, (_P,)),
    "bpf_program__section_name": (_S, (_P,)),
    "bpf_program__fd": (_I, (_P,)),
    "bpf_program__set_autoload": (_I, (_P, c.c_bool)),
    "bpf_program__set_log_buf": (_I, (_P, _P, c.c_size_t)),
    "bpf_program__set_attach_target": (_I, (_P, _I, _S)),
    "bpf_program__attach": (_P, (_P,)),
    "bpf_program__attach_cgroup": (_P, (_P, _I)),
    "bpf_program__attach_kprobe": (_P, (_P, c.c_bool, _S)),
    "bpf_link__fd": (_I, (_P,)),
    "bpf_link__destroy": (_I, (_P,)),
    "bpf_map__name": (_S, (_P,)),
    "bpf_map__fd": (_I, (_P,)),
    "bpf_map__reuse_fd": (_I, (_P, _I)),
    "bpf_map__set_initial_value": (_I, (_P, _P, c.c_size_t)),
    "bpf_map_lookup_elem": (_I, (_I, _P, _P)),
    "bpf_map_update_elem": (_I, (_I, _P, _P, c.c_uint64)),
    "bpf_map_delete_elem": (_I, (_I, _P)),
    "bpf_map_get_next_key": (_I, (_I, _P, _P)),
    "ring_buffer__new": (_P, (_I, _SAMPLE, _P, _P)),
    "ring_buffer__consume": (_I, (_P,)),
    "ring_buffer__free": (None, (_P,)),
    "bpf_link_get_next_id": (_I, (c.c_uint32, c.POINTER(c.c_uint32))),
    "bpf_link_get_fd_by_id": (_I, (c.c_uint32,)),
    "bpf_prog_get_fd_by_id": (_I, (c.c_uint32,)),
    "bpf_obj_get_info_by_fd": (_I, (_I, _P, c.POINTER(c.c_uint32))),
}


class BpfError(OSError):
    """libbpf or the kernel refused. `log` has the verifier's last lines, where it was the verifier."""

    def __init__(self, number: int, what: str, log: str = "") -> None:
        text = f"{what}: {os.strerror(number)}"
        if log:
            text += f" (kernel {platform.release()}; the verifier's last lines: {log})"
        super().__init__(number, text)
        self.log = log

    def __str__(self) -> str:
        return str(self.args[1])


@cache
def library() -> c.CDLL:
    """libbpf, loaded once. Raises OSError where the node has none."""
    lib = c.CDLL(LIBRARY, use_errno=True)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, list(arguments)
    lib.libbpf_set_print(None)
    return lib


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise BpfError(-result if result != -1 else c.get_errno() or errnos.EIO, what)
    return result


def _pointer(result: int | None, what: str) -> int:
    if not result:
        raise BpfError(c.get_errno() or errnos.EIO, what)
    return result


class Map:
    """A map by its descriptor. Keys and values are ctypes structures or integers."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name = fd, name

    def get(self, key: Any, value: Any) -> bool:
        """Fill `value` with what is at `key`; False where nothing is."""
        result = library().bpf_map_lookup_elem(self.fd, c.byref(key), c.byref(value))
        return bool(result == 0) if result in (0, -errnos.ENOENT) else bool(_checked(result, f"map {self.name}"))

    def put(self, key: Any, value: Any) -> None:
        _checked(
            library().bpf_map_update_elem(self.fd, c.byref(key), c.byref(value), 0), f"writing map {self.name}"
        )

    def delete(self, key: Any) -> None:
        """Remove `key`; absent is fine."""
        result = library().bpf_map_delete_elem(self.fd, c.byref(key))
        if result != -errnos.ENOENT:
            _checked(result, f"deleting from map {self.name}")

    def keys(self, kind: Callable[[], Any]) -> Iterator[Any]:
        """Every key, each a new `kind()`. Keys deleted meanwhile are fine."""
        before: Any = None
        while True:
            key = kind()
            last = c.byref(before) if before is not None else None
            if library().bpf_map_get_next_key(self.fd, last, c.byref(key)) != 0:
                return
            yield key
            before = key


class Link:
    """A program attached to its hook, until :meth:`destroy`, or until this process ends however it ends."""

    def __init__(self, pointer: int, what: str) -> None:
        self._pointer: int | None = pointer
        self.what = what
        self.id = _link_id(library().bpf_link__fd(pointer))

    def destroy(self) -> None:
        """Detach. Twice is fine."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            _checked(library().bpf_link__destroy(pointer), f"detaching {self.what}")


class Program:
    """A program of an object."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self.name = library().bpf_program__name(pointer).decode()
        self.section = library().bpf_program__section_name(pointer).decode()
        self._log: Any = None

    def choose(self, target: str = "") -> None:
        """Load this one with its object; at `target` in place of what its section says."""
        _checked(library().bpf_program__set_autoload(self._pointer, True), f"choosing {self.name}")
        if target:
            _checked(
                library().bpf_program__set_attach_target(self._pointer, 0, target.encode()), f"finding {target}"
            )
        self._log = c.create_string_buffer(_LOG_BYTES)
        library().bpf_program__set_log_buf(self._pointer, self._log, _LOG_BYTES)

    def log_tail(self) -> str:
        """The last lines the verifier wrote when it refused this program."""
        text = self._log.value.decode(errors="replace") if self._log is not None else ""
        # After "; R" comes what the verifier knows of every register: not for people.
        lines = [line.split("; R")[0].strip() for line in text.splitlines() if not line.startswith("processed")]
        return " | ".join([line for line in lines if line][-_LOG_LINES:])

    def forget_log(self) -> None:
        """Give the log's memory back after loading."""
        self._log = None

    def attach(self) -> Link:
        """Attach where the section says."""
        what = f"attaching {self.section}"
        return Link(_pointer(library().bpf_program__attach(self._pointer), what), what)

    def attach_cgroup(self, path: str) -> Link:
        """Attach to the cgroup directory `path`: it runs for processes in it and below."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        what = f"attaching {self.section} to {path}"
        try:
            return Link(_pointer(library().bpf_program__attach_cgroup(self._pointer, fd), what), what)
        finally:
            os.close(fd)

    def attach_kprobe(self, function: str) -> Link:
        """Attach to the entry of a kernel function."""
        what = f"attaching a kprobe to {function}"
        pointer = library().bpf_program__attach_kprobe(self._pointer, False, function.encode())
        return Link(_pointer(pointer, what), what)


class Object:
    """A compiled object, opened. Choose programs, share maps, then :meth:`load` once."""

    def __init__(self, content: bytes, name: str) -> None:
        self.name = name
        self._content = c.create_string_buffer(content, len(content))
        self._pointer: int | None = _pointer(
            library().bpf_object__open_mem(self._content, len(content), None), f"opening {name}"
        )
        self.programs = {p.name: p for p in map(Program, self._walk("bpf_object__next_program"))}
        self._maps = {library().bpf_map__name(m).decode(): m for m in self._walk("bpf_object__next_map")}

    def _walk(self, function: str) -> Iterator[int]:
        at = getattr(library(), function)(self._pointer, None)
        while at:
            yield at
            at = getattr(library(), function)(self._pointer, at)

    def share(self, shared: Map) -> None:
        """Use an existing map in place of the object's own of that name."""
        if shared.name in self._maps:
            _checked(library().bpf_map__reuse_fd(self._maps[shared.name], shared.fd), f"sharing {shared.name}")

    def set_constants(self, content: bytes) -> None:
        """Replace the object's read-only data. Must have its size."""
        pointer = next(m for n, m in self._maps.items() if n.endswith(".rodata"))
        _checked(library().bpf_map__set_initial_value(pointer, content, len(content)), "setting constants")

    def load(self) -> None:
        """Load what was chosen. Raises :class:`BpfError` with the verifier's word."""
        result = library().bpf_object__load(self._pointer)
        if result < 0:
            logs = [f"{p.name}: {tail}" for p in self.programs.values() if (tail := p.log_tail())]
            raise BpfError(-result, f"loading {self.name}", logs[-1] if logs else "")
        for program in self.programs.values():
            program.forget_log()

    def map(self, name: str) -> Map:
        """A map of the loaded object."""
        return Map(library().bpf_map__fd(self._maps[name]), name)

    def close(self) -> None:
        """Unload. Attached programs stay until their links go."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            library().bpf_object__close(pointer)


class RingBuffer:
    """A ring buffer of samples, read without blocking."""

    def __init__(self, ring: Map) -> None:
        self._read: list[bytes] = []

        def take(_context: int, data: int, size: int) -> int:
            self._read.append(c.string_at(data, size))
            return 0

        self._callback = _SAMPLE(take)  # kept: libbpf calls it as long as the buffer lives
        self._pointer = _pointer(library().ring_buffer__new(ring.fd, self._callback, None, None), "ring buffer")

    def drain(self) -> list[bytes]:
        """What has come since the last call, oldest first."""
        _checked(library().ring_buffer__consume(self._pointer), "reading the ring buffer")
        read, self._read[:] = list(self._read), []
        return read


class _LinkInfo(c.Structure):
    """The head of struct bpf_link_info of <linux/bpf.h>; the kernel fills no more than it is given room for."""

    _fields_ = [("type", c.c_uint32), ("id", c.c_uint32), ("prog_id", c.c_uint32), ("rest", c.c_uint32 * 5)]


class _ProgramInfo(c.Structure):
    """The head of struct bpf_prog_info of <linux/bpf.h>, up to the name."""

    _fields_ = [
        ("type", c.c_uint32), ("id", c.c_uint32), ("tag", c.c_uint8 * 8), ("jited_len", c.c_uint32),
        ("xlated_len", c.c_uint32), ("jited", c.c_uint64), ("xlated", c.c_uint64), ("load_time", c.c_uint64),
        ("created_by_uid", c.c_uint32), ("nr_map_ids", c.c_uint32), ("map_ids", c.c_uint64),
        ("name", c.c_char * 16),
    ]  # fmt: skip


def _info(fd: int, info: Any) -> Any:
    length = c.c_uint32(c.sizeof(info))
    _checked(library().bpf_obj_get_info_by_fd(fd, c.byref(info), c.byref(length)), "bpf object info")
    return info


def _link_id(fd: int) -> int:
    return int(_info(fd, _LinkInfo()).id)


def all_links() -> dict[int, str]:
    """Every BPF link of the machine by its id, with the name of its program: what is attached just now."""
    found: dict[int, str] = {}
    at = c.c_uint32(0)
    while library().bpf_link_get_next_id(at, c.byref(at)) == 0:
        link_fd = library().bpf_link_get_fd_by_id(at)
        if link_fd < 0:
            continue  # gone between the two calls
        try:
            link = _info(link_fd, _LinkInfo())
            program_fd = library().bpf_prog_get_fd_by_id(link.prog_id)
            name = "?"
            if program_fd >= 0:
                try:
                    name = _info(program_fd, _ProgramInfo()).name.decode(errors="replace")
                finally:
                    os.close(program_fd)
            found[int(link.id)] = name
        finally:
            os.close(link_fd)
    return found
