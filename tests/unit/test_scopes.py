"""Whose calls, and which files: from what a user types to what the kernel knows."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from ebpf.paths import path_match
from node_agent.errors import Refusal
from node_agent.fault import Facts, Mount
from node_agent.host import FileInfo, Reader
from node_agent.rules import Root, Scope
from node_agent.scopes import ScopeFields, find_scope

ID = "4f1c0ffee" + "0" * 55
V2 = "/sys/fs/cgroup"


def _facts(*mounts: tuple[str, str, str]) -> Facts:
    """Mounts as (target, file system, device)."""
    return Facts(
        node="w1", kernel="6.12", boot_id="b", os="", python="", agent_version="", cpus=1, memory_mib=1,
        mounts=tuple(Mount(source="x", target=t, fstype=f, options="rw", device=d) for t, f, d in mounts),
    )  # fmt: skip


UNIFIED = _facts(("/", "ext4", "8:1"), (V2, "cgroup2", "0:29"), ("/srv/data", "ext4", "252:0"))
HYBRID = _facts(("/", "ext4", "8:1"), ("/sys/fs/cgroup/unified", "cgroup2", "0:29"))
LEGACY = _facts(("/", "ext4", "8:1"), ("/sys/fs/cgroup/cpu", "cgroup", "0:30"))


@dataclass
class Machine:
    """What the look-ups ask a reader for."""

    texts: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileInfo] = field(default_factory=dict)

    def read_text(self, path: str) -> str:
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]

    def exists(self, path: str) -> bool:
        return path in self.texts

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        return next((text for words, text in self.queries.items() if words in " ".join(argv)), None)

    def glob(self, pattern: str) -> Sequence[str]:
        flat = {pattern.replace("**/", ""), pattern.replace("**", "*")}
        return sorted(p for p in self.texts if any(fnmatch.fnmatch(p, one) for one in flat))

    def file_info(self, path: str) -> FileInfo | None:
        return self.files.get(path)

    def realpath(self, path: str) -> str:
        return path

    def reader(self) -> Reader:
        return cast("Reader", self)


def _machine(*cgroups: str, root: str = V2) -> Machine:
    texts = {f"{root}{path}/cgroup.procs": "" for path in cgroups}
    return Machine({**texts, "/proc/self/cgroup": "0::/system.slice/groundfault-agent.service\n",
                    "/proc/self/stat": "50 (node-agent) S 1 50"})  # fmt: skip


def _find(machine: Machine, facts: Facts = UNIFIED, **wanted: object) -> Scope:
    return find_scope(machine.reader(), facts, ScopeFields.model_validate(wanted))


# -- units -------------------------------------------------------------------------------------------------------


def _unit(control_group: str, slice_: str = "system.slice", state: str = "loaded") -> Machine:
    machine = _machine()
    machine.queries["systemctl show"] = f"LoadState={state}\nControlGroup={control_group}\nSlice={slice_}\n"
    return machine


def test_a_unit_is_known_by_its_control_group_and_attached_at_the_outermost_slice() -> None:
    scope = _find(
        _unit("/system.slice/system-postgresql.slice/postgresql@17-main.service"), unit="postgresql@17-main"
    )
    assert scope.kind == "unit"
    assert scope.cgroup == "/system.slice/system-postgresql.slice/postgresql@17-main.service"


@pytest.mark.parametrize(
    ("slice_", "path"),
    [
        ("system.slice", "/system.slice/web.service"),
        ("system-web.slice", "/system.slice/system-web.slice/web.service"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice/web.service"),
        ("-.slice", "/web.service"),
    ],
)
def test_a_unit_that_does_not_run_is_awaited_where_it_will_be(slice_: str, path: str) -> None:
    assert _find(_unit("", slice_), unit="web").cgroup == path


def test_a_unit_that_only_stands_for_others_means_them() -> None:
    """postgresql.service on Debian has no process: it stands for the clusters, which are part of it."""
    machine = _machine()
    machine.queries["-- postgresql.service"] = (
        "LoadState=loaded\nControlGroup=\nSlice=system.slice\nType=oneshot\n"
        "ConsistsOf=postgresql@17-main.service postgresql@16-old.service\n"
    )
    for name in ("16-old", "17-main"):
        machine.queries[f"-- postgresql@{name}.service"] = (
            "LoadState=loaded\nControlGroup=\nSlice=system-postgresql.slice\nType=forking\nConsistsOf=\n"
        )
    scope = _find(machine, unit="postgresql")
    slice_ = "/system.slice/system-postgresql.slice"
    assert scope.cgroup == f"{slice_}/postgresql@16-old.service"
    assert scope.also == (f"{slice_}/postgresql@17-main.service",)
    assert "postgresql@17-main.service" in scope.name and scope.name.startswith("unit postgresql.service")


def test_a_unit_that_systemd_does_not_know() -> None:
    with pytest.raises(Refusal, match=r"web\.service is not-found"):
        _find(_unit("", state="not-found"), unit="web")


# -- containers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/docker-{ID}.scope",
        f"/docker/{ID}",
        f"/machine.slice/libpod-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope",
        f"/kubepods/besteffort/pod1/{ID}",
        f"/system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:{ID}",
    ],
)
def test_runtimes_and_both_cgroup_drivers(path: str) -> None:
    machine = _machine(path, "/system.slice/docker-deadbeef0000.scope", f"/machine.slice/libpod-conmon-{ID}.scope")
    for word in (ID, ID[:12]):
        scope = _find(machine, container=word)
        assert (scope.kind, scope.cgroup) == ("cgroup", path)


def test_the_outermost_group_of_a_container_is_the_container() -> None:
    path = f"/machine.slice/libpod-{ID}.scope"
    assert _find(_machine(path, f"{path}/container"), container=ID[:12]).cgroup == path


def test_a_container_by_name() -> None:
    machine = _machine(f"/system.slice/docker-{ID}.scope")
    machine.queries["docker inspect --format {{.Id}} -- web"] = f"{ID}\n"
    assert _find(machine, container="web").cgroup == f"/system.slice/docker-{ID}.scope"


def test_a_whole_id_is_not_looked_up() -> None:
    """A runtime that hangs, or has a container of such a name, has no say."""
    machine = _machine(f"/system.slice/docker-{ID}.scope")
    machine.queries["inspect"] = "0" * 64
    assert _find(machine, container=ID).cgroup == f"/system.slice/docker-{ID}.scope"


def test_an_id_that_fits_two() -> None:
    with pytest.raises(Refusal, match="fits 2 containers"):
        _find(_machine("/docker/4f1c000a", "/docker/4f1c000b"), container="4f1c")


def test_a_container_that_is_only_in_version_1_is_hit_by_its_tree() -> None:
    """Hybrid with the cgroupfs driver: version 2 has systemd's groups, the container is in version 1 alone."""
    machine = _machine("/system.slice/docker.service", root="/sys/fs/cgroup/unified")
    for pid, name in ((900, "sh"), (901, "sleep")):
        machine.texts[f"/proc/{pid}/cgroup"] = f"4:memory:/docker/{ID}\n0::/system.slice/docker.service\n"
        machine.texts[f"/proc/{pid}/stat"] = f"{pid} ({name}) S 40 " + " ".join("0" * 17) + " 777 0"
        machine.texts[f"/proc/{pid}/status"] = f"Name:\t{name}\nTgid:\t{pid}\n"
    scope = _find(machine, HYBRID, container=ID)
    assert (scope.kind, scope.pid) == ("tree", 900)
    assert scope.name == f"container {ID[:12]} (/docker/{ID}, process 900)"


