"""Every decision has a sentence a person can use."""

import pytest

from gpuyard.model.difference import Moved, NowWaiting, Started, Staying, Stopped
from gpuyard.model.difference_text import moved_text, now_waiting_text, started_text, staying_text, stopped_text
from gpuyard.model.explanation import (
    Cost,
    Edit,
    Effect,
    Explanation,
    Field,
    Forecast,
    QueueStanding,
    Rank,
    Standing,
    Stay,
    WayKind,
    WayOut,
)
from gpuyard.model.jobs import DeviceShare, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Promise, Resize
from gpuyard.model.reasons import CLUSTER, Holding, Reason, Token
from gpuyard.model.text import (
    action_text,
    amount_text,
    costs_text,
    duration_text,
    eviction_text,
    explanation_text,
    forecast_text,
    placement_text,
    queue_text,
    rank_text,
    reason_text,
    standing_text,
    stay_text,
    waiting_text,
    way_text,
)

FULL = {"resource": "gpu", "have": 5000, "need": 8000, "subject": "vision", "beneficiary": "late"}


@pytest.mark.parametrize("token", Token)
@pytest.mark.parametrize("fields", [{}, FULL], ids=["bare", "full"])
def test_every_token_has_a_sentence(token: Token, fields: dict[str, str]) -> None:
    sentence = reason_text(Reason(token, **fields))  # type: ignore[arg-type]
    assert sentence
    assert "  " not in sentence
    assert not sentence.endswith((".", ":", " "))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            Reason(
                Token.NOT_ENOUGH,
                "gpu",
                have=5000,
                need=8000,
                holders=(Holding("vision", 20_000), Holding("speech", 12_000)),
            ),
            "needs 8 GPUs, 5 can be had; vision holds 20, speech 12: wait for them, or ask for fewer",
        ),
        (
            Reason(Token.OVER_LIMIT, "gpu", have=2000, need=4000, subject="ads"),
            'needs 4 GPUs, and queue "ads" may take only 2 more under its limit: '
            "wait for jobs of that queue, or raise its limit",
        ),
        (
            Reason(Token.TOO_LARGE, "gpu", have=8000, need=16_000, never=True),
            "needs 16 GPUs in one place, the largest has 8: waiting cannot help; "
            "split it into smaller tasks, or add a larger node",
        ),
        (
            Reason(Token.FRAGMENTED, "tasks", have=3, need=4),
            "places for 4 tasks at once are needed, 3 can be had: wait, or use smaller tasks",
        ),
        (
            Reason(Token.TOO_LARGE, "gpu", have=32_000, need=40_000, subject=CLUSTER, never=True),
            "needs 40 GPUs together, the whole cluster has 32 it could use: waiting cannot help; "
            "ask for fewer, or add nodes",
        ),
        (
            Reason(Token.OVER_QUOTA, "gpu/H100", have=0, need=1000, subject="ads"),
            'needs 1 H100 GPU, and queue "ads" is owed no more, while a job that cannot be preempted may not borrow: '
            "make it preemptible, or raise the quota",
        ),
        (
            Reason(Token.NO_MATCHING_NODE, "nodes", have=0, need=5, subject="apart from app=web by hostname"),
            "rules about other tasks (apart from app=web by hostname) leave it none of 5 nodes: "
            "wait for those tasks, or change the rules",
        ),
        (
            Reason(Token.NO_MATCHING_NODE, "nodes", have=1, need=2, subject="evenly with app=web by zone"),
            "rules about other tasks (evenly with app=web by zone) leave it only 1 of 2 nodes: "
            "wait for those tasks, or change the rules",
        ),
        (
            Reason(Token.NO_MATCHING_NODE, "nodes", need=1, subject="near app=db by rack", never=True),
            "rules about other tasks (near app=db by rack) leave it none of 1 node, which have no label that the rules "
            "are about: label nodes, or change the rules",
        ),
        (
            Reason(Token.NO_MATCHING_NODE, need=1, never=True),
            "every node is tainted, cordoned or lost: tolerate the taints, or open or add a node",
        ),
        (
            Reason(Token.NO_DOMAIN, "gpu", have=5000, need=6000, subject="rack"),
            'needs 6 GPUs in one place at level "rack", where at most 5 can be had: '
            "prefer the level instead of requiring it, or ask for fewer",
        ),
        (
            Reason(Token.NO_DOMAIN, "gpu", have=6000, need=6000, subject="rack", never=True),
            'no single place at level "rack" has room for all of it: waiting cannot help; '
            "prefer the level instead of requiring it, or ask for fewer",
        ),
        (
            Reason(Token.RECLAIMED, "gpu", have=8000, need=4000, subject="vision", beneficiary="job-17"),
            'gives way to job "job-17" of another queue: queue "vision" holds 8 GPUs and is owed 4',
        ),
        (
            Reason(Token.RECLAIMED, "gpu", 8000, 4000, "vision", beneficiary="job-17", shortfall=2500),
            'gives way to job "job-17" of another queue: queue "vision" holds 8 GPUs and is owed 4; '
            "it goes whole, which leaves the queue 2.5 GPUs below what it is owed",
        ),
        (
            Reason(Token.RECLAIMED, "gpu/H100", 3000, 0, "vision", beneficiary="job-17", shortfall=3000),
            'gives way to job "job-17" of another queue: queue "vision" holds 3 H100 GPUs and is owed 0; '
            "it goes whole, which leaves the queue 3 GPUs below what it is owed",
        ),
        (
            Reason(Token.RECLAIMED, "cpu", 16_000, 8000, "vision", beneficiary="job-17", shortfall=4000),
            'gives way to job "job-17" of another queue: queue "vision" holds 16 cores and is owed 8; '
            "it goes whole, which leaves the queue 4 cores below what it is owed",
        ),
        (
            Reason(Token.RECLAIMED, subject="vision", beneficiary="job-17"),
            'gives way to job "job-17" of another queue: queue "vision" has borrowed it',
        ),
        (
            Reason(Token.PREEMPTED, subject="vision", beneficiary="job-17"),
            'gives way to job "job-17", which has a higher priority in queue "vision"',
        ),
        (
            Reason(Token.MOVED, "gpu", subject="vision", beneficiary="job-17"),
            'is moved to make room for job "job-17"; it starts again there',
        ),
        (
            Reason(Token.MOVED, subject="vision"),
            "is moved to leave its node free for larger jobs; it starts again there",
        ),
        (
            Reason(Token.STALE, have=1, need=4),
            "its gang has been incomplete for too long (1 of 4 tasks are left): it stops and starts again as a whole",
        ),
        (
            Reason(Token.DELAYED, "milliseconds", have=90_000, need=600_000),
            "it makes nobody give way for another 8m 30s, until its preemption delay is over: nothing to do",
        ),
    ],
)
def test_sentences_give_the_numbers_and_the_way_out(reason: Reason, sentence: str) -> None:
    assert reason_text(reason) == sentence


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("gpu", 8000, "8 GPUs"),
        ("gpu", 1000, "1 GPU"),
        ("gpu", 500, "0.5 GPU"),
        ("gpu", 0, "0 GPUs"),
        ("gpu/H100", 4000, "4 H100 GPUs"),
        ("cpu", 16_000, "16 cores"),
        ("memory", 64 << 30, "64Gi of memory"),
        ("gpu-memory", 4096, "4096 MiB of GPU memory"),
        ("mig-1g.10gb", 1, "1 slice 1g.10gb"),
        ("mig-1g.10gb", 2, "2 slices 1g.10gb"),
        ("nic", 2, "2 nic"),
    ],
)
def test_amounts_name_what_they_are_of(resource: str, amount: int, text: str) -> None:
    assert amount_text(resource, amount) == text


