"""What the parts of the cluster are told: command lines and configuration files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.bed.images import SANDBOX

BRIDGE, PREFIX = "gfk0", 24
API = "172.30.77.1"
SERVICES = "10.96.0.0/16"
ETCD_PORT, PEER_PORT, API_PORT = 2379, 2380, 6443
SERVER = f"https://{API}:{API_PORT}"


def node_address(number: int) -> str:
    """The address of a node, from 1 on."""
    return f"172.30.77.{10 + number}"


def cgroup_root(name: str) -> str:
    """The control group below which a node has its pods, in each hierarchy."""
    return f"/gfk-{name}"


def control_plane(run: Path, programs: Path) -> Mapping[str, tuple[str, ...]]:
    """The command lines of the control plane, in the order in which they are started."""
    keys = run / "keys"
    client, peer = f"http://{API}:{ETCD_PORT}", f"http://{API}:{PEER_PORT}"
    return {
        "etcd": (
            str(programs / "etcd"), f"--data-dir={run}/etcd", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        ),
        "kube-apiserver": (
            str(programs / "kube-apiserver"), f"--etcd-servers={client}", f"--bind-address={API}",
            f"--advertise-address={API}", f"--secure-port={API_PORT}", "--insecure-port=0",
            f"--service-cluster-ip-range={SERVICES}", "--allow-privileged=true",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={keys}/ca.crt", f"--tls-cert-file={keys}/api.crt",
            f"--tls-private-key-file={keys}/api.key", f"--kubelet-certificate-authority={keys}/ca.crt",
            f"--kubelet-client-certificate={keys}/admin.crt", f"--kubelet-client-key={keys}/admin.key",
            "--kubelet-preferred-address-types=InternalIP", "--service-account-issuer=https://groundfault.test",
            f"--service-account-key-file={keys}/tokens.pub",
            f"--service-account-signing-key-file={keys}/tokens.key",
            "--default-not-ready-toleration-seconds=20", "--default-unreachable-toleration-seconds=20",
        ),
        "kube-controller-manager": (
            str(programs / "kube-controller-manager"), f"--kubeconfig={keys}/controller-manager.conf",
            f"--bind-address={API}", "--port=0", "--leader-elect=false", "--controllers=*,-nodeipam",
            f"--service-account-private-key-file={keys}/tokens.key", f"--root-ca-file={keys}/ca.crt",
            "--use-service-account-credentials=true",
        ),
        "kube-scheduler": (
            str(programs / "kube-scheduler"), f"--kubeconfig={keys}/scheduler.conf",
            f"--authentication-kubeconfig={keys}/scheduler.conf",
            f"--authorization-kubeconfig={keys}/scheduler.conf", f"--bind-address={API}", "--port=0",
            "--leader-elect=false",
        ),
    }  # fmt: skip


def containerd(here: Path, cni: Path) -> str:
    """Its configuration. It may not lower an OOM score: a machine may not let it, and runc then starts nothing."""
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", \
"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{here}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def network(number: int) -> Mapping[str, Any]:
    """The pods of a node on a bridge of their own. Pods of different nodes do not reach each other."""
    return {
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": True,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }  # fmt: skip


def kubelet(here: Path, name: str, address: str) -> Mapping[str, Any]:
    """The configuration of a kubelet, which leaves the packet filter and the machine's settings alone."""
    keys = here.parent / "keys"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": address, "readOnlyPort": 0, "healthzBindAddress": "127.0.0.1", "healthzPort": 10248,
        "authentication": {
            "anonymous": {"enabled": False}, "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{keys}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{keys}/node-{name}.crt", "tlsPrivateKeyFile": f"{keys}/node-{name}.key",
        "cgroupDriver": "cgroupfs", "cgroupRoot": cgroup_root(name), "enforceNodeAllocatable": ["pods"],
        "staticPodPath": f"{here}/static", "fileCheckFrequency": "1s", "syncFrequency": "5s",
        "failSwapOn": False, "oomScoreAdj": 0, "maxOpenFiles": 20000, "makeIPTablesUtilChains": False,
        "resolvConf": "", "nodeStatusUpdateFrequency": "2s", "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
    }  # fmt: skip
