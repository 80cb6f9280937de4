"""Fake GPUs on one node of a real cluster: the model, the plugin beside its kubelet, and pods that ask for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from gpuyard.errors import KubeSilentError
from gpuyard.fakegpu.control import Break, Heal, Request, ask
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from tests.fakegpu.daemons import running
from tests.fakegpu.kubernetes.plugins import Plugin, plugged
from tests.kube import SECONDS, a_pod, eventually

GPU = "nvidia.com/gpu"
PRODUCT = "T4"
IDS = tuple(f"GPU-{number}" for number in range(8))


def fleet(node: str, ids: Sequence[str] = IDS, product: str = PRODUCT) -> str:
    listed = ", ".join(f"{{id: {id}}}" for id in ids)
    return f"nodes: {{{node}: {{gpu-product: {product}, gpus: [{listed}]}}}}\n"


def folder_of(bed: Bed, node: str) -> Path:
    """Where the kubelet of a node meets its plugins, as this machine sees it."""
    return bed.node_folder(node) / "kubelet" / "device-plugins"


class Rig:
    """One node with eight GPUs, GPU-0 to GPU-7."""

    def __init__(self, bed: Bed, api: Api, node: str, home: Path, plugin: Plugin) -> None:
        self.bed = bed
        self.api = api
        self.node = node
        self.home = home
        self.file = home.parent / "fleet.yaml"
        self.plugin = plugin

    # ----------------------------------------------------------------------------------------------------- the model

    def tell(self, request: Request) -> None:
        ask(self.home, request, type(None))

    def fault(self, gpu: int | str, fault: str) -> None:
        self.tell(Break(self.node, gpu, fault))

    def heal(self) -> None:
        self.tell(Heal(self.node, "all"))

    def configure(self, *ids: str, product: str = PRODUCT) -> None:
        self.file.write_text(fleet(self.node, ids, product))

    def as_it_was(self) -> None:
        self.configure(*IDS)
        self.heal()
        self.has(8, 8)

    # ------------------------------------------------------------------------------------------------------ the node

    def counts(self, resource: str = GPU) -> tuple[int, int]:
        """Capacity and allocatable, as the API server knows them."""
        status = self.api.get(f"/api/v1/nodes/{self.node}")["status"]
        return int(status["capacity"].get(resource, -1)), int(status["allocatable"].get(resource, -1))

    def has(self, capacity: int, allocatable: int, *, within_s: float = SECONDS, resource: str = GPU) -> None:
        wanted = (capacity, allocatable)
        eventually(lambda: self.counts(resource) == wanted, f"{wanted} {resource} on {self.node}", within_s)

    def has_again(self, capacity: int, allocatable: int) -> None:
        """The same after its kubelet was started anew: what the API server knows from before does not count."""
        wait_for_news(self.api, self.node)
        self.has(capacity, allocatable)

    # -------------------------------------------------------------------------------------------------------- pods

    def start(self, pods: str, name: str, *gpus: int, **about: str) -> None:
        """A pod with a container for each number, which asks for as many GPUs."""
        self.api.create(pods, gpu_pod(name, self.node, *gpus, **about))

    def clear(self, pods: str) -> None:
        """End all pods, and wait until their GPUs are free."""
        self.heal()
        self.api.delete(pods, gracePeriodSeconds="0")
        eventually(lambda: not self.api.get(pods)["items"], "the end of all pods")

    def runs(self, pods: str, name: str, within_s: float = SECONDS) -> None:
        def why_not() -> str:
            status = self.api.get(f"{pods}/{name}")["status"]
            return f"the start of {name} ({status.get('phase')}: {status.get('message')})"

        eventually(lambda: self.phase(pods, name) == "Running", why_not, within_s)

    def phase(self, pods: str, name: str) -> str:
        return str(self.api.get(f"{pods}/{name}")["status"].get("phase"))

    def inside(self, pods: str, name: str, *command: str, container: str = "c0") -> str:
        """What a command says in a container."""
        namespace = pods.split("/")[-2]
        done = self.bed.kubectl("exec", name, "-n", namespace, "-c", container, "--", *command)
        return done.output

    def sees(self, pods: str, name: str, container: str = "c0") -> list[str]:
        """The ids nvidia-smi lists there."""
        listed = self.inside(pods, name, "nvidia-smi", "-L", container=container)
        return [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "UUID" in line]


def forget_devices(bed: Bed, node: str) -> None:
    """As if no plugin had ever been there: else a kubelet keeps what it was offered for five minutes."""
    bed.stop("kubelet", node)
    for left in folder_of(bed, node).iterdir():
        left.unlink()
    bed.start("kubelet", node)
    bed.wait_ready(node)
    with bed.api() as api:
        wait_for_news(api, node)


def wait_for_news(api: Api, node: str) -> None:
    """Until a kubelet has told of its node once more: what it said before may be from another life of it."""
    now = int(time())

    def told_at() -> float:
        conditions = api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
        (ready,) = [one for one in conditions if one["type"] == "Ready"]
        return datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp()

    eventually(lambda: told_at() > now, f"word from the kubelet of {node}")


def gpu_pod(
    name: str, node: str, *gpus: int, script: str = "sleep 1000", resource: str = GPU, image: str = BUSYBOX_IMAGE
) -> dict[str, Any]:
    pod = a_pod(name, script, nodeName=node)
    (container,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [
        {**container, "name": f"c{at}", "image": image, "resources": {"limits": {resource: count} if count else {}}}
        for at, count in enumerate(gpus)
    ]
    return pod


@contextmanager
def rigged(bed: Bed, api: Api, node: str, root: Path, *options: str) -> Iterator[Rig]:
    """Its model is a daemon of its own, or with --config the plugin's."""
    home, file = root / "home", root / "fleet.yaml"
    file.write_text(fleet(node))
    with ExitStack() as stack:
        if "--config" not in options:
            stack.enter_context(running(home, config=file))
        stack.callback(forget_devices, bed, node)
        plugin = stack.enter_context(plugged(home, folder_of(bed, node), "--node", node, *options))
        rig = Rig(bed, api, node, home, plugin)
        rig.has(8, 8)
        yield rig


def stays(holds: Callable[[], bool], for_s: float) -> bool:
    """Whether it goes on being true for so long; an API server that says nothing does not say that it is not."""
    until = monotonic() + for_s
    while monotonic() < until:
        with suppress(KubeSilentError):
            if not holds():
                return False
        sleep(0.1)
    return True
