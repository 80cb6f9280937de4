"""Whether an event holds only values that the state and the scheduler can count with."""

from __future__ import annotations

from gpuyard.model.limits import node_facts_problem
from gpuyard.worlds.standalone.events import Event, NodeSeen


def event_problem(event: Event) -> str:
    """Return why an event cannot be folded and planned on; an empty text where nothing in it forbids it."""
    if isinstance(event, NodeSeen):
        facts = event.facts
        return node_facts_problem(facts.devices, facts.cpu_milli, facts.memory_bytes, facts.labels)
    return ""
