"""The kernel's fault facilities on the simulated machine: their files, and what writing to them does."""

from __future__ import annotations

import errno
import os

DEBUGFS = "/sys/kernel/debug"
VICTIM = 700
_DIALS = {
    "probability": "0", "interval": "1", "times": "1", "space": "0", "verbose": "2", "task-filter": "N",
    "verbose_ratelimit_burst": "0", "verbose_ratelimit_interval_ms": "0",
}  # fmt: skip
_OWN = {
    "failslab": {"ignore-gfp-wait": "Y", "cache-filter": "N"},
    "fail_page_alloc": {"ignore-gfp-wait": "Y", "ignore-gfp-highmem": "Y", "min-order": "1"},
    "fail_futex": {"ignore-private": "N"},
    "fail_make_request": {},
    "fail_function": {"inject": ""},
}
_LIST = f"{DEBUGFS}/fail_function/inject"
_PARENTS = {1: ("systemd", 0), 700: ("victim", 1), 701: ("child", 700), 800: ("sshd", 1), 4242: ("node-agent", 1)}


def facility_texts() -> dict[str, str]:
    """The files as they are when nobody uses the facilities."""
    texts = {
        f"{DEBUGFS}/{name}/{dial}": value
        for name, own in _OWN.items()
        for dial, value in {**_DIALS, **own}.items()
    }
    texts[f"{DEBUGFS}/error_injection/list"] = "__x64_sys_fsync\tERRNO\nshould_fail_alloc_page\tTRUE\n"
    texts["/sys/block/dm-0/make-it-fail"] = "0"
    texts |= {f"/proc/{pid}/task/{pid}/make-it-fail": "0" for pid in _PARENTS}
    texts |= {f"/proc/{VICTIM}/task/702/make-it-fail": "0", "/proc/self/make-it-fail": "0"}
    return texts


def boot(texts: dict[str, str]) -> None:
    """What a reboot makes of it."""
    for path in [p for p in texts if p.endswith("/retval")]:
        del texts[path]
    texts |= facility_texts()


def process_texts() -> dict[str, str]:
    """Some processes: a service with a child, sshd, the agent."""
    stats = {f"/proc/{pid}/stat": _stat(pid, comm, parent) for pid, (comm, parent) in _PARENTS.items()}
    unit = "/sys/fs/cgroup/system.slice/victim.service/cgroup.procs"
    return {**stats, "/proc/self/stat": stats["/proc/4242/stat"], unit: "700\n701\n"}


def _stat(pid: int, comm: str, parent: int) -> str:
    return f"{pid} ({comm}) S {parent} " + "0 " * 17 + f"{pid * 10} 0 0\n"


def write(texts: dict[str, str], path: str, text: str) -> bool:
    """Do what the kernel does with a write to one of these files; False where it is none."""
    if not path.startswith(("/sys/", "/proc/")):
        return False
    if path not in texts:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if path != _LIST:
        texts[path] = text
        return True
    listed = texts[path].split()
    name = text.removeprefix("!")
    if text.startswith("!"):
        if name not in listed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        listed.remove(name)
        del texts[f"{DEBUGFS}/fail_function/{name}/retval"]
    else:
        listed.append(name)
        texts[f"{DEBUGFS}/fail_function/{name}/retval"] = "0"
    texts[path] = "\n".join(listed)
    return True


def at_rest(texts: dict[str, str]) -> bool:
    """Whether all of it is as nobody ever used it."""
    usual = facility_texts()
    strange = [p for p in texts if p.endswith("/retval")]
    return not strange and all(texts[path] == text for path, text in usual.items())
