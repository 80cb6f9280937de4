"""What has changed on a node, in the words of a log.

Place in the flow: node ─before, after─▶ **node_news** ─▶ log. Pure. Invariant: one entry for each change, and nothing
in it that has not changed, but for how many devices there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.worlds.kubernetes.devices import NodeDevices


def news(before: NodeDevices, after: NodeDevices) -> str:
    held = {id for each in after.held for id in each.devices}
    count = len(after.devices)
    how_many = f"{count} device{'s' * (count != 1)}, {len(held)} held"
    return "; ".join([how_many, *_of_devices(before, after), *_of_holders(before, after)])


def _of_devices(before: NodeDevices, after: NodeDevices) -> Iterator[str]:
    old = {device.id: device.healthy for device in before.devices}
    new = {device.id: device.healthy for device in after.devices}
    told = {
        "gone": sorted(old.keys() - new.keys()),
        "ill": [id for id, healthy in new.items() if not healthy and old.get(id, True)],
        "well again": [id for id, healthy in new.items() if healthy and not old.get(id, True)],
    }
    return (f"{what}: {', '.join(ids)}" for what, ids in told.items() if ids)


def _of_holders(before: NodeDevices, after: NodeDevices) -> Iterator[str]:
    old, new = _by_holder(before), _by_holder(after)
    for holder in sorted(old.keys() | new.keys()):
        if old.get(holder) != new.get(holder):
            yield f"{'/'.join(holder)} has {', '.join(new.get(holder, ())) or 'none any more'}"


def _by_holder(devices: NodeDevices) -> dict[tuple[str, str, str], tuple[str, ...]]:
    return {(held.namespace, held.pod, held.container): held.devices for held in devices.held}
