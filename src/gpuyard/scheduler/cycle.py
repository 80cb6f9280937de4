"""One scheduling cycle: a snapshot in, a plan out. The page to read first.

Place in the flow: state ─snapshot─▶ **cycle** ─Plan─▶ verify + record. Pure: time and seeds are arguments.
Invariant: after every step the draft books no device beyond its capacity.
"""

from __future__ import annotations

from gpuyard.model.plan import Plan
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, ConsolidationMode, Policy, Step
from gpuyard.scheduler.allocate import allocate, allocate_left, leave_everyone
from gpuyard.scheduler.consolidate import Consolidate
from gpuyard.scheduler.defragment import defragment, in_use
from gpuyard.scheduler.diagnose import say_why
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.give_way import make_room
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.preempt import Preempt
from gpuyard.scheduler.promises import keep_promises
from gpuyard.scheduler.reclaim import Reclaim
from gpuyard.scheduler.stale import evict_stale_gangs
from gpuyard.scheduler.unblock import Unblock, anybody_is_kept_away


def schedule(snapshot: Snapshot, policy: Policy = DEFAULT) -> Plan:
    """Decide what happens next in a cluster, from a snapshot alone."""
    return plan(Ledger.of(snapshot), policy)


def plan(ledger: Ledger, policy: Policy = DEFAULT) -> Plan:
    """Decide who starts, grows and ends, in the order a fair owner of the cluster would. The ledger is not changed."""
    return drafted(ledger, policy).finish()


def drafted(ledger: Ledger, policy: Policy = DEFAULT) -> Draft:
    """The same with its books still open, for those who ask further."""
    draft = Draft(ledger, policy)
    consolidate = Consolidate(draft)
    keep_promises(draft)
    if Step.ALLOCATE not in policy.steps:
        leave_everyone(draft)
    elif policy.consolidation.mode is ConsolidationMode.KEEP_NODES_FREE:
        _allocate_keeping_nodes_free(draft, consolidate)
    else:
        allocate(draft)
    if Step.CONSOLIDATE in policy.steps:
        make_room(draft, consolidate.for_the_owed())
    if Step.RECLAIM in policy.steps:
        make_room(draft, Reclaim(draft))
        if anybody_is_kept_away(draft):
            make_room(draft, Unblock(draft))
    if Step.PREEMPT in policy.steps:
        make_room(draft, Preempt(draft))
    if Step.CONSOLIDATE in policy.steps:
        # Nobody is moved for a borrower before everyone who is owed something has had their turn.
        make_room(draft, consolidate.for_borrowers())
        defragment(draft, consolidate)
    if Step.STALE_GANGS in policy.steps:
        evict_stale_gangs(draft)
    say_why(draft)
    return draft


def _allocate_keeping_nodes_free(draft: Draft, consolidate: Consolidate) -> None:
    """Fill nodes that are in use, prefer a cheap move to opening an empty one, and open it only then."""
    draft.among = in_use(draft)
    allocate(draft)
    make_room(draft, consolidate.for_everyone())
    draft.among = None
    allocate_left(draft)
