"""What is said about teams that contradict nothing and yet surprise."""

from gpuyard.model.queue_notes import Owed, queue_notes


def test_nothing_is_said_of_a_tree_that_fits() -> None:
    tree = (Owed("research", None, 6_000), Owed("vision", "research", 6_000), Owed("product", None, 2_000))
    assert queue_notes(tree, 8_000) == ()
    assert queue_notes((Owed("default", None, None),), 8_000) == ()


def test_more_is_owed_than_there_is() -> None:
    tree = (Owed("a", None, 8_000), Owed("b", "a", 8_000), Owed("c", None, 500))
    assert queue_notes(tree, 8_000) == (
        "teams are owed 8.5 GPUs in all, and the cluster has 8 GPUs: while all of them ask, not everybody gets what "
        "they are owed",
    )
    assert queue_notes(tree, 0) == (), "no machine has joined yet"


def test_who_is_owed_everything_gives_nothing_back() -> None:
    (note,) = queue_notes((Owed("default", None, None), Owed("vision", None, 4_000)), 8_000)
    assert note.startswith('"default" is owed all it asks for')
    assert note.endswith("gpuyard team set default --quota 0")
    assert queue_notes((Owed("default", None, None), Owed("vision", None, 0)), 8_000) == ()
