"""Machines and their GPUs; and the door through which a new machine comes in."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import no_such
from gpuyard.service.call import Answer, Call
from gpuyard.service.certificates import fingerprint_of
from gpuyard.service.cursor import after, next_cursor
from gpuyard.service.limits import MAX_LABEL_LENGTH
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.slices import in_slices
from gpuyard.service.views import device_objects, node_object
from gpuyard.wire.rest import Joined, JoinRequest, NodeChange, Page
from gpuyard.worlds.standalone.intents import (
    AdmitNode,
    DeclareLost,
    DrainNode,
    Intent,
    LabelNode,
    RemoveNode,
    ResumeNode,
)
from gpuyard.worlds.standalone.records import NodeRecord

NODE_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""As host names are; it stands in a certificate, which has room for 64."""

_VERBS: Final[dict[str, Callable[[str, int | None], Intent]]] = {
    "drain_node": DrainNode,
    "resume_node": ResumeNode,
    "declare_lost_node": DeclareLost,
}


async def list_nodes(call: Call) -> Answer:
    limit, veil = call.limit, Veil(call.state, call.caller)
    begin = after(call, (str,))
    names = (name for name in sorted(call.state.nodes) if begin is None or (name,) > begin)
    found = list(islice(names, limit + 1))
    heard = call.manager.heard_at_ms
    nodes = [call.state.nodes[name] for name in found[:limit]]
    shown_on = call.manager.issues().shown_on
    async with call.service.traffic.reading.turn(call.caller.user):
        items = await in_slices(nodes, lambda node: shown_on(node_object(call.state, node, veil, heard(node.name))))
    more = next_cursor(call, (found[limit - 1],)) if len(found) > limit else None
    return Answer(Page(tuple(items), more, call.state.seq))


async def get_node(call: Call) -> Answer:
    return _answer(call, _node(call))


async def steer(call: Call) -> Answer:
    """Drain, resume, declare lost."""
    node = _node(call)
    await call.manager.do(_VERBS[call.operation.name](node.name, call.if_match), call.caller)
    return _answer(call, call.state.nodes[node.name])


async def change_node(call: Call) -> Answer:
    assert isinstance(call.value, NodeChange)
    node = _node(call)
    for key, value in call.value.labels.items():
        if not key or max(len(key), len(value or "")) > MAX_LABEL_LENGTH:
            what = f'the label "{key[:40]}" is empty or too long'
            fix = f"at most {MAX_LABEL_LENGTH} characters"
            raise RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="labels")
    await call.manager.do(LabelNode(node.name, call.value.labels, call.if_match), call.caller)
    return _answer(call, call.state.nodes[node.name])


async def remove_node(call: Call) -> Answer:
    await call.manager.do(RemoveNode(_node(call).name, call.if_match), call.caller)
    return Answer()


def _node(call: Call) -> NodeRecord:
    name = call.path["name"]
    node = call.state.nodes.get(name)
    if node is None:
        raise _no_machine(name)
    return node


def _no_machine(name: str) -> RefusedError:
    return no_such(ProblemReason.NODE_UNKNOWN, f'there is no machine "{name[:80]}"', "gpuyard node ls")


def _answer(call: Call, node: NodeRecord) -> Answer:
    seen = node_object(call.state, node, Veil(call.state, call.caller), call.manager.heard_at_ms(node.name))
    return Answer(call.manager.issues().shown_on(seen), revision=node.revision)


async def list_devices(call: Call) -> Answer:
    limit, veil, wanted = call.limit, Veil(call.state, call.caller), call.text("node")
    if wanted and wanted not in call.state.nodes:
        raise _no_machine(wanted)
    begin = after(call, (str, int))
    nodes = [call.state.nodes[name] for name in sorted(call.state.nodes) if not wanted or name == wanted]
    if begin is not None:
        nodes = [node for node in nodes if (node.name,) >= begin[:1]]
    devices = (device for node in nodes for device in device_objects(call.state, node, veil))
    found = list(
        islice((device for device in devices if begin is None or (device.node, device.index) > begin), limit + 1)
    )
    last = found[limit - 1] if len(found) > limit else None
    more = next_cursor(call, (last.node, last.index)) if last else None
    return Answer(Page(tuple(found[:limit]), more, call.state.seq))


async def join_node(call: Call) -> Answer:
    """The machine's key stays with it: what comes is a request to be signed."""
    assert isinstance(call.value, JoinRequest)
    authority, node = call.service.settings.authority, call.value.node
    if authority is None:
        raise RefusedError(ProblemReason.UNAVAILABLE, "this manager takes no further machines", fix="ask its operator")
    if not NODE_NAME.fullmatch(node):
        fix = "letters, digits, dots and dashes, at most 63"
        raise RefusedError(ProblemReason.BAD_VALUE, f'"{node[:80]}" is no name of a machine', fix=fix, field="node")
    certificate = authority.machine(node, call.value.csr.encode())
    await call.manager.do(AdmitNode(node, fingerprint_of(certificate), call.caller.token), call.caller)
    return Answer(Joined(node, certificate.decode(), authority.pem.decode(), call.service.settings.agents))


HANDLERS: Final = {
    "list_nodes": list_nodes,
    "get_node": get_node,
    **dict.fromkeys(_VERBS, steer),
    "change_node": change_node,
    "remove_node": remove_node,
    "join_node": join_node,
    "list_devices": list_devices,
}