PLACED = Reason(Token.PLACED, subject="node-1")
SHARES = (DeviceShare(2), DeviceShare(1))


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (
            Bind("a", "a/1", "node-1", SHARES, PLACED),
            "a/1 starts on node-1 (GPUs 1, 2): the best place for it is node-1",
        ),
        (Bind("a", "a/1", "node-1", (), PLACED), "a/1 starts on node-1: the best place for it is node-1"),
        (
            Promise("a", "a/1", "node-1", SHARES[:1], Reason(Token.PLACE_FREEING)),
            "a/1 gets node-1 (GPU 2) as soon as it is free",
        ),
        (
            Evict("b", "b/1", "node-1", Reason(Token.PREEMPTED, beneficiary="a")),
            'b/1 leaves node-1: gives way to job "a", which has a higher priority in the same queue',
        ),
        (
            Move("b", "b/1", "node-1", "node-2", SHARES[:1], Reason(Token.MOVED, beneficiary="a")),
            'b/1 moves from node-1 to node-2 (GPU 2): is moved to make room for job "a"; it starts again there',
        ),
        (
            Resize("b", "b/1", (), Reason(Token.GREW)),
            "b/1 is resized: it is elastic and there is room for one more task",
        ),
    ],
)
def test_every_action_has_a_sentence(action: Action, sentence: str) -> None:
    assert action_text(action) == sentence


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "a moment"),
        (999, "a moment"),
        (45_000, "45s"),
        (5_400_000, "1h 30m"),
        (90_061_000, "1d 1h"),
        (3_605_000, "1h"),
    ],
)
def test_durations_are_told_in_the_units_that_matter(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_a_job_without_reasons_waits_for_its_turn() -> None:
    assert waiting_text(()) == "waits for its turn"


def test_all_reasons_of_a_wait_are_told() -> None:
    both = waiting_text((Reason(Token.STALE), Reason(Token.DELAYED)))
    assert both.count("; ") == 1


# ----------------------------------------------------------------------------------------------------- explanations


@pytest.mark.parametrize("standing", Standing)
def test_every_standing_has_a_sentence(standing: Standing) -> None:
    said = standing_text(Explanation("a", "q", standing))
    assert said
    assert not said.endswith((".", " "))


def test_an_element_that_waits_for_its_turn_is_told_how_many_run_at_once() -> None:
    waits = Explanation("a", "q", Standing.BLOCKED, at_once=4)
    assert standing_text(waits) == "waits for its turn in its array: 4 of it run at once"


@pytest.mark.parametrize(
    ("edits", "sentence"),
    [
        ([Edit(Field.ASKS, "j", "", "gpu", 8000, 5000)], "ask for 5 GPUs a task instead of 8"),
        ([Edit(Field.ASKS, "j", "worker", "cpu", 8000, 500)], "ask for 0.5 core a task of group worker instead of 8"),
        (
            [Edit(Field.ASKS, "j", "", "gpu", 8000, 5000), Edit(Field.ASKS, "j", "", "memory", 2 << 30, 1 << 30)],
            "ask for 5 GPUs a task instead of 8 and ask for 1Gi of memory a task instead of 2Gi",
        ),
        ([Edit(Field.TASKS, "j", "", "tasks", 4, 1)], "run it with 1 task instead of 4"),
        ([Edit(Field.GANG, "j", "", "tasks", 4, 2)], "let 2 tasks start together instead of 4 (gang: 2)"),
        ([Edit(Field.MODEL, "j", models=("A100",))], "accept GPUs of model A100"),
        ([Edit(Field.PREEMPTIBLE, "j", after=1)], "make it preemptible, so that it may borrow"),
        (
            [Edit(Field.LIMIT, "ads", "", "gpu/H100", 1000, 2000)],
            'raise the limit of queue "ads" from 1 to 2 H100 GPUs',
        ),
        ([Edit(Field.ENDS, "a")], "wait until a has ended"),
        ([Edit(Field.ENDS, name) for name in "abc"], "wait until a, b and c have ended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_way_out_says_what_to_do(edits: list[Edit], sentence: str) -> None:
    assert way_text(WayOut(WayKind.WAIT, tuple(edits))) == sentence
    later = way_text(WayOut(WayKind.WAIT, tuple(edits), promised=True))
    assert later == f"{sentence}; it then starts as soon as its place is free"


def test_costs_name_whom() -> None:
    assert costs_text(()) == "nobody"
    left_out = [Cost(f"w{i}", Effect.WAITS, 1) for i in range(6)]
    costs = (Cost("a", Effect.EVICTED, 2), Cost("b", Effect.MOVED, 1), *left_out)
    assert costs_text(costs) == "a must stop, b must move, w0, w1, w2, w3 and 2 more wait instead"


def test_costs_tell_jobs_that_lose_some_tasks_only() -> None:
    costs = (
        Cost("a", Effect.EVICTED, 1, partly=True),
        Cost("b", Effect.EVICTED, 2, partly=True),
        Cost("c", Effect.MOVED, 3, partly=True),
        Cost("d", Effect.WAITS, 1, partly=True),
    )
    assert costs_text(costs) == "a and b give up 3 tasks, c must move 3 tasks, d gets 1 task fewer"


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        (Rank("q", 1, 1), '1st of 1 job of queue "q" that wants a place'),
        (Rank("q", 3, 4, ("a", "b")), '3rd of 4 jobs of queue "q" that want a place; before it: a and b'),
        (
            Rank("q", 12, 111, ("a", "b", "c", "d", "e")),
            '12th of 111 jobs of queue "q" that want a place; before it: a, b, c, d and 7 more',
        ),
    ],
    ids=["alone", "few", "many"],
)
def test_a_rank_says_who_comes_first(rank: Rank, sentence: str) -> None:
    assert rank_text(rank) == sentence


def test_a_queue_says_what_it_holds_and_has_borrowed() -> None:
    full = QueueStanding("q", 8000, 12_000, 10_000, 4000, 9000)
    assert queue_text(full) == "holds 10 of 8 owed (2 borrowed), limit 12, fair share 9, 4 more wanted"
    assert (
        queue_text(QueueStanding("q", None, None, 500, 0, 0)) == "holds 0.5 and is owed all it asks for, fair share 0"
    )


def test_room_that_is_kept_until_a_start_may_be_filled_in() -> None:
    kept = reason_text(Reason(Token.RESERVED, beneficiary="head"))
    assert kept.endswith("kept for head: wait for other room, or give it a run_limit that ends before head starts")
    promised = reason_text(Reason(Token.RESERVED, subject="n1", beneficiary="head"))
    assert promised.endswith("kept for head: wait for other room")


def test_what_a_job_holds_and_since_when() -> None:
    assert stay_text(Stay("n", 2, (0, 1), TaskState.RUNNING, 1000), 61_000) == "2 tasks on n (GPUs 0, 1), for 1m"
    assert stay_text(Stay("n", 1, (), TaskState.PROMISED), 5) == "1 task on n, as soon as the place is free"


def test_a_forecast_and_an_earlier_eviction_count_from_now() -> None:
    forecast = Forecast(61_000, 3_601_000)
    assert forecast_text(forecast, 1000) == "starts by itself in about 1m, almost surely within 1h"
    assert forecast_text(Forecast(61_000, 61_000), 1000) == "starts by itself in about 1m"
    evicted = Explanation("j", "q", Standing.WAITING, last_evicted_at_ms=1000, last_eviction=Reason(Token.STALE))
    assert eviction_text(evicted, 61_000).startswith("was evicted 1m ago: its gang has been incomplete")
    assert eviction_text(Explanation("j", "q", Standing.WAITING), 5) == ""


def test_the_shortest_answer_is_one_line() -> None:
    why = (Reason(Token.FRAGMENTED, "tasks", 3, 4),)
    assert explanation_text(Explanation("j", "q", Standing.WAITING, why)).startswith(
        "j waits; waiting can help: places"
    )
    assert explanation_text(Explanation("j", "q", Standing.RUNNING)) == "j runs"


def test_an_unknown_placement_still_has_words() -> None:
    assert placement_text("bin-pack") == "by bin-pack: the fullest node that has room"
    assert placement_text("mine") == "by mine: the node this policy likes best"


def test_differences_have_sentences() -> None:
    drained = Reason(Token.DRAINED, subject="n1")
    started = Started("j", "q", 2, ("n1", "n2"), promised=True)
    assert started_text(started) == "starts 2 tasks on n1 and n2 as soon as the place is free"
    assert stopped_text(Stopped("j", "q", 1, ("n1",))) == "stops 1 task on n1: it is cancelled"
    assert moved_text(Moved("j", "q", 1, ("n1",), ("n2",), drained)).startswith("moves 1 task from n1 to n2: node")
    assert moved_text(Moved("j", "q", 1, ("n1",), ("n2",))) == "starts elsewhere: 1 task from n1 to n2"
    assert moved_text(Moved("j", "q", 1, ("n1",), ("n1",), drained)).startswith(
        "moves 1 task to other GPUs of n1: node"
    )
    assert staying_text(Staying("j", "q", 2, ("n1",))) == "keeps 2 tasks on n1, which would stop without the change"
    assert staying_text(Staying("j", "q", 1, ("n1",), moves=True)).endswith(", which would move without the change")
    waits = NowWaiting("j", "q", (Reason(Token.RESERVED),), more_tasks=True)
    assert now_waiting_text(waits).startswith("waits for more tasks: ")
