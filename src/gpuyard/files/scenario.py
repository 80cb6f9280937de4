"""Golden scenarios: a cluster, and what one cycle must decide about it.

Place in the flow: path ─▶ **scenario** ─GoldenScenario─▶ scenarios.golden, which judges it. Invariant: every job, node
and reason an expectation names exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import InputError, QuantityError
from gpuyard.files.cluster import ClusterFile, build_cluster, open_file
from gpuyard.files.format import Amount
from gpuyard.files.place import Place
from gpuyard.files.reasons import read_token
from gpuyard.files.scenario_format import EvictedSpec, ExpectSpec, PlacesSpec, ScenarioFileSpec, WaitingSpec
from gpuyard.files.shape import shaped
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.jobs import TaskState
from gpuyard.model.quantities import cpu_milli, memory_bytes, milli
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy

ANYWHERE: Final = "anywhere"
"""In place of a node: any will do."""


class ExpectedPlaces(msgspec.Struct, frozen=True):
    """Where a job is to be: tasks per node; empty means anywhere."""

    job: str
    per_node: tuple[tuple[str, int], ...] = ()


class ExpectedWait(msgspec.Struct, frozen=True):
    """Why a job is to wait. What is None or empty is not looked at; amounts are as a person writes them."""

    job: str
    tokens: tuple[Token, ...] = ()
    have: Amount | None = None
    need: Amount | None = None
    subject: str | None = None
    never: bool | None = None


class ExpectedEviction(msgspec.Struct, frozen=True):
    """Why a job is to give way, and for whom."""

    job: str
    token: Token | None = None
    beneficiary: str | None = None
    shortfall_milli: int | None = None
    tasks: int | None = None


class Expectation(msgspec.Struct, frozen=True):
    """What the cycle must decide, by kind of decision."""

    placed: tuple[ExpectedPlaces, ...] = ()
    started: tuple[ExpectedPlaces, ...] = ()
    promised: tuple[ExpectedPlaces, ...] = ()
    moved: tuple[ExpectedPlaces, ...] = ()
    waiting: tuple[ExpectedWait, ...] = ()
    evicted: tuple[ExpectedEviction, ...] = ()
    order: tuple[str, ...] = ()
    """Jobs in the order in which the plan first does something about each."""


class GoldenScenario(msgspec.Struct, frozen=True):
    """One rule of scheduling, shown by example."""

    rule: str
    snapshot: Snapshot
    policy: Policy
    expectation: Expectation


def read_scenario(path: Path) -> GoldenScenario:
    """A scenario file."""
    place = open_file(path)
    spec = shaped(place, ScenarioFileSpec, "scenario")
    if not spec.rule.strip():
        raise place.at("rule").error("the rule is empty", "say in a sentence what this scenario shows")
    cluster = build_cluster(spec, place)
    return GoldenScenario(spec.rule, cluster.snapshot, cluster.policy, _expectation(spec.expect, place, cluster))


def _expectation(spec: ExpectSpec, top: Place, cluster: ClusterFile) -> Expectation:
    place = top.at("expect")
    _refuse_empty(spec, place)
    _check_jobs(spec, place, cluster.snapshot)
    nodes = {node.name for node in cluster.snapshot.nodes}
    return Expectation(
        placed=_places(spec.placed, place.at("placed"), nodes),
        started=_places(spec.started, place.at("started"), nodes),
        promised=_places(spec.promised, place.at("promised"), nodes),
        moved=_places(spec.moved, place.at("moved"), nodes),
        waiting=tuple(_wait(job, wanted, place.at("waiting", job)) for job, wanted in (spec.waiting or {}).items()),
        evicted=tuple(_eviction(job, wanted, place.at("evicted", job)) for job, wanted in (spec.evicted or {}).items()),
        order=tuple(spec.order or ()),
    )


def _refuse_empty(spec: ExpectSpec, place: Place) -> None:
    if all(getattr(spec, name) is None for name in ExpectSpec.__struct_fields__):
        raise place.error(
            "nothing is expected", "say what is placed, waiting, moved or evicted: placed: {late: node-1}"
        )


def _check_jobs(spec: ExpectSpec, place: Place, snapshot: Snapshot) -> None:
    """Each job named is there, once among those that come and once among those that go."""
    known = {job.id for job in snapshot.jobs}
    running = {job.id for job in snapshot.jobs if any(_holds_place(task.state) for task in job.tasks)}
    _check_beneficiaries(spec, place, known)
    _check_order(spec, place.at("order"), known)
    for field in (name for name in ExpectSpec.__struct_fields__ if name != "order"):
        for job in getattr(spec, field) or {}:
            here = place.at(field, job)
            if job not in known:
                raise _unknown(f'there is no job "{job}"', job, known, here)
            if field in ("moved", "evicted") and job not in running:
                where, fix = here.where_key, "only running jobs can be moved or evicted"
                raise InputError(f'job "{job}" does not run, so it cannot be {field}', where=where, fix=fix)


def _check_beneficiaries(spec: ExpectSpec, place: Place, known: set[str]) -> None:
    for job, wanted in (spec.evicted or {}).items():
        named = wanted.beneficiary if isinstance(wanted, EvictedSpec) else None
        if named is not None and named not in known:
            raise _unknown(f'there is no job "{named}"', named, known, place.at("evicted", job, "beneficiary"))


def _check_order(spec: ExpectSpec, place: Place, known: set[str]) -> None:
    order = spec.order or []
    for index, job in enumerate(order):
        here = place.at(index)
        if job not in known:
            raise _unknown(f'there is no job "{job}"', job, known, here)
        if job in order[:index]:
            raise here.error(f'order names job "{job}" twice', "what counts is when something first happens to it")


def _holds_place(state: TaskState) -> bool:
    return state in (TaskState.RUNNING, TaskState.FREEING)


def _unknown(what: str, name: str, known: Iterable[str], place: Place) -> InputError:
    return InputError(
        f"{what}{did_you_mean(name, known)}", where=place.where_key, fix="name something that is defined above"
    )


def _places(spec: PlacesSpec | None, place: Place, nodes: set[str]) -> tuple[ExpectedPlaces, ...]:
    return tuple(ExpectedPlaces(job, _per_node(wanted, place.at(job), nodes)) for job, wanted in (spec or {}).items())


def _per_node(wanted: str | list[str] | dict[str, int], place: Place, nodes: set[str]) -> tuple[tuple[str, int], ...]:
    if wanted == ANYWHERE and ANYWHERE not in nodes:
        return ()
    counts: dict[str, int] = {}
    if isinstance(wanted, dict):
        counts = wanted
    else:
        for name in [wanted] if isinstance(wanted, str) else wanted:
            counts[name] = counts.get(name, 0) + 1
    for name in counts:
        if name not in nodes:
            raise place.error(f'there is no node "{name}"', f"nodes: {', '.join(sorted(nodes)[:10])}, or {ANYWHERE}")
    # A single name is where all of the job is, however many tasks it has.
    return ((wanted, 0),) if isinstance(wanted, str) else tuple(sorted(counts.items()))


def _wait(job: str, wanted: str | list[str] | WaitingSpec | None, place: Place) -> ExpectedWait:
    if wanted is None:
        return ExpectedWait(job)
    if isinstance(wanted, WaitingSpec):
        token = read_token(wanted.reason, place.at("reason"))
        _check_amount(wanted.have, place.at("have"))
        _check_amount(wanted.need, place.at("need"))
        return ExpectedWait(job, (token,), wanted.have, wanted.need, wanted.subject, wanted.never)
    if isinstance(wanted, str):
        return ExpectedWait(job, (read_token(wanted, place),))
    return ExpectedWait(job, tuple(read_token(word, place.at(index)) for index, word in enumerate(wanted)))


def _check_amount(written: Amount | None, place: Place) -> None:
    """Whether it is an amount of anything; of what, only the reason that is then given tells."""
    if written is not None and not any(_converts(convert, written) for convert in (cpu_milli, memory_bytes)):
        raise place.error(f"{place.name} is no amount: {place.spot.shown()}", "write it as 4, 0.5, 500m or 64Gi")


def _converts(convert: Callable[[Amount], int], written: Amount) -> bool:
    try:
        convert(written)
    except QuantityError:
        return False
    return True


def _eviction(job: str, wanted: str | EvictedSpec | None, place: Place) -> ExpectedEviction:
    if wanted is None:
        return ExpectedEviction(job)
    if isinstance(wanted, str):
        return ExpectedEviction(job, read_token(wanted, place))
    shortfall = None
    if wanted.shortfall is not None:
        shortfall = place.at("shortfall").read(milli, wanted.shortfall, "shortfall")
    token = read_token(wanted.reason, place.at("reason"))
    return ExpectedEviction(job, token, wanted.beneficiary, shortfall, wanted.tasks)
