"""Which control group is a container's, in the layouts that kubelets and runtimes make."""

from __future__ import annotations

import pytest

from node_agent.container_groups import container_groups, group_of_process, names_container

ID = "4f1c0ffee0" + "a9" * 27
OTHER = "4f1c0ffee1" + "b7" * 27
POD = "f1d4a2b0-7c1e-4d53-9f0a-0c8a1b2c3d4e"
AT_ODDS = f"kubepods-burstable-pod{POD}.slice:cri-containerd:{ID}"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"

# Runtime, cgroup driver and version, and the group; on version 1 the same path is in each hierarchy.
LAYOUTS = {
    "containerd, systemd": f"{SLICE}/cri-containerd-{ID}.scope",
    "containerd, cgroupfs": f"/kubepods/burstable/pod{POD}/{ID}",
    "containerd, cgroupfs, guaranteed": f"/kubepods/pod{POD}/{ID}",
    "containerd, cgroupfs, below a cgroupRoot": f"/k8s-n2/kubepods/besteffort/pod{POD}/{ID}",
    "containerd, systemd, the kubelet cgroupfs": f"/system.slice/containerd.service/{AT_ODDS}",
    "CRI-O, systemd": f"{SLICE}/crio-{ID}.scope",
    "CRI-O, cgroupfs": f"/kubepods/burstable/pod{POD}/crio-{ID}",
    "Docker, systemd": f"{SLICE}/docker-{ID}.scope",
    "Docker, cgroupfs": f"/kubepods/burstable/pod{POD}/{ID}",
    "Docker alone, systemd": f"/system.slice/docker-{ID}.scope",
    "Docker alone, cgroupfs": f"/docker/{ID}",
    "a node that is a container": f"/kubelet.slice{SLICE}/cri-containerd-{ID}.scope",
}  # fmt: skip


def _beside(path: str) -> list[str]:
    """What else is there: the pod, its sandbox, another container, the monitor, systemd's units."""
    pod, _, last = path.rpartition("/")
    rest = [
        pod,
        f"{pod}/{last.replace(ID, OTHER)}",
        "/",
        "/init.scope",
        "/system.slice/ssh.service",
        "/user.slice",
    ]
    return [*rest, f"{pod}/crio-conmon-{ID}.scope", f"{pod}/crio-conmon-{ID}"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout(layout: str) -> None:
    path = LAYOUTS[layout]
    for wanted in (ID, ID[:12]):
        assert container_groups([*_beside(path), path], wanted) == (path,)
        assert container_groups(_beside(path), wanted) == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_below_a_container_count_for_it(layout: str) -> None:
    path = LAYOUTS[layout]
    inside = [f"{path}/container", f"{path}/system.slice/{OTHER}", f"{path}/init.scope"]
    assert container_groups(inside, ID) == (path,)
    assert container_groups([*inside, path], ID) == (path,)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_version_1_by_a_process(layout: str) -> None:
    path = LAYOUTS[layout]
    names = ("12:cpu,cpuacct", "9:memory", "5:freezer", "3:pids")
    lines = [f"{name}:{path}" for name in names]
    assert group_of_process([*lines, f"1:name=systemd:{path}", "0::/system.slice/containerd.service"], ID) == path
    # systemd's hierarchy, and version 2, may hold the process elsewhere, under the monitor's name or none.
    assert group_of_process([*lines, f"1:name=systemd:/crio-conmon-{ID}", "0::/"], ID) == path
    assert group_of_process(lines, OTHER) == ""
    assert group_of_process(["0::/user.slice", "", "nonsense"], ID) == ""


def test_an_id_that_begins_two_is_two() -> None:
    two = [f"/docker/{ID}", f"/docker/{OTHER}"]
    assert container_groups(two, ID[:9]) == tuple(sorted(two))


@pytest.mark.parametrize(
    ("directory", "wanted", "fits"),
    [
        ("my-web", "my-web", True),  # ctr: a directory called as the container
        ("my-web", "web", False),
        ("docker-web.scope", "web", True),
        ("system.slice:docker:web", "web", True),
        ("user.slice", "user", False),  # nobody means everybody's sessions
        ("system.slice", "system", False),
        ("cron.service", "c", False),
        ("dead.mount", "dead", False),
        (f"libpod-{ID}.scope", ID, True),
        (f"libpod-conmon-{ID}.scope", ID, False),
        (f"crio-conmon-{ID}", ID, False),
        (f"cri-containerd-{ID}.scope", ID[1:], False),  # the end of an id is none
        (f"{ID}.slice", ID, False),
    ],
)
def test_names(directory: str, wanted: str, fits: bool) -> None:
    assert names_container(directory, wanted) is fits
