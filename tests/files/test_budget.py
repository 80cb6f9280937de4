"""How much a file may hold is counted while it is read: reading stops at the value that goes beyond a limit."""

from __future__ import annotations

import pytest
import yaml

from gpuyard.errors import InputError
from gpuyard.files import tree
from gpuyard.files.budget import Limits
from gpuyard.files.tree import parse

SMALL = Limits(values=20, nesting=4, keys=5, scalar_characters=30, text_characters=60, anchors=2, aliases=3)

OVER = {
    "values": ("a:\n" + "- 1\n" * 30, "20:3", "holds more than 20 values once its aliases are written out"),
    "values by aliases": (
        "a: &a [1, 1, 1, 1, 1, 1]\nb: [*a, *a, *a]\n",
        "2:9",
        "holds more than 20 values once its aliases are written out",
    ),
    "nesting": ("a: [[[[[1]]]]]\n", "1:7", "nested more than 4 deep"),
    "nesting in blocks": ("- - - - - 1\n", "1:9", "nested more than 4 deep"),
    "keys": ("".join(f"k{number}: 1\n" for number in range(9)), "6:1", "a map of more than 5 keys"),
    "a long value": ("a: 1\nb: " + "x" * 31, "2:4", "a value of more than 30 characters"),
    "a long number": ("a: " + "1_" * 30, "1:4", "a value of more than 30 characters"),
    "a long key": ("? " + "x" * 31 + "\n: 1\n", "1:3", "a key of more than 30 characters"),
    "text": ("a: [" + ", ".join(["y" * 15] * 8) + "]", "1:56", "holds more than 60 characters of text"),
    "text by aliases": ("a: &a " + "y" * 25 + "\nb: [*a, *a]\n", "2:9", "holds more than 60 characters of text"),
    "anchors": ("- &a 1\n- &b 2\n- &a 3\n", "3:3", "more than 2 anchors"),
    "anchors of lists": ("- &a []\n- &b {}\n- &c []\n", "3:3", "more than 2 anchors"),
    "aliases": ("a: &a 1\nb: [*a, *a, *a, *a]\n", "2:17", "more than 3 aliases"),
}


@pytest.mark.parametrize("name", OVER)
def test_what_goes_beyond_a_limit_is_refused_by_its_name_and_place(name: str) -> None:
    text, place, what = OVER[name]
    with pytest.raises(InputError) as caught:
        parse(text, "f.yaml", limits=SMALL)
    assert str(caught.value).startswith(f"f.yaml:{place}: {what}")
    assert caught.value.fix


@pytest.mark.parametrize("name", [name for name in OVER if name != "a long number"])
def test_files_of_this_machine_may_hold_more(name: str) -> None:
    parse(OVER[name][0], "f.yaml")


@pytest.mark.parametrize("name", OVER)
def test_nothing_is_read_beyond_the_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much follows: the parser is not asked for more."""
    taken = 0
    events = tree._events

    def counted(text: str, file: str) -> object:
        nonlocal taken
        for event in events(text, file):
            taken += 1
            yield event

    monkeypatch.setattr(tree, "_events", counted)
    text = OVER[name][0].rstrip("\n")
    endless = f"{text}\n" + "# more\n" * 10_000
    with pytest.raises(InputError):
        parse(endless, "f.yaml", limits=SMALL)
    whole = sum(1 for _ in yaml.parse(text, Loader=yaml.CSafeLoader))
    assert taken < whole


def test_what_stays_within_all_limits_is_read_as_it_is() -> None:
    text = "a: &a [1, 2]\nb: [*a, *a, x]\nc: {d: e}\n"
    assert parse(text, "f.yaml", limits=SMALL).fields["b"].items[1].items[0].value == 1
