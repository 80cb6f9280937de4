"""What a task asks for, from the fields of a job or role.

Place in the flow: shape ─RequestFields─▶ **requests** ─Request─▶ jobs. Invariant: a request takes whole GPUs, or a part
of some by share or by memory, or MIG slices, or none; never two of these.
"""

from __future__ import annotations

from typing import Final, TypeVar

from gpuyard.errors import InputError
from gpuyard.files.format import EvenSpec, LabelCondition, NeighbourSpec, PreferenceSpec, RequestFields, Selector
from gpuyard.files.nodes import HOSTNAME
from gpuyard.files.place import Place
from gpuyard.model.job_limits import cpu_problem, gpus_problem, memory_problem, other_problem, where_problem
from gpuyard.model.jobs import (
    LabelRule,
    Neighbour,
    Operator,
    Preference,
    Request,
    Sharing,
    SoftNeighbour,
    SoftSpread,
    Spread,
    Toleration,
    Where,
)
from gpuyard.model.quantities import MILLI, cpu_milli, memory_bytes, memory_mib, milli

ANY_TAINT: Final = "*"

T = TypeVar("T", NeighbourSpec, EvenSpec, PreferenceSpec)

_GPU_FIELDS: Final = ("gpus", "devices", "gpu_memory", "mig", "sharing")


def read_request(spec: RequestFields, place: Place) -> Request:
    """The request of one task."""
    _refuse_contradictions(spec, place)
    devices, share, memory = _gpus(spec, place)
    request = Request(
        devices=devices,
        gpu_milli=share,
        gpu_memory_mib=memory,
        mig=tuple(sorted((spec.mig or {}).items())),
        cpu_milli=place.at("cpu").read(cpu_milli, 0 if spec.cpu is None else spec.cpu, "cpu"),
        memory_bytes=place.at("ram").read(memory_bytes, 0 if spec.ram is None else spec.ram, "ram"),
        other=tuple(sorted((name, amount) for name, amount in (spec.other or {}).items() if amount)),
        sharing=_sharing(spec, place, shared=devices > 0 and share != MILLI),
        where=_where(spec, place),
    )
    _refuse_out_of_range(request, spec, place)
    return request


def _refuse_out_of_range(request: Request, spec: RequestFields, place: Place) -> None:
    gpus = next((name for name in _GPU_FIELDS if getattr(spec, name) is not None), "gpus")
    found = (
        (gpus, gpus_problem(request)),
        ("cpu", cpu_problem(request.cpu_milli)),
        ("ram", memory_problem(request.memory_bytes)),
        ("other", other_problem(request.other)),
    )
    for field, problem in found:
        if problem:
            raise place.at(field).error(problem, "check the number and its unit; no node has that much")
    if problem := where_problem(request.where):
        raise place.error(problem, "ask for fewer, or for less")


def inherited(role: RequestFields, job: RequestFields) -> RequestFields:
    """What a role asks for: its own fields, and of the rest the job's. The GPU fields go together."""
    own_gpus = any(getattr(role, name) is not None for name in _GPU_FIELDS)
    values = {}
    for name in RequestFields.__struct_fields__:
        value = getattr(role, name)
        if value is None and not (own_gpus and name in _GPU_FIELDS):
            value = getattr(job, name)
        values[name] = value
    return RequestFields(**values)


def _refuse_contradictions(spec: RequestFields, place: Place) -> None:
    ways = [name for name in ("gpus", "gpu_memory", "mig") if getattr(spec, name) is not None]
    if len(ways) > 1:
        raise InputError(
            f"{' and '.join(ways)} are both given" if len(ways) == 2 else f"{', '.join(ways)} are all given",
            where=place.at(ways[1]).where_key,
            fix="ask by share (gpus), by memory (gpu_memory) or by slice (mig), not by several",
        )
    if spec.devices is not None and spec.mig is not None:
        raise InputError("devices is given with mig", where=place.at("devices").where_key, fix="leave devices out")