@pytest.mark.parametrize("facts", [LEGACY, HYBRID])
def test_on_version_1_the_process_that_started_the_others_is_hit(facts: Facts) -> None:
    """Numbers go round: the first process of a container may have a higher one than those it started."""
    machine = _machine("/system.slice/docker.service", root="/sys/fs/cgroup/unified")
    for pid, started in ((40, 900), (31000, 700), (55, 800)):
        machine.texts[f"/proc/{pid}/cgroup"] = f"4:memory:/kubepods/podx/{ID}\n1:name=systemd:/\n"
        machine.texts[f"/proc/{pid}/stat"] = f"{pid} (sh) S 39 " + " ".join("0" * 17) + f" {started} 0"
        machine.texts[f"/proc/{pid}/status"] = f"Name:\tsh\nTgid:\t{pid}\n"
    scope = _find(machine, facts, container=ID)
    assert (scope.kind, scope.pid, scope.started) == ("tree", 31000, 700)
    with pytest.raises(Refusal, match="does not run on this node"):
        _find(machine, facts, container="0" * 64)
    machine.texts["/proc/55/cgroup"] = f"4:memory:/kubepods/pody/{ID[:12]}{'1' * 52}\n"
    with pytest.raises(Refusal, match="fits several containers"):
        _find(machine, facts, container=ID[:12])


