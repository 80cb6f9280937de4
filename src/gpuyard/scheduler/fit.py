"""Where a shape fits now, best node first, remembered from one task to the next.

One column of scores per shape. A placement changes one node, so the next look at the same shape scores only the
nodes that changed since; a shape not seen for long is scored anew. Scores follow the policy; `NO_FIT` means no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gpuyard.errors import LedgerError
from gpuyard.model.jobs import DeviceShare, Request
from gpuyard.model.quantities import MILLI
from gpuyard.policies.fragmentation import Gradient
from gpuyard.policies.placement import FAR, SCORES
from gpuyard.policies.policy import DevicePlacement, Policy
from gpuyard.scheduler import devices
from gpuyard.scheduler.columns import SHARING_CODE, Bools, Columns, Ints
from gpuyard.scheduler.eligibility import Eligibility
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.nodestate import NodeState
from gpuyard.scheduler.shapes import Shape

NO_FIT: Final = 1 << 62
SHARED_FIRST: Final = 1 << 50
"""Taken off the score where a part fits on GPUs that are shared already: a whole GPU stays whole."""

PREFERRED: Final = 1 << 52
"""Added to the score once for every rank by which a task would rather have another node: more than anything else that
scores are made of, and far less than `NO_FIT`."""

MAX_COLUMNS: Final = 512
"""Shapes whose scores are remembered; beyond it they start over."""

MANY: Final = 8
"""So many shapes have scores of their own; further ones that differ only in CPU or memory share them at first."""

FEW: Final = 16
"""Up to this many changes are scored node by node; more are scored as columns."""


KeptStates = Sequence[Mapping[int, NodeState]]

_NO_SCORES: Final[Ints] = np.zeros(0, dtype=np.int64)


class _View:
    """What is remembered of one shape: where it may go at all, its scores, and how much of the journal they reflect."""

    __slots__ = ("eligible", "masks", "ranks", "scores", "seen")

    def __init__(self, eligible: list[bool], masks: list[int], ranks: Ints | None, scores: Ints, seen: int) -> None:
        self.eligible = eligible
        self.masks = masks
        self.ranks = ranks
        """By how much it would rather have other nodes; None where it does not mind."""
        self.scores = scores
        self.seen = seen


class FitTable:
    """Scores of every shape a draft has asked about."""

    def __init__(self, nodes: NodeBook, eligibility: Eligibility, policy: Policy, gradient: Gradient | None) -> None:
        self._nodes = nodes
        self.columns = self._read_columns()
        self._eligibility = eligibility
        self._policy = policy
        self._score = SCORES[policy.node_placement]
        self._gradient = gradient
        self._gpu_all = eligibility.gpu_all.tolist()
        self._cpu_all = eligibility.cpu_all.tolist()
        self._views: dict[int, _View] = {}
        self._scratch: Bools = np.zeros(len(nodes.frames), dtype=np.bool_)
        self.packs_parts = policy.device_placement is DevicePlacement.PACK

    def _read_columns(self) -> Columns:
        return self._nodes.columns

    def scores(self, shape: Shape) -> Ints:
        """The score of every node for this shape, as things stand. Read only."""
        view = self._views.get(shape.id)
        journal = self.columns.journal
        if view is None:
            view = self._new_view(shape)
            view.scores = self._all(shape)
        elif view.seen < len(journal):
            if len(journal) - view.seen == 1:
                position = journal[-1]
                view.scores[position] = self._at(shape, view, position)
            elif len(journal) - view.seen > FEW:
                view.scores = self._all(shape)
            else:
                for position in set(journal[view.seen :]):
                    view.scores[position] = self._at(shape, view, position)
        view.seen = len(journal)
        return view.scores

    def _new_view(self, shape: Shape) -> _View:
        if len(self._views) >= MAX_COLUMNS:
            self._views.clear()
        where = shape.request.where
        eligible, masks = self._eligibility.as_lists(where), self._eligibility.devices(where.gpu_models)[0]
        view = self._views[shape.id] = _View(eligible, masks, self._ranks(shape), _NO_SCORES, 0)
        return view

    def _ranks(self, shape: Shape) -> Ints | None:
        return None if shape.indifferent else self._eligibility.ranks(shape.request.where)

    def _view(self, shape: Shape) -> _View:
        """The view of a shape, its scores up to date or not."""
        view = self._views.get(shape.id)
        if view is None:
            self.scores(shape)
            view = self._views[shape.id]
        return view

    def best(self, shape: Shape, among: Bools | None, wishes: Ints | None = None) -> int:
        """The best node for this shape, now; -1 where there is none. `wishes`: how much each is wanted for who is
        there, where that matters."""
        if wishes is not None:
            return self._most_wanted(shape, among, wishes)
        if shape.id not in self._views and len(self._views) >= MANY and shape.coarse is not shape:
            # CPU and memory rarely decide: the best node without them is the best with them, if it has them. Where
            # they do, the shape gets scores of its own from then on.
            position = self.best(shape.coarse, among)
            if position < 0 or self._at(shape, self._view(shape.coarse), position) < NO_FIT:
                return position
        scores = self.scores(shape)
        if among is not None:
            scores = np.where(among, scores, NO_FIT)
        if not len(scores):
            return -1
        position = int(scores.argmin())
        return position if scores[position] < NO_FIT else -1

    def _most_wanted(self, shape: Shape, among: Bools | None, wishes: Ints) -> int:
        """Of the nodes that fit, those that are wanted most; and of these the one the policy likes best."""
        fits = self.scores(shape) < NO_FIT
        if among is not None:
            fits &= among
        if not fits.any():
            return -1
        wanted, scores = self._by_company(shape, wishes)
        fits &= wanted == wanted[fits].max()
        return int(np.where(fits, scores, NO_FIT).argmin())

    def in_order(self, shape: Shape, fits: Bools, wishes: Ints | None = None) -> list[int]:
        """These nodes, the best first."""
        positions = np.flatnonzero(fits)
        if wishes is None:
            order = np.argsort(self.scores(shape)[positions], kind="stable")
        else:
            wanted, scores = self._by_company(shape, wishes)
            order = np.lexsort((scores[positions], -wanted[positions]))
        return list(positions[order].tolist())

    def _by_company(self, shape: Shape, wishes: Ints) -> tuple[Ints, Ints]:
        """How much each node is wanted in all, and what the policy alone thinks of it."""
        scores, ranks = self.scores(shape), self._view(shape).ranks
        if ranks is None:
            return wishes, scores
        return wishes + self._eligibility.wishes(shape.request.where), scores - ranks * PREFERRED

    def joins(self, shape: Shape, position: int) -> bool:
        """Whether a part that fits on a node would go on GPUs that are shared already."""
        ranks = self._view(shape).ranks
        score = int(self.scores(shape)[position]) - (0 if ranks is None else int(ranks[position]) * PREFERRED)
        return score < -(SHARED_FIRST >> 1)

    def at(self, shape: Shape, position: int) -> int:
        """The score of one node now."""
        return self._at(shape, self._view(shape), position)

    def _at(self, shape: Shape, view: _View, position: int) -> int:
        if not view.eligible[position]:
            return NO_FIT
        states = self._states(position)
        joins = self._joins(shape, position, states, view.masks[position])
        if joins is None:
            return NO_FIT
        score = self._scored(shape, position, states[0], joins)
        return score if view.ranks is None else score + int(view.ranks[position]) * PREFERRED

    def fits_in(self, shape: Shape, position: int, state: NodeState) -> bool:
        """Whether one task of this shape would fit on a node in this state."""
        view = self._view(shape)
        return view.eligible[position] and self._joins(shape, position, (state,), view.masks[position]) is not None

    def would_fit_now(self, shape: Shape, position: int) -> bool:
        """Whether a node has room at this moment, promises to others aside."""
        return self.fits_in(shape, position, self._nodes.now[position])

    def shares(self, shape: Shape, position: int, way: DevicePlacement) -> tuple[DeviceShare, ...]:
        """The devices one task of this shape gets on a node it fits on."""
        frame, mask = self._nodes.frames[position], self._view(shape).masks[position]
        states = self._states(position)
        if shape.whole and not shape.extra:
            return devices.whole(shape.request.devices, frame, states, mask)
        if self._gradient is not None and shape.shared and shape.request.devices == 1:
            device = self._gradient_at(shape, position, states[0])[1]
            chosen = devices.choose(shape.request, frame, states, 1 << device, way) if device >= 0 else None
            if chosen is not None:
                return chosen
        chosen = devices.choose(shape.request, frame, states, mask, way)
        if chosen is None:
            raise LedgerError(f"{frame.node.name} was scored as fitting but has no devices for {shape.request}")
        return chosen

    def _gradient_at(self, shape: Shape, position: int, state: NodeState) -> tuple[int, int]:
        """The gradient's score of a node, and for a part of a GPU the device it would choose."""
        frame, request = self._nodes.frames[position], shape.request
        mask = self._view(shape).masks[position]
        left = [
            _left_milli(state, device, request) if mask >> device & 1 else 0 for device in range(len(frame.devices))
        ]
        model = frame.devices[0].model if frame.devices else ""
        gradient = self._gradient
        assert gradient is not None
        if not request.whole:
            milli = request.gpu_milli or 1
            return gradient.best_device(left, state.cpu_milli, model, milli, request.cpu_milli)
        free = [device for device in range(len(left)) if left[device] == MILLI][: request.devices]
        taken = [MILLI if device in free else 0 for device in range(len(left))]
        return gradient.score(left, state.cpu_milli, model, taken, request.cpu_milli), -1

    def _states(self, position: int) -> tuple[NodeState, ...]:
        now = self._nodes.now[position]
        later = self._nodes.later.get(position)
        return (now,) if later is None else (now, later)

    def _joins(self, shape: Shape, position: int, states: tuple[NodeState, ...], mask: int) -> bool | None:
        """None where the shape does not fit; else whether it fits on GPUs that are shared already."""
        for state in states:
            if not has_room(shape, state):
                return None
            mask &= state.free if shape.whole else -1
        if shape.whole and not shape.extra:
            return None if mask.bit_count() < shape.request.devices else False
        if not shape.request.devices and not shape.request.mig:
            return False
        frame = self._nodes.frames[position]
        shares = devices.choose(shape.request, frame, states, mask, self._policy.device_placement)
        if shares is None:
            return None
        return shape.shared and all(share.device in states[-1].parts for share in shares)

    def _scored(self, shape: Shape, position: int, state: NodeState, shared: bool) -> int:
        gpu_all, cpu_all = self._gpu_all[position], self._cpu_all[position]
        score: int = self._score(shape.gpu, state.gpu_milli, state.cpu_milli, gpu_all, cpu_all)
        if self._gradient is not None and shape.request.devices:
            score -= FAR * self._gradient_at(shape, position, state)[0]
        return score - SHARED_FIRST if shared and self.packs_parts else score

    def _all(self, shape: Shape) -> Ints:
        columns = self.columns
        columns.sync()
        request = shape.request
        fits = columns.slots >= shape.copies
        fits &= self._eligibility.nodes(request.where)
        term = self._scratch
        if request.cpu_milli:
            fits &= np.greater_equal(columns.cpu_milli, request.cpu_milli, out=term)
        if request.memory_bytes:
            fits &= np.greater_equal(columns.memory_bytes, request.memory_bytes, out=term)
        if self._gradient is not None or shape.extra:
            return self._one_by_one(shape, fits)
        gpu = bool(request.devices)
        cpu_all, gpu_all = self._eligibility.cpu_all, self._eligibility.gpu_all
        raw: Ints = self._score(gpu, columns.gpu_milli, columns.cpu_milli, gpu_all, cpu_all)
        if shape.whole:
            fits &= np.greater_equal(self._free_count(shape), request.devices, out=term)
        elif gpu:
            raw = raw.copy()
            fits &= self._fitting_parts(shape, raw)
        ranks = self._ranks(shape)
        if ranks is not None:
            raw = raw + ranks * PREFERRED
        return self._checked(shape, np.where(fits, raw, NO_FIT))

    def _checked(self, shape: Shape, scores: Ints) -> Ints:
        """Scores of what is free now, but for places promised to others."""
        for position in self._nodes.later:
            if scores[position] < NO_FIT:
                scores[position] = self.at(shape, position)
        return scores

    def _one_by_one(self, shape: Shape, fits: Bools) -> Ints:
        scores = np.full(len(fits), NO_FIT, dtype=np.int64)
        for position in np.flatnonzero(fits).tolist():
            scores[position] = self.at(shape, position)
        return scores

    def _free_count(self, shape: Shape) -> Ints:
        columns = self.columns
        if not shape.request.where.gpu_models:
            return columns.free_count
        mask = self._eligibility.devices(shape.request.where.gpu_models)[1]
        count: Ints = np.bitwise_count(columns.free & mask).astype(np.int64)
        return count

    def _fitting_parts(self, shape: Shape, scores: Ints) -> Bools:
        """Nodes with enough devices that have room for the part; lowers the score where those are shared already."""
        request = shape.request
        columns = self.columns.devices()
        needed = request.gpu_memory_mib or columns.capacity_mib * request.gpu_milli // MILLI
        room = (columns.milli >= request.gpu_milli) & (columns.memory_mib >= needed)
        room &= ~columns.opened | (columns.sharing == SHARING_CODE[request.sharing])
        if request.where.gpu_models:
            mask = self._eligibility.devices(request.where.gpu_models)[1]
            room &= (mask[:, None] >> np.arange(room.shape[1]) & 1).astype(np.bool_)
        if self.packs_parts:
            scores[(room & columns.opened).sum(axis=1) >= request.devices] -= SHARED_FIRST
        enough: Bools = room.sum(axis=1) >= request.devices
        return enough