def _gpus(spec: RequestFields, place: Place) -> tuple[int, int, int]:
    """Devices, thousandths of each, MiB of each."""
    if spec.mig is not None:
        return 0, MILLI, 0
    if spec.gpu_memory is not None:
        memory = place.at("gpu_memory").read(memory_mib, spec.gpu_memory, "gpu_memory")
        if not memory:
            raise place.at("gpu_memory").error("gpu_memory must be more than 0", "for no GPU write gpus: 0")
        return spec.devices or 1, 0, memory
    share = place.at("gpus").read(milli, 1 if spec.gpus is None else spec.gpus, "gpus")
    if 0 < share < MILLI:
        return spec.devices or 1, share, 0
    if share % MILLI:
        raise place.at("gpus").error(
            f"gpus {spec.gpus} is neither a whole number nor below 1",
            "ask for whole GPUs, or for a part of several: gpus: 0.75 with devices: 2",
        )
    if spec.devices is not None:
        fix = "devices says of how many GPUs a part is taken; for whole GPUs, gpus is enough"
        raise InputError("devices is given with whole GPUs", where=place.at("devices").where_key, fix=fix)
    return share // MILLI, MILLI, 0


def _sharing(spec: RequestFields, place: Place, *, shared: bool) -> Sharing:
    if spec.sharing is None:
        return Sharing.TIME_SLICED if shared else Sharing.EXCLUSIVE
    if shared and spec.sharing is Sharing.EXCLUSIVE:
        fix = "use time-sliced or mps, or ask for whole GPUs"
        raise place.at("sharing").error("a part of a GPU cannot be exclusive", fix)
    if not shared and spec.sharing is not Sharing.EXCLUSIVE:
        fix = f"{spec.sharing} is for parts of a GPU, such as gpus: 0.5; leave sharing out"
        raise place.at("sharing").error("nothing is shared here", fix)
    return spec.sharing


# ----------------------------------------------------------------------------------------------------- where it may run


def _where(spec: RequestFields, place: Place) -> Where:
    models = [spec.model] if isinstance(spec.model, str) else spec.model or []
    return Where(
        any_of=_alternatives(spec, place),
        tolerations=tuple(_toleration(text) for text in spec.tolerations or ()),
        gpu_models=tuple(sorted(set(models))),
        neighbours=(
            *_neighbours(spec.near, place.at("near"), apart=False),
            *_neighbours(spec.apart, place.at("apart"), apart=True),
        ),
        spreads=_spreads(spec.even, place.at("even")),
        preferences=_preferences(spec.prefer, place.at("prefer")),
        soft_neighbours=(
            *_soft_neighbours(spec.near, place.at("near"), "near", sign=1),
            *_soft_neighbours(spec.apart, place.at("apart"), "apart", sign=-1),
        ),
        soft_spreads=_soft_spreads(spec.even, place.at("even")),
    )


def _alternatives(spec: RequestFields, place: Place) -> tuple[tuple[LabelRule, ...], ...]:
    """The selector holds in every alternative."""
    always = _rules(spec.selector or {}, place.at("selector"))
    if not spec.affinity:
        return (always,) if always else ()
    return tuple(always + _rules(selector, place.at("affinity", index)) for index, selector in enumerate(spec.affinity))


def _rules(selector: Selector, place: Place) -> tuple[LabelRule, ...]:
    return tuple(rule for key, value in selector.items() for rule in _label_rules(key, value, place.at(key)))


def _label_rules(key: str, value: str | list[str] | LabelCondition, place: Place) -> list[LabelRule]:
    if isinstance(value, str):
        return [LabelRule(key, Operator.IN, (value,))]
    if isinstance(value, list):
        if not value:
            raise place.error(f'no value will do for label "{key}"', "list at least one value")
        return [LabelRule(key, Operator.IN, tuple(value))]
    rules = []
    if value.not_ is not None:
        refused = (value.not_,) if isinstance(value.not_, str) else tuple(value.not_)
        if not refused:
            raise place.at("not").error(f'no value is refused for label "{key}"', "list at least one value")
        rules.append(LabelRule(key, Operator.NOT_IN, refused))
    if value.exists is not None:
        rules.append(LabelRule(key, Operator.EXISTS if value.exists else Operator.MISSING))
    if value.above is not None:
        rules.append(LabelRule(key, Operator.GREATER, (str(value.above),)))
    if value.below is not None:
        rules.append(LabelRule(key, Operator.LESS, (str(value.below),)))
    if not rules:
        fix = "write not: VALUE, exists: true or false, above: NUMBER or below: NUMBER"
        raise place.error(f'the condition on label "{key}" is empty', fix)
    return rules