def test_a_word_is_not_taken_for_the_beginning_of_somebody_elses_group() -> None:
    """`user` is a container's name, where there is one; never the sessions of all users."""
    for word in ("user", "system", "cron", "c"):
        with pytest.raises(Refusal, match="does not run on this node"):
            _find(_machine("/user.slice", "/system.slice/cron.service", "/system.slice"), container=word)
    assert _find(_machine("/default/my-web"), container="my-web").cgroup == "/default/my-web"


# -- control groups and processes --------------------------------------------------------------------------------


def test_hybrid_has_its_root_elsewhere() -> None:
    machine = _machine("/system.slice/web.service", root="/sys/fs/cgroup/unified")
    assert _find(machine, HYBRID, cgroup="/system.slice/web.service").cgroup == "/system.slice/web.service"


def test_version_1_alone_is_refused_with_what_helps() -> None:
    with pytest.raises(Refusal, match="version 1 only") as refused:
        _find(_machine(), LEGACY, unit="web")
    assert "pid or tree" in refused.value.allowed


@pytest.mark.parametrize("wanted", ["work", "/work", "/sys/fs/cgroup/work", "/work/"])
def test_ways_to_write_a_control_group(wanted: str) -> None:
    assert _find(_machine("/work"), cgroup=wanted).cgroup == "/work"


@pytest.mark.parametrize("wanted", ["/", "/sys/fs/cgroup", "/work/../..", "/system.slice", "/nowhere"])
def test_control_groups_that_are_none_or_hold_too_much(wanted: str) -> None:
    with pytest.raises(Refusal):
        _find(_machine("/work", "/system.slice"), cgroup=wanted)


def test_a_thread_is_named_with_its_process() -> None:
    machine = _machine()
    machine.texts["/proc/71/stat"] = "71 (worker) S 40 " + " ".join("0" * 17) + " 5 0"
    machine.texts["/proc/71/status"] = "Name:\tworker\nTgid:\t70\n"
    with pytest.raises(Refusal, match="71 is a thread of process 70") as refused:
        _find(machine, pid=71)
    assert refused.value.allowed == "70"


# -- paths -------------------------------------------------------------------------------------------------------


def _files(*paths: str) -> Machine:
    machine = _machine()
    for number, path in enumerate(paths, 10):
        machine.files[path] = FileInfo("directory", 0, "252:0", number)
    return machine


def _root(number: int) -> Root:
    return Root(device=252 << 20, inode=number)


@pytest.mark.parametrize(
    ("path", "root", "parts", "any_depth"),
    [
        ("/srv/data", 10, (), True),
        ("/srv/data/base", 11, (), True),
        ("/srv/data/*", 10, ("*",), False),
        ("/srv/data/*/1259*", 10, ("1259*", "*"), False),
        ("/srv/data/**/pg_wal/0*", 10, ("0*", "pg_wal"), True),
        ("/srv/data/**", 10, (), True),
    ],
)
def test_a_path_becomes_a_directory_and_names(
    path: str, root: int, parts: tuple[str, ...], any_depth: bool
) -> None:
    match = path_match(_files("/srv/data", "/srv/data/base").reader(), UNIFIED, path)
    assert (match.roots, match.parts, match.any_depth) == ((_root(root),), parts, any_depth)


def test_what_is_mounted_below_a_path_belongs_to_it() -> None:
    machine = _files("/srv", "/srv/data")
    assert path_match(machine.reader(), UNIFIED, "/srv").roots == (_root(10), _root(11))
    assert path_match(machine.reader(), UNIFIED, "/srv/*").roots == (_root(10),)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("srv/data", "not absolute"),
        ("/srv/data/[ab]", "character class"),
        ("/nowhere/x/*", "there is no /nowhere"),
        ("/srv/dta", "there is no /srv/dta"),
        ("/srv/data/new-file", "there is no /srv/data/new-file"),
        ("/srv/data/*/**/x", "in the middle"),
        ("/srv/data/*/a/b/c/d", "too much"),
        ("/srv/data/" + "x" * 70 + "*", "too much"),
    ],
)
def test_paths_that_cannot_be_watched(path: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        path_match(_files("/srv/data").reader(), UNIFIED, path)


def test_file_systems_with_numbers_of_their_own() -> None:
    facts = _facts(("/", "ext4", "8:1"), ("/pool", "btrfs", "0:44"))
    with pytest.raises(Refusal, match="btrfs"):
        path_match(_files("/pool/x").reader(), facts, "/pool/x")
