"""Answers about pods for the terminal.

Place in the flow: a command ─PodAnswer─▶ **show_pods** ─▶ the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from gpuyard.cli.show_answers import show_body, show_section
from gpuyard.kubeapi.moments import ms_of
from gpuyard.model.explanation import Standing
from gpuyard.model.text import duration_text, names_text, printable

if TYPE_CHECKING:
    from gpuyard.kube.why import Hold, PodAnswer, PodState, Said

MAX_PODS: Final = 8
WORTH_SAYING: Final = frozenset({"BackOff"})
"""What only the scheduler itself knows; all else it has said is in the explanation, and newer there."""


def show_pod(out: Console, answer: PodAnswer, now_ms: int) -> None:
    """Where it stands, what is held against it, and then all the scheduler says."""
    alone = not answer.pod or answer.job.endswith(f"/{answer.pod.partition('/')[2]}")
    who = answer.job if alone else f"{answer.pod}, of {answer.job},"
    queue = f" (queue {answer.explanation.queue})" if answer.explanation and answer.explanation.queue else ""
    out.print(Text(printable(f"{who}{queue} {answer.standing}")), style="bold")
    show_section(out, "What holds it back", _holds(answer.holds))
    if answer.said is not None and (answer.said.word in WORTH_SAYING or answer.explanation is None):
        show_section(out, "What the scheduler has said", [_said(answer.said, now_ms)])
    if answer.explanation is not None and answer.explanation.standing is not Standing.FINISHED:
        show_body(out, answer.explanation, now_ms)
    show_section(out, "How it is read", answer.facts)
    show_section(out, "Its pods", _pods(answer.pods))
    show_section(out, "To know", answer.notes)


def _holds(holds: tuple[Hold, ...]) -> Iterator[str]:
    for hold in holds:
        yield f"{names_text(hold.pods, len(hold.pods))}: {hold.text}{f'; {hold.fix}' if hold.fix else ''}"


def _said(said: Said, now_ms: int) -> str:
    return f"{duration_text(max(now_ms - ms_of(said.at), 0))} ago: {said.text}"


def _pods(pods: tuple[PodState, ...]) -> Iterator[str]:
    for pod in pods[:MAX_PODS]:
        gpus = f", GPU {', '.join(map(str, pod.gpus))}" if pod.gpus else ""
        yield f"{pod.name}: {pod.phase}{f' on {pod.node}' if pod.node else ''}{gpus}"
    if len(pods) > MAX_PODS:
        yield f"and {len(pods) - MAX_PODS} more"
