"""Scripts and configuration: what each component is told."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
from pathlib import Path

import yaml

from gpuyard.cli.testbed import OPERATORS as CLI_OPERATORS
from gpuyard.testbed import known_operators, kwok
from gpuyard.testbed.boot import KEEP, control_script, node_script
from gpuyard.testbed.cgroups import hierarchies
from gpuyard.testbed.control_plane import control_components
from gpuyard.testbed.credentials import Identity, kubeconfig, token_line
from gpuyard.testbed.dns import corefile
from gpuyard.testbed.extras import extra_components, names_of_extras
from gpuyard.testbed.images import Image, write_archive
from gpuyard.testbed.node_files import KERNEL_SETTINGS, PAUSE_IMAGE, containerd, kubelet, node_files
from gpuyard.testbed.programs import OPERATORS
from gpuyard.testbed.record import Extras
from tests.testbed.samples import a_record

MOUNTS = """\
23 28 0:21 / /proc rw,relatime - proc proc rw
31 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
40 31 0:35 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""


def parsed(script: str) -> None:
    """A shell reads it without objections."""
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_the_control_plane_listens_where_the_plan_says() -> None:
    record = a_record(slot=2)
    components = {component.name: component.command for component in control_components(record)}
    assert list(components) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert f"--service-cluster-ip-range={record.addresses.services}" in components["kube-apiserver"]
    assert "--authorization-mode=Node,RBAC" in components["kube-apiserver"]
    assert "--anonymous-auth=false" in components["kube-apiserver"]


def test_the_scripts_are_shell() -> None:
    record = a_record()
    parsed(control_script(record, control_components(record)))
    parsed(node_script(record, 1, Path("/a b/kubelet"), snapshotter="native"))


def test_machines_keep_their_hardware_addresses_so_that_nobody_looks_for_them_in_vain() -> None:
    record = a_record(nodes=16)
    assert "ip link add br0 address 02:67:79:74:62:00 type bridge\n" in control_script(record, [])
    script = node_script(record, 16, Path("kubelet"), snapshotter="native")
    assert "ip link set eth0 address 02:67:79:74:62:10\n" in script


def test_a_node_knows_the_way_to_the_pods_of_all_others() -> None:
    record = a_record(nodes=3)
    script = node_script(record, 2, Path("kubelet"), snapshotter="native")
    for number in (1, 3):
        assert f"ip route add {record.addresses.pods_of(number)} via {record.addresses.node(number)}" in script
    assert f"ip route add {record.addresses.pods_of(2)}" not in script


def test_a_kubelet_keeps_to_its_own_control_group_and_finds_kernel_settings_in_order() -> None:
    record = a_record()
    told = kubelet(record, 2)
    assert told["cgroupRoot"] == "/gpuyard-testbed-sample/node-2"
    assert told["authentication"]["anonymous"] == {"enabled": False}
    files = node_files(record, 2, snapshotter="native", cni_bin=Path("/cni"))
    script = node_script(record, 2, Path("kubelet"), snapshotter="native")
    for name, value in KERNEL_SETTINGS.items():
        own = f"settings/{name.replace('/', '.')}"
        assert files[own] == f"{value}\n"
        assert f"mount --bind $here/{own} /proc/sys/{name}\n" in script


def test_pods_are_pointed_at_the_name_server_of_their_testbed() -> None:
    record = a_record(slot=5)
    assert kubelet(record, 1)["clusterDNS"] == [str(record.addresses.dns)]
    assert f"ready {record.addresses.control}:" in corefile(record)


def test_what_is_asked_for_brings_what_it_needs_and_is_never_less() -> None:
    asked = Extras.of(training_operator=True)
    assert asked.dns
    more = Extras(kwok=5, kwok_gpus=2).with_more(asked).with_more(Extras(kwok=3))
    assert more == Extras(kwok=5, kwok_gpus=2, dns=True, training_operator=True)
    assert names_of_extras(more) == ("kwok", "coredns", "training-operator")
    others = more.with_more(Extras.of(operators=["lws", "jobset", "lws"])).with_more(Extras.of(operators=["kuberay"]))
    assert others.operators == ("jobset", "kuberay", "lws")
    assert names_of_extras(others) == ("kwok", "coredns", "training-operator", "jobset", "lws", "kuberay")


