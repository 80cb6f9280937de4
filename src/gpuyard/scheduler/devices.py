"""Which devices of one node a task gets.

Whole GPUs: those closest to each other, and of those the group it fills best. Parts of a GPU: the fullest device
that still fits (or the emptiest, where the policy spreads). Always the lowest index among equals.
"""

from __future__ import annotations

from gpuyard.model.jobs import DeviceShare, Request
from gpuyard.model.quantities import MILLI
from gpuyard.policies.policy import DevicePlacement
from gpuyard.scheduler.nodestate import NodeFrame, NodeState, Part, bits


def choose(
    request: Request, frame: NodeFrame, states: tuple[NodeState, ...], allowed: int, placement: DevicePlacement
) -> tuple[DeviceShare, ...] | None:
    """The shares a task gets on a node, free in all the given states; None where it does not fit.

    `allowed` masks the devices it may use. CPU, memory and the like are checked by the caller.
    """
    shares: tuple[DeviceShare, ...] = ()
    if request.mig:
        slices = _slices(request, frame, states)
        if slices is None:
            return None
        shares = slices
    if not request.devices:
        return shares
    if request.whole:
        chosen = whole(request.devices, frame, states, allowed)
        return shares + chosen if chosen else None
    parts = _parts(request, frame, states, allowed, placement)
    return None if parts is None else shares + parts


def lowest_devices(state: NodeState, frame: NodeFrame, request: Request) -> tuple[DeviceShare, ...]:
    """For a task whose world does not say which devices it holds: the lowest free ones.

    Where too few are left it is on more than the node has now, and nobody else gets what is left.
    """
    chosen = choose(request, frame, (state,), frame.whole_mask, DevicePlacement.PACK)
    if chosen is None and request.whole and not request.mig:
        chosen = whole((state.free & frame.whole_mask).bit_count(), frame, (state,), frame.whole_mask)
    return chosen or ()


def whole(count: int, frame: NodeFrame, states: tuple[NodeState, ...], allowed: int) -> tuple[DeviceShare, ...]:
    """Whole devices free in all the given states, the closest to each other; nothing where there are too few."""
    free = allowed
    for state in states:
        free &= state.free
    if free.bit_count() < count:
        return ()
    if frame.links and count > 1:
        free = _closest(count, free, frame.links)
    if count == 1:
        device = (free & -free).bit_length() - 1
        return (DeviceShare(device, MILLI, frame.device_memory_mib[device]),)
    chosen = []
    for _ in range(count):
        low = free & -free
        device = low.bit_length() - 1
        chosen.append(DeviceShare(device, MILLI, frame.device_memory_mib[device]))
        free ^= low
    return tuple(chosen)


def _closest(count: int, free: int, kinds: tuple[tuple[int, ...], ...]) -> int:
    """The smallest group of linked free devices that is large enough; where none is, few large groups."""
    for groups in kinds:
        enough = [group & free for group in groups if (group & free).bit_count() >= count]
        if enough:
            return min(enough, key=lambda mask: (mask.bit_count(), mask))
    gathered = 0
    for group in sorted(kinds[0], key=lambda mask: (-(mask & free).bit_count(), mask)):
        if gathered.bit_count() >= count:
            break
        gathered |= group & free
    return gathered


def _slices(request: Request, frame: NodeFrame, states: tuple[NodeState, ...]) -> tuple[DeviceShare, ...] | None:
    shares: list[DeviceShare] = []
    models = request.where.gpu_models
    for profile, count in request.mig:
        for device in sorted(device for name, device in states[0].mig if name == profile):
            if models and frame.devices[device].model not in models:
                continue
            left = min(state.mig[profile, device] for state in states)
            taken = min(count, max(left, 0))
            shares += [DeviceShare(device, 0, 0, profile)] * taken
            count -= taken
        if count:
            return None
    return tuple(shares)


def _parts(
    request: Request, frame: NodeFrame, states: tuple[NodeState, ...], allowed: int, placement: DevicePlacement
) -> tuple[DeviceShare, ...] | None:
    sign = 1 if placement is DevicePlacement.PACK else -1
    candidates = []
    for device in bits(allowed & frame.share_mask & ~_changing(states)):
        share = part_share(request, device, frame)
        left = [_left(state, device, frame, request) for state in states]
        if share is not None and all(part is not None and _fits(share, part) for part in left):
            emptiness = min(_room(part, frame, device) for part in left if part is not None)
            candidates.append((sign * emptiness, device, share))
    if len(candidates) < request.devices:
        return None
    candidates.sort(key=lambda candidate: candidate[:2])
    return tuple(share for _, _, share in candidates[: request.devices])


def _changing(states: tuple[NodeState, ...]) -> int:
    """Devices shared now but soon whole again, or whole now but promised in part: they are joined by promise only."""
    mask = 0
    if len(states) > 1:
        for device in states[0].parts.keys() ^ states[1].parts.keys():
            mask |= 1 << device
    return mask


def part_share(request: Request, device: int, frame: NodeFrame) -> DeviceShare | None:
    """What a request for a part would hold of a device; None where the device is smaller than the part."""
    capacity = frame.device_memory_mib[device]
    if request.gpu_memory_mib:
        fits = request.gpu_memory_mib <= capacity
        return DeviceShare(device, 0, request.gpu_memory_mib) if fits else None
    return DeviceShare(device, request.gpu_milli, capacity * request.gpu_milli // MILLI)


def _left(state: NodeState, device: int, frame: NodeFrame, request: Request) -> Part | None:
    """What is left of a device for this class of sharing; None where it is not to be had at all."""
    part = state.parts.get(device)
    if part is None:
        free = state.free >> device & 1
        return Part(MILLI, frame.device_memory_mib[device], request.sharing, 0) if free else None
    return part if part.sharing is request.sharing else None


def _fits(share: DeviceShare, part: Part) -> bool:
    return share.gpu_milli <= part.milli and share.memory_mib <= part.memory_mib


def _room(part: Part, frame: NodeFrame, device: int) -> int:
    """How empty a device is, in thousandths; an untouched one is emptier than any that is shared."""
    if not part.tasks:
        return MILLI + 1
    capacity = frame.device_memory_mib[device]
    return min(part.milli, part.memory_mib * MILLI // capacity) if capacity else part.milli
