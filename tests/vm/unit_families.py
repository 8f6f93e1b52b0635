"""Runs on a node, below the restrictions of a systemd unit: which kinds of work that faults need still work.

Prints one JSON object: the kinds that do not, each with its reason. Arguments: the pid of a process to practise
on, outside of this unit, and the kinds to try (none: all). "The host" is the mount namespace of pid 1: what it
does not see did not happen.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
VICTIM = int(sys.argv[1])
BACKING = "/srv/data/groundfault-practice"
SYS_PERF_EVENT_OPEN, SYS_BPF, SYS_IO_URING_SETUP, SYS_FANOTIFY_INIT = 298, 321, 425, 300
CLONE_NEWNET, PTRACE_SEIZE, MADV_SOFT_OFFLINE, FS_IOC_FIEMAP = 0x40000000, 0x4206, 101, 0xC020660B


def checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=8)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise RuntimeError(f"{argv[0]}: {said[0]}")
    return done.stdout


def on_host(*argv: str) -> str:
    return run("nsenter", "--target", "1", "--mount", "--uts", "--", *argv)


def in_child(what: object) -> None:
    pid = os.fork()
    if not pid:
        try:
            what()  # type: ignore[operator]
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def device_mapper() -> None:
    run("dmsetup", "create", "groundfault-practice", "--table", "0 8 error")
    run("dmsetup", "remove", "groundfault-practice")


def loop_device() -> None:
    run("losetup", "--detach", run("losetup", "--find", "--show", BACKING).strip())


def kernel_loads_a_module_for_us() -> None:
    subprocess.run(["nsenter", "--target", "1", "--mount", "--", "rmmod", "ifb"], capture_output=True)
    run("ip", "link", "add", "gf-ifb", "type", "ifb")
    run("ip", "link", "del", "gf-ifb")


def load_a_module() -> None:
    run("modprobe", "ifb")
    run("modprobe", "--remove", "ifb")


def mounts() -> None:
    at = Path("/run/groundfault-practice")
    at.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "practice", str(at))
    try:
        on_host("mountpoint", "--quiet", str(at))
    finally:
        run("umount", str(at))


def write_files() -> None:
    for directory in ("/etc", "/usr", "/root", "/srv/data", "/tmp", "/var/lib"):
        path = Path(directory, "groundfault-practice-file")
        path.touch()
        try:
            on_host("test", "-e", str(path))
        finally:
            path.unlink()


def file_extents() -> None:
    with Path(BACKING).open("rb") as file:
        request = bytearray(struct.pack("=QQLLLL", 0, 1 << 40, 1, 0, 1, 0) + bytes(56))
        fcntl.ioctl(file, FS_IOC_FIEMAP, request)


def read_past_the_cache() -> None:
    for path in (BACKING, "/dev/vda"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(descriptor, [mmap.mmap(-1, 4096)], 0)
        os.close(descriptor)


def kernel_log() -> None:
    os.close(os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK))
    checked(LIBC.klogctl(10, None, 0))


def settings() -> None:
    for name in ("/proc/sys/kernel/panic", "/sys/module/printk/parameters/time"):
        Path(name).write_text(Path(name).read_text())


def control_groups() -> None:
    group = Path("/sys/fs/cgroup/groundfault-practice")
    group.mkdir()
    try:
        (group / "cgroup.freeze").write_text("0")
    finally:
        group.rmdir()


def signals() -> None:
    os.kill(VICTIM, signal.SIGSTOP)
    os.kill(VICTIM, signal.SIGCONT)


def tracing_a_process() -> None:
    in_child(lambda: checked(LIBC.ptrace(PTRACE_SEIZE, VICTIM, 0, 0)))


def other_processes() -> None:
    Path("/proc/1/environ").read_bytes()
    Path(f"/proc/{VICTIM}/exe").readlink()
    Path("/proc/meminfo").read_text()


def clock() -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    timex = ctypes.create_string_buffer(struct.pack("=Qq", 0x0002, 0) + bytes(300))  # ADJ_FREQUENCY
    checked(LIBC.adjtimex(timex))


def traffic_control() -> None:
    run("ip", "link", "add", "gf-dummy", "type", "dummy")
    try:
        run("tc", "qdisc", "add", "dev", "gf-dummy", "root", "netem", "delay", "1ms")
    finally:
        run("ip", "link", "del", "gf-dummy")


def packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()


def network_namespaces() -> None:
    if Path("/proc/self/ns/net").readlink() != Path("/proc/1/ns/net").readlink():
        raise RuntimeError("not in the host's network")
    in_child(lambda: checked(LIBC.unshare(CLONE_NEWNET)))
    with Path("/proc/1/ns/net").open() as host:
        in_child(lambda: checked(LIBC.setns(host.fileno(), 0)))


def bpf() -> None:
    size = ctypes.c_uint(72)
    wanted = ctypes.create_string_buffer(struct.pack("=IIII", 1, 4, 4, 1) + bytes(100))
    table = checked(LIBC.syscall(SYS_BPF, 0, wanted, size))
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    for kind in (1, 5, 8, 17):  # socket filter, tracepoint, cgroup, raw tracepoint
        head = struct.pack("=IIQQ", kind, 2, ctypes.addressof(code), ctypes.addressof(licence))
        os.close(checked(LIBC.syscall(SYS_BPF, 5, ctypes.create_string_buffer(head + bytes(120)), size)))
    path = ctypes.create_string_buffer(b"/sys/fs/bpf/groundfault-practice")
    pin = ctypes.create_string_buffer(struct.pack("=QII", ctypes.addressof(path), table, 0) + bytes(60))
    checked(LIBC.syscall(SYS_BPF, 6, pin, ctypes.c_uint(16)))
    Path("/sys/fs/bpf/groundfault-practice").unlink()


def performance_events() -> None:
    kind = int(Path("/sys/bus/event_source/devices/software/type").read_text())
    event = ctypes.create_string_buffer(struct.pack("=IIQ", kind, 128, 1) + bytes(200))
    os.close(checked(LIBC.syscall(SYS_PERF_EVENT_OPEN, event, -1, 0, -1, 0)))


def debugging_files() -> None:
    list(Path("/sys/kernel/debug").iterdir())
    switch = Path("/sys/kernel/tracing/tracing_on")
    switch.write_text(switch.read_text())


def set_id_bits() -> None:
    path = Path("/srv/data/groundfault-practice-suid")
    path.touch()
    try:
        path.chmod(0o4755)
    finally:
        path.unlink()


def realtime() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def code_made_at_run_time() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def memory_taken_offline() -> None:
    page = mmap.mmap(-1, 4096)
    page[0] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    checked(LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(4096), MADV_SOFT_OFFLINE))


def another_user() -> None:
    run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true")


def transient_units() -> None:
    run("systemd-run", "--quiet", "--wait", "--property=RuntimeMaxSec=20", "true")


def io_uring() -> None:
    os.close(checked(LIBC.syscall(SYS_IO_URING_SETUP, 2, ctypes.create_string_buffer(200))))


def file_watching() -> None:
    os.close(checked(LIBC.syscall(SYS_FANOTIFY_INIT, 0, 0)))


def host_name() -> None:
    before = socket.gethostname()
    socket.sethostname("practice")
    try:
        if on_host("cat", "/proc/sys/kernel/hostname").strip() != "practice":
            raise RuntimeError("set, but the host does not see it")
    finally:
        socket.sethostname(before)


def reboot() -> None:
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    if not int(held.split()[1], 16) >> 22 & 1:
        raise RuntimeError("CAP_SYS_BOOT is gone")


KINDS = (
    device_mapper, loop_device, kernel_loads_a_module_for_us, load_a_module, mounts, write_files, file_extents,
    read_past_the_cache, kernel_log, settings, control_groups, signals, tracing_a_process, other_processes, clock,
    traffic_control, packets, network_namespaces, bpf, performance_events, debugging_files, set_id_bits, realtime,
    code_made_at_run_time, memory_taken_offline, another_user, transient_units, io_uring, file_watching, host_name,
    reboot,
)  # fmt: skip


def main() -> None:
    Path(BACKING).write_bytes(os.urandom(65536))
    failed: dict[str, str] = {}
    chosen = sys.argv[2:]
    for kind in (k for k in KINDS if not chosen or k.__name__ in chosen):
        try:
            kind()
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            failed[kind.__name__] = str(error)[:160]
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
