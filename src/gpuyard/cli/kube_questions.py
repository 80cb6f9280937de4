"""Questions that a Kubernetes cluster answers: the commands of a server, asked of a cluster instead.

Place in the flow: a command with a Kubernetes context ─**kube_questions**─▶ gpuyard.kube ─▶ the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.listing import Kind, Look, show, table_lines
from gpuyard.cli.output import print_data
from gpuyard.cli.session import Session
from gpuyard.cli.terminal import on_terminal, one_line, talk

if TYPE_CHECKING:
    from gpuyard.kube.ask import Cluster, Target
    from gpuyard.kube.views import GpuObject

UNNAMED = "which of its node's GPUs a pod has is not told everywhere and then assumed: gpuyard kube node would tell"
ROOM = 200


def target_of(session: Session) -> Target:
    """The cluster that flags and settings name."""
    from gpuyard.kube.ask import Target
    from gpuyard.worlds.kubernetes.settings import SYSTEM_NAMESPACE

    settings = session.settings
    kubeconfig = settings.get("kubeconfig")
    return Target(
        kubeconfig=Path(kubeconfig).expanduser() if kubeconfig else None,
        context=settings.get("kube_context") or None,
        namespace=settings.get("namespace"),
        system_namespace=settings.get("system_namespace") or SYSTEM_NAMESPACE,
    )


def read(session: Session) -> Cluster:
    from gpuyard.kube.ask import ask

    return ask(target_of(session))


def explain_pod(session: Session, word: str, form: str) -> None:
    """Why a pod, or a job of pods, runs or waits."""
    from gpuyard.kube.why import why

    cluster = read(session)
    answer = why(cluster, word)
    if form != "text":
        print_data(answer, form)
    else:
        from gpuyard.cli.show import console
        from gpuyard.cli.show_pods import show_pod

        show_pod(console(), answer, cluster.now_ms)
    click.get_current_context().exit(answer.exit_code)


def what_if_cluster(session: Session, change: Path, form: str) -> None:
    """What a change of the cluster would do."""
    from gpuyard.files.change import read_change
    from gpuyard.files.cluster import ClusterFile
    from gpuyard.kube.views import lost_work
    from gpuyard.scheduler.what_if import what_if_on

    cluster = read(session)
    changes = read_change(change, ClusterFile(cluster.snapshot, cluster.policy))
    difference = what_if_on(cluster.ledger, changes, cluster.policy)
    _say_notes(cluster)
    for note in lost_work(cluster, difference):
        talk(one_line(note))
    if form != "text":
        print_data(difference, form)
        return
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_difference

    show_difference(console(), difference)


def list_queues(session: Session, look: Look) -> None:
    from gpuyard.cli.kube_columns import QUEUES
    from gpuyard.kube.views import queue_objects

    cluster = read(session)
    _show_objects(queue_objects(cluster), QUEUES, look)
    _say_left_out(cluster)


def show_queues(session: Session, form: str) -> None:
    """The tree of queues."""
    from gpuyard.cli.team import print_tree
    from gpuyard.kube.views import queue_objects

    cluster = read(session)
    queues = queue_objects(cluster)
    if form != "text":
        print_data(queues, form)
    else:
        print_tree(queues)
    _say_left_out(cluster)


def show_gpus(session: Session, look: Look, node: str, as_map: bool | None) -> None:
    from gpuyard.cli.kube_columns import GPUS
    from gpuyard.kube.views import gpu_objects

    cluster = read(session)
    _refuse_unknown_node(cluster, node)
    gpus = list(gpu_objects(cluster, node))
    if look == Look("table") and (on_terminal() if as_map is None else as_map):
        for line in _map(gpus):
            click.echo(line)
    else:
        _show_objects(gpus, GPUS, look)
    if any(gpu.holders and not gpu.named for gpu in gpus):
        talk(UNNAMED)
    _say_notes(cluster)


def list_nodes(session: Session, look: Look) -> None:
    from gpuyard.cli.kube_columns import KUBE_NODES
    from gpuyard.kube.views import node_objects

    cluster = read(session)
    _show_objects(node_objects(cluster), KUBE_NODES, look)
    _say_notes(cluster)


# ------------------------------------------------------------------------------------------------------------- showing


def _show_objects(objects: Iterable[object], kind: Kind[Any], look: Look) -> None:
    import msgspec

    show([msgspec.json.encode(one) for one in objects], kind, look)


def _map(gpus: list[GpuObject]) -> list[str]:
    """The map of fragments, and below it who has what."""
    from gpuyard.cli.gpu import fragments

    held: dict[tuple[str, str, str], list[int]] = {}
    for gpu in gpus:
        for holder in gpu.holders:
            held.setdefault((gpu.node, holder.pod, holder.team), []).append(gpu.index)
    rows = [["NODE", "POD", "QUEUE", "GPU"]]
    for (node, pod, queue), indices in held.items():
        rows.append([one_line(node), one_line(pod), one_line(queue), ",".join(map(str, sorted(set(indices))))])
    lines = fragments(list(gpus))
    return [*lines, "", *table_lines(rows, ROOM)] if held else lines


def _refuse_unknown_node(cluster: Cluster, node: str) -> None:
    from gpuyard.errors import NotFoundError
    from gpuyard.files.suggest import did_you_mean

    known = cluster.picture.nodes
    if node and node not in known:
        raise NotFoundError(f'there is no node "{node}"{did_you_mean(node, known)}', fix="see them: gpuyard node ls")


def _say_left_out(cluster: Cluster) -> None:
    """Queues that are objects of the cluster and yet in no tree."""
    known = {queue.name for queue in cluster.picture.tree.queues}
    for note in cluster.picture.tree.notes:
        if note.queue not in known:
            talk(one_line(f'queue "{note.queue}": {note.message}'))
    _say_notes(cluster)


def _say_notes(cluster: Cluster) -> None:
    for note in cluster.notes():
        talk(one_line(note))
