"""What of an agent's word about its node is believed, and how often it may change.

Place in the flow: hub ─what an agent said─▶ **node_health** ─NodeSeen, NodeUnhealthy─▶ journal. Pure: time is an
argument (monotonic). A node whose agent says what is out of range keeps the facts it had, what runs there and its
lease; it takes no new task until its agent says what can be believed. Invariant: however often an agent changes its
word, the log gets at most `MAX_CHANGES` entries about it in `CHANGES_MS`, and one more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from gpuyard.wire.agent_limits import cleaned_text, facts_problem
from gpuyard.wire.agents import Isolation, MachineFacts
from gpuyard.worlds.standalone.events import Event, NodeSeen, NodeUnhealthy
from gpuyard.worlds.standalone.records import NodeRecord, State

MAX_CHANGES: Final = 20
CHANGES_MS: Final = 60_000
CHANGES_TOO_OFTEN: Final = (
    f"what its agent says of it has changed more than {MAX_CHANGES} times in {CHANGES_MS // 1000} s; the newest counts "
    "when that is over"
)
SHARES_A_USER: Final = (
    "there are several teams, and its jobs would all run as one and the same user, which protects none from another: "
    "start its agent as root, or the manager with --accept-shared-user"
)


def teams_must_not_share_a_user(state: State) -> bool:
    """Return whether a node on which they would is refused: neither they nor the operator have agreed to it."""
    return len(state.teams) > 1 and not state.shared_user_accepted


def isolation_problem(state: State, facts: MachineFacts) -> str:
    """Return why these facts are refused for what keeps jobs apart; an empty text where they are not."""
    return SHARES_A_USER if facts.isolation is Isolation.NONE and teams_must_not_share_a_user(state) else ""


class Health:
    """What one agent last said of its node, in all its sessions."""

    def __init__(self) -> None:
        self.report_problem = ""
        """What was out of range in the attempts of its newest report."""
        self._facts: MachineFacts | None = None
        """As last said; of what is out of range no more than its isolation. None: nothing yet."""
        self._facts_problem = ""
        self._changes: deque[int] = deque(maxlen=MAX_CHANGES)

    def said(self, facts: MachineFacts, unreadable: str) -> None:
        """Take in new facts, or why they could not be read."""
        why = f"what its agent says of it cannot be read: {unreadable}" if unreadable else facts_problem(facts)
        self._facts_problem = cleaned_text(why)
        self._facts = MachineFacts(isolation=facts.isolation) if why else facts

    def believed(self, state: State, node: NodeRecord, now_ms: int) -> MachineFacts:
        """Return what it said if that is accepted, else what was accepted before."""
        assert self._facts is not None
        refused = self._facts_problem or isolation_problem(state, self._facts)
        if node.seen and self._facts != node.facts:
            if refused or self._too_often(now_ms):
                return node.facts
            self._changes.append(now_ms)
        return self._facts

    def settle(self, state: State, name: str, now_ms: int) -> Iterator[Event]:
        """Bring the record of the node to what its agent says; in a flood of changes, to that there is one."""
        node = state.nodes[name]
        event = self._wanted(state, node) if node.seen and self._facts is not None else None
        if event is None:
            return
        if not self._too_often(now_ms):
            self._changes.append(now_ms)
            yield event
        elif node.unhealthy != CHANGES_TOO_OFTEN:
            yield NodeUnhealthy(name, CHANGES_TOO_OFTEN)

    def _wanted(self, state: State, node: NodeRecord) -> Event | None:
        assert self._facts is not None
        why = self._facts_problem or isolation_problem(state, self._facts) or self.report_problem
        if why:
            return NodeUnhealthy(node.name, why) if node.unhealthy != why else None
        if node.unhealthy or self._facts != node.facts:
            return NodeSeen(node.name, self._facts, node.incarnation, node.boot_id, node.version)
        return None

    def _too_often(self, now_ms: int) -> bool:
        return len(self._changes) == MAX_CHANGES and now_ms - self._changes[0] < CHANGES_MS
