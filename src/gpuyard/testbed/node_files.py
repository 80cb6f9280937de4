"""What a node's kubelet, containerd and network plugin are told, as texts. Pure.

Place in the flow: record ─**node_files**─▶ files in the node's folder ─▶ the script that starts them (`boot.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuyard.testbed.credentials import pki_folder
from gpuyard.testbed.record import Record, node_name

PAUSE_IMAGE: Final = "testbed.local/pause:1"
BUSYBOX_IMAGE: Final = "testbed.local/busybox:1"
CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
MAX_PODS: Final = 110
KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine; ours finds them so already, in files of its own."""


def node_files(record: Record, number: int, *, snapshotter: str, cni_bin: Path) -> dict[str, str]:
    """Every file of a node by its path below the node's folder."""
    folder = record.machine_folder(node_name(number))
    return {
        "kubelet.json": _json(kubelet(record, number)),
        "containerd.toml": containerd(folder, snapshotter=snapshotter, cni_bin=cni_bin),
        "cni/10-testbed.conflist": _json(network(record.addresses.pods_of(number))),
        "resolv.conf": f"nameserver {record.addresses.dns}\n",
        **{f"settings/{name.replace('/', '.')}": f"{value}\n" for name, value in KERNEL_SETTINGS.items()},
    }


def kubelet(record: Record, number: int) -> dict[str, Any]:
    name = node_name(number)
    folder = record.machine_folder(name)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "10s"},
            "x509": {"clientCAFile": str(pki_folder(record) / "ca.pem")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{record.cgroup}/{name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "maxPods": MAX_PODS,
        "nodeStatusUpdateFrequency": "1s",
        "nodeLeaseDurationSeconds": 4,
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        # Also where nobody answers there yet: DNS may be added to a testbed that runs.
        "clusterDNS": [str(record.addresses.dns)],
        # The disk is the machine's: how full it is says nothing about a node.
        "evictionHard": {
            "imagefs.available": "0%",
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
    }


def containerd(folder: Path, *, snapshotter: str, cni_bin: Path) -> str:
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{folder / "cni"}"
"""


def network(pods: IPv4Network) -> dict[str, Any]:
    """A cable from each pod to its node, which knows the way to the others."""
    return {
        "cniVersion": "0.4.0",
        "name": "testbed",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(pods)}]],
                    # Without it there is no way from a pod to other nodes.
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _json(content: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
