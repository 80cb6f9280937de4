"""The format of scenario files: a cluster file, and what its next cycle has to do.

Place in the flow: tree ─Spot─▶ shape ─format, **scenario_format**─▶ scenario. `gpuyard schema scenario` prints it.
"""

from __future__ import annotations

from typing import Annotated

from gpuyard.files.format import Amount, ClusterFileSpec, Fields, Name, Positive, says


class WaitingSpec(Fields, kw_only=True):
    """Why a job is expected to wait."""

    reason: Annotated[str, says("A reason token.", "NotEnough")]
    have: Annotated[Amount | None, says("How much there is, as a person writes it.", 0)] = None
    need: Annotated[Amount | None, says("How much it would take.", 4)] = None
    subject: Annotated[str | None, says("The queue, node, level or group it is about.")] = None
    never: Annotated[bool | None, says("True: waiting alone cannot help.")] = None


class EvictedSpec(Fields, kw_only=True):
    """Why and for whom a job is expected to give way."""

    reason: Annotated[str, says("A reason token.", "Reclaimed")]
    beneficiary: Annotated[Name | None, says("The job that gets the place.")] = None
    shortfall: Annotated[Amount | None, says("GPUs its queue is then short of what it is owed.")] = None
    tasks: Annotated[Positive | None, says("How many tasks go; all unless given.")] = None


PlacesSpec = dict[Name, Name | list[Name] | dict[Name, Positive]]
"""Job → its node, one node per task, tasks per node, or `anywhere`."""


class ExpectSpec(Fields):
    """What the cycle must decide. Jobs that run and are not named stay; jobs that wait and are not named still wait."""

    placed: Annotated[PlacesSpec | None, says("Gets this place, now or as soon as it is free.")] = None
    started: Annotated[PlacesSpec | None, says("Starts there now.")] = None
    promised: Annotated[PlacesSpec | None, says("Gets this place as soon as it is free.")] = None
    moved: Annotated[PlacesSpec | None, says("Is moved to this place.")] = None
    waiting: Annotated[dict[Name, str | list[str] | WaitingSpec | None] | None, says("Waits, for these reasons.")] = (
        None
    )
    evicted: Annotated[dict[Name, str | EvictedSpec | None] | None, says("Must give way, for this reason.")] = None
    order: Annotated[
        list[Name] | None, says("Jobs in the order in which the plan first does something about each.")
    ] = None


class ScenarioFileSpec(ClusterFileSpec, kw_only=True):
    """A rule of scheduling, shown by one cluster and what must happen in it."""

    rule: Annotated[str, says("The rule, as a sentence.")]
    expect: Annotated[ExpectSpec, says("What one cycle must decide.")]
