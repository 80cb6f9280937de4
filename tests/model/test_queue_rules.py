"""The rules of a tree of queues; the words and places of the messages are in tests/files/malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import QueueTreeError, Where
from gpuyard.model.quantities import GPU, MAX_QUANTITY, MILLI
from gpuyard.model.queue_rules import MAX_CHILDREN_SHOWN, validate_queues
from gpuyard.model.queues import MAX_QUEUE_DEPTH, MAX_QUEUES, Queue, QueueShare


def queue(
    name: str, gpus: int | None = 0, *, parent: str | None = None, limit: int | None = None, overcommit: bool = False
) -> Queue:
    quota = None if gpus is None else gpus * MILLI
    most = None if limit is None else limit * MILLI
    return Queue(name, parent, (QueueShare(GPU, quota, most),), overcommit=overcommit)


def problems(*queues: Queue) -> list[str]:
    return [problem.what for problem in validate_queues(queues)]


def test_a_sound_tree_has_no_problem() -> None:
    assert (
        problems(queue("a", 8), queue("b", 4, parent="a", limit=4), queue("c", 4, parent="a"), queue("d", None)) == []
    )


def test_no_queues_are_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_loop_is_told_once(length: int) -> None:
    ring = [queue(f"q{i}", parent=f"q{(i + 1) % length}") for i in range(length)]
    assert len(problems(*ring)) == 1
    assert "is above itself" in problems(*ring)[0]


def test_a_queue_below_a_loop_is_not_on_it() -> None:
    assert len(problems(queue("a", parent="b"), queue("b", parent="a"), queue("below", parent="a"))) == 1


def test_children_may_add_up_to_exactly_the_quota() -> None:
    assert problems(queue("top", 8), queue("a", 3, parent="top"), queue("b", 5, parent="top")) == []


def test_children_may_not_add_up_to_more() -> None:
    (problem,) = validate_queues((queue("top", 8), queue("a", 4, parent="top"), queue("b", 5, parent="top")))
    assert problem.what == 'the children of queue "top" ask for 9 GPUs, and it has 8'
    assert problem.fix == "quotas of children add up to 9 (a 4, b 5); lower them, raise top, or set overcommit: true"


def test_overcommit_lets_them() -> None:
    assert problems(queue("top", 8, overcommit=True), queue("a", 40, parent="top")) == []


def test_a_parent_that_is_owed_all_it_asks_for_is_never_short() -> None:
    assert problems(queue("top", None), queue("a", 40, parent="top")) == []


def test_many_children_are_counted_not_listed() -> None:
    children = [queue(f"c{i:02}", 1, parent="top") for i in range(MAX_CHILDREN_SHOWN + 3)]
    (problem,) = validate_queues((queue("top", 1), *children))
    assert "and 3 more" in problem.fix


def test_every_problem_is_listed_at_once() -> None:
    assert problems(
        queue("twice"), queue("twice"), queue("orphan", parent="nobody"), queue("tight", 8, limit=4), queue("minus", -1)
    ) == [
        'queue "twice" is defined twice',
        'queue "orphan" has the parent "nobody", which does not exist',
        'queue "tight" is owed 8 GPUs but may hold only 4',
        'the quota of queue "minus" is negative',
    ]


def test_absurd_amounts_are_refused() -> None:
    assert problems(queue("vast", MAX_QUANTITY + 1)) == ['the quota of queue "vast" is absurdly large']


def test_a_tree_has_a_greatest_depth() -> None:
    chain = [queue("q0"), *(queue(f"q{i}", parent=f"q{i - 1}") for i in range(1, MAX_QUEUE_DEPTH + 3))]
    assert problems(*chain[:MAX_QUEUE_DEPTH]) == []
    assert problems(*chain) == [f'queue "q{MAX_QUEUE_DEPTH}" lies deeper than {MAX_QUEUE_DEPTH} levels']


def test_a_tree_has_a_greatest_size() -> None:
    assert "are more than" in problems(*(queue(f"q{i}") for i in range(MAX_QUEUES + 1)))[0]


def test_a_problem_says_where_it_stands() -> None:
    def locate(position: int, field: str, resource: str) -> Where:
        return Where("file.yaml", position + 1, 1)

    (problem,) = validate_queues((queue("a"), queue("b", 8, limit=4)), locate)
    assert str(problem).startswith("file.yaml:2:1: ")


def test_an_error_of_the_tree_shows_all_its_problems() -> None:
    found = validate_queues((queue("a", 8, limit=4), queue("b", -1)))
    error = QueueTreeError(found)
    assert error.what == "2 problems in the tree of queues"
    assert str(error).count("queue") >= 2


names = st.sampled_from("abcdef")


@given(st.lists(st.tuples(names, st.none() | names, st.none() | st.integers(-2, 9), st.booleans()), max_size=12))
def test_any_tree_is_judged_and_a_sound_one_has_a_way_to_its_root(
    drawn: list[tuple[str, str | None, int | None, bool]],
) -> None:
    queues = [queue(name, gpus, parent=parent, overcommit=free) for name, parent, gpus, free in drawn]
    if not problems(*queues):
        parents = {entry.name: entry.parent for entry in queues}
        assert all(reaches_root(entry.name, parents) for entry in queues)


def reaches_root(name: str, parents: dict[str, str | None]) -> bool:
    for _ in range(len(parents)):
        above = parents[name]
        if above is None:
            return True
        name = above
    return False


def test_a_long_chain_is_judged_at_once() -> None:
    chain = [queue(f"q{i}", parent=f"q{(i + 1) % MAX_QUEUES}") for i in range(MAX_QUEUES)]
    assert len(problems(*chain)) == 1