class LaterFit(FitTable):
    """The same for places as they will be once what is ending has ended: what is free now does not matter."""

    def _read_columns(self) -> Columns:
        return self._nodes.later_columns()

    def _states(self, position: int) -> tuple[NodeState, ...]:
        return (self._nodes.later.get(position) or self._nodes.now[position],)

    def _checked(self, shape: Shape, scores: Ints) -> Ints:
        return scores


class _Beside(FitTable):
    """A table that also asks whether a shape fits beside what is kept for others at moments to come."""

    def __init__(
        self, nodes: NodeBook, eligibility: Eligibility, policy: Policy, gradient: Gradient | None, kept: KeptStates
    ) -> None:
        super().__init__(nodes, eligibility, policy, gradient)
        self._kept = kept
        """Per moment the nodes on which something is kept, as they will then be."""

    def _states(self, position: int) -> tuple[NodeState, ...]:
        states = super()._states(position)
        # The last of them says what will be free; the first is what scores are for.
        return (states[0], states[-1], *[kept[position] for kept in self._kept if position in kept])

    def _checked(self, shape: Shape, scores: Ints) -> Ints:
        scores = super()._checked(shape, scores)
        for position in {position for states in self._kept for position in states}:
            if scores[position] < NO_FIT:
                scores[position] = self.at(shape, position)
        return scores


class BesideFit(_Beside):
    """Where a shape fits now and also beside what is kept."""


class BesideLaterFit(_Beside, LaterFit):
    """The same for places as they will be once what is ending has ended."""


def _left_milli(state: NodeState, device: int, request: Request) -> int:
    """What is left of a device for tasks that share as this one does."""
    part = state.parts.get(device)
    if part is None:
        return MILLI * (state.free >> device & 1)
    return part.milli if part.sharing is request.sharing or request.whole else 0


def has_room(shape: Shape, state: NodeState) -> bool:
    """Room for everything but devices. What is not asked for cannot be missing."""
    request = shape.request
    if state.slots < shape.copies:
        return False
    if request.cpu_milli > state.cpu_milli and request.cpu_milli:
        return False
    if request.memory_bytes > state.memory_bytes and request.memory_bytes:
        return False
    return not request.other or all(state.other.get(name, 0) >= amount for name, amount in request.other)