def _toleration(text: str) -> Toleration:
    mark, _, effect = text.partition(":")
    if mark == ANY_TAINT:
        return Toleration(effect=effect)
    key, equals, value = mark.partition("=")
    return Toleration(key, value if equals else None, effect)


def _neighbours(
    specs: NeighbourSpec | list[NeighbourSpec] | None, place: Place, *, apart: bool
) -> tuple[Neighbour, ...]:
    word = "apart" if apart else "near"
    return tuple(
        Neighbour(_pairs(spec.labels), spec.level or HOSTNAME, apart, _conditions(spec, here, word))
        for spec, here in _listed(specs, place)
        if spec.weight is None
    )


def _soft_neighbours(
    specs: NeighbourSpec | list[NeighbourSpec] | None, place: Place, word: str, *, sign: int
) -> tuple[SoftNeighbour, ...]:
    return tuple(
        SoftNeighbour(sign * spec.weight, spec.level or HOSTNAME, _meant(spec, here, word))
        for spec, here in _listed(specs, place)
        if spec.weight is not None
    )


def _spreads(specs: EvenSpec | list[EvenSpec] | None, place: Place) -> tuple[Spread, ...]:
    return tuple(
        Spread(
            spec.level or HOSTNAME,
            spec.max_skew or 1,
            _meant(spec, here, "even"),
            spec.min_domains or 1,
            honour_labels=spec.honour_selector is not False,
            honour_taints=bool(spec.honour_taints),
        )
        for spec, here in _listed(specs, place)
        if spec.weight is None
    )


def _soft_spreads(specs: EvenSpec | list[EvenSpec] | None, place: Place) -> tuple[SoftSpread, ...]:
    return tuple(
        _soft_spread(spec, spec.weight, here) for spec, here in _listed(specs, place) if spec.weight is not None
    )


def _soft_spread(spec: EvenSpec, weight: int, place: Place) -> SoftSpread:
    for name in ("max_skew", "min_domains"):
        if getattr(spec, name) is not None:
            fix = f"a preference has no bound: leave {name} out, or weight, and the rule binds"
            raise InputError(f"{name} is given with weight", where=place.at(name).where_key, fix=fix)
    return SoftSpread(
        weight,
        spec.level or HOSTNAME,
        _meant(spec, place, "even"),
        honour_labels=spec.honour_selector is not False,
        honour_taints=bool(spec.honour_taints),
    )


def _preferences(specs: PreferenceSpec | list[PreferenceSpec] | None, place: Place) -> tuple[Preference, ...]:
    preferences = []
    for spec, here in _listed(specs, place):
        if not spec.selector:
            raise here.at("selector").error("prefer names no label", "name one: selector: {disk: ssd}")
        preferences.append(Preference(spec.weight or 1, _rules(spec.selector, here.at("selector"))))
    return tuple(preferences)


def _listed(specs: T | list[T] | None, place: Place) -> list[tuple[T, Place]]:
    """What may be one or several, each with where it stands."""
    if specs is None:
        return []
    if isinstance(specs, list):
        return [(spec, place.at(index)) for index, spec in enumerate(specs)]
    return [(specs, place)]


def _pairs(labels: Selector) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in labels.items() if isinstance(value, str)))


def _meant(spec: NeighbourSpec, place: Place, word: str) -> tuple[LabelRule, ...]:
    """All that is asked of the labels of tasks, as rules."""
    return (*_equalities(spec.labels), *_conditions(spec, place, word))


def _equalities(labels: Selector) -> tuple[LabelRule, ...]:
    return tuple(LabelRule(key, Operator.IN, (value,)) for key, value in _pairs(labels))


def _conditions(spec: NeighbourSpec, place: Place, word: str) -> tuple[LabelRule, ...]:
    """What is asked of labels beyond equality."""
    here = place.at("labels")
    if not spec.labels:
        raise here.error(f"{word} names no label", "name one: labels: {app: web}")
    return _rules({key: value for key, value in spec.labels.items() if not isinstance(value, str)}, here)