def test_all_extras_are_in_the_script_and_wait_to_be_wanted() -> None:
    record = a_record()
    script = control_script(record, extra_components(record))
    assert [line.split()[1] for line in script.splitlines() if line.startswith("keep ")] == [
        "kwok",
        "coredns",
        "training-operator",
        "jobset",
        "lws",
        "mpi-operator",
        "kuberay",
    ]
    parsed(script)


def test_the_operators_that_may_be_named_are_those_there_are_and_each_has_ports_of_its_own() -> None:
    """They share one network."""
    assert set(CLI_OPERATORS) == set(OPERATORS) == {one.name for one in known_operators.ALL} - {"training-operator"}
    probes = [int(one.probe.partition("/")[0]) for one in known_operators.ALL]
    ports = [*probes, *(one.webhooks.port for one in known_operators.ALL if one.webhooks)]
    assert len(set(ports)) == len(ports)


def test_an_operator_finds_its_files_and_a_private_place_for_its_certificates() -> None:
    record = a_record()
    component = known_operators.JOB_SET.component(record)
    folder = known_operators.JOB_SET.folder(record)
    assert component.command[-2:] == (str(folder / "jobset"), f"--config={folder}/configuration.yaml")
    assert str(folder / "tmp") in component.command
    for one in known_operators.ALL:
        for name, content in one.files:
            assert yaml.safe_load(content), name


def test_pretended_nodes_are_heard_from_more_often_than_they_are_given_up() -> None:
    record = a_record()
    assert f"--node-lease-duration-seconds={kwok.LEASE_S}" in kwok.component(record).command
    assert kwok.LEASE_S / 4 * 2 < kwok.GONE_AFTER_S


def test_what_a_component_is_told_beyond_its_command_counts_at_its_next_start(tmp_path: Path) -> None:
    """The part of every script that keeps components running, with one that says what it was told, and ends it."""
    record = a_record()
    (tmp_path / "words").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "words" / "one").write_text("--b=2 --a=3")
    own = 'echo "$@"; kill -9 $PPID'
    script = f"{KEEP}here={tmp_path}\nkeep one sh -c '{own}' sh --a=1"
    assert subprocess.run(["sh", "-c", script]).returncode == -9
    assert (tmp_path / "log" / "one.log").read_text() == "--a=1 --b=2 --a=3\n"
    assert KEEP in control_script(record, [])


def test_containerd_is_told_in_toml() -> None:
    told = tomllib.loads(containerd(Path("/n"), snapshotter="native", cni_bin=Path("/cni")))
    interface = told["plugins"]["io.containerd.grpc.v1.cri"]
    assert interface["sandbox_image"] == PAUSE_IMAGE
    assert interface["containerd"]["snapshotter"] == "native"
    assert interface["cni"] == {"bin_dir": "/cni", "conf_dir": "/n/cni"}


def test_users_are_known_by_their_tokens() -> None:
    assert token_line("t", Identity("system:node:node-1", ("system:nodes",))) == (
        't,system:node:node-1,system:node:node-1,"system:nodes"\n'
    )
    told = json.loads(kubeconfig("https://198.18.4.1", "PEM", Identity("admin"), "t"))
    assert told["users"] == [{"name": "admin", "user": {"token": "t"}}]
    assert told["contexts"][0]["name"] == told["current-context"]


def test_every_hierarchy_of_control_groups_is_found() -> None:
    assert hierarchies(MOUNTS) == [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/unified")]


def test_an_image_is_made_of_a_folder_and_the_same_twice(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "app").mkdir(parents=True)
    (root / "app" / "run").write_text("#!/bin/sh\n")
    (root / "app" / "run").chmod(0o755)
    image = Image("testbed.local/app:1", ("/app/run",), root, busybox=False)
    for name in ("one.tar", "two.tar"):
        write_archive(image, tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert manifest[0]["RepoTags"] == ["testbed.local/app:1"]
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            assert layer.getmember("app/run").mode == 0o755
            assert layer.getmember("app/run").uname == ""
