"""Utilisation profiles: both written forms, ranges and percentages, and the error for what is not one."""

from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.profile import BUSY, Memory, Phase, Profile, read_profile

HOUR = 3_600_000
SNIPPET = Path(__file__).parent / "malformed" / "seed-profile.txt"
SIXTY_PER_CENT = Memory(60_000, 60_000, relative=True)
EIGHTY_THEN_IDLE = (Phase(HOUR, 80, 80, SIXTY_PER_CENT), Phase(HOUR, 0, 0, SIXTY_PER_CENT))


@pytest.mark.parametrize(
    "text",
    [
        "[{time: 1h, utilization: 80, memory: 60%}, {time: 1h, utilization: 0}]",
        '[{"time": "1h", "utilization": 80, "memory": "60%"}, {"time": "1h", "utilization": 0}]',
        "- {time: 1h, utilization: 80, memory: 60%}\n- {time: 60m, utilization: 0}\n",
        "- time: 1h\n  utilization: '80%'\n  memory: 60.0%\n- time: 3600s\n  utilization: 0\n",
    ],
)
def test_a_list_takes_repeat_from_beside_it(text: str) -> None:
    assert read_profile(text, repeat=5) == Profile(EIGHTY_THEN_IDLE, 5)
    assert read_profile(text, repeat="5") == Profile(EIGHTY_THEN_IDLE, 5)
    assert read_profile(text) == Profile(EIGHTY_THEN_IDLE, 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"phases": [{"time": "1h", "utilization": 80, "memory": "60%"}, {"time": "1h", "utilization": 0}],'
        '"repeat": 5}',
        "phases:\n- {time: 1h, utilization: 80, memory: 60%}\n- {time: 1h, utilization: 0}\nrepeat: 5\n",
    ],
)
def test_a_map_holds_phases_and_repeat(text: str) -> None:
    assert read_profile(text) == Profile(EIGHTY_THEN_IDLE, 5)


def test_a_profile_may_repeat_as_long_as_the_task_runs() -> None:
    assert read_profile("{phases: [{time: 1h}], repeat: forever}").repeat is None


def test_the_last_phase_may_last_as_long_as_the_task() -> None:
    assert read_profile("[{time: 1m, utilization: 5}, {utilization: 90}]").phases[-1] == Phase(None, 90, 90)


@pytest.mark.parametrize(("written", "ends"), [("10-30", (10, 30)), ("'10 - 30%'", (10, 30)), ("10", (10, 10))])
def test_a_utilisation_may_be_a_range(written: str, ends: tuple[int, int]) -> None:
    (phase,) = read_profile(f"[{{time: 1h, utilization: {written}}}]").phases
    assert (phase.low_percent, phase.high_percent) == ends


def test_a_pause_frees_no_memory_and_takes_none() -> None:
    text = "[{time: 1h}, {time: 1h, memory: 4GiB}, {time: 1h, utilization: 0}, {memory: 0}]"
    assert [phase.memory for phase in read_profile(text).phases] == [
        None,
        Memory(4 << 30, 4 << 30, relative=False),
        Memory(4 << 30, 4 << 30, relative=False),
        Memory(0, 0, relative=False),
    ]


@pytest.mark.parametrize(
    ("written", "memory"),
    [
        ("5000", Memory(5000 << 20, 5000 << 20, relative=False)),
        ("4GiB", Memory(4 << 30, 4 << 30, relative=False)),
        ("2GiB-4GiB", Memory(2 << 30, 4 << 30, relative=False)),
        ("40-60%", Memory(40_000, 60_000, relative=True)),
        ("12.5%", Memory(12_500, 12_500, relative=True)),
    ],
)
def test_memory_is_mib_or_has_its_unit(written: str, memory: Memory) -> None:
    (phase,) = read_profile(f"[{{time: 1h, memory: {written}}}]").phases
    assert phase.memory == memory


def test_a_task_that_says_nothing_is_fully_busy() -> None:
    assert BUSY.phases == (Phase(None, 100, 100),)


def test_the_mock_designs_own_snippet_is_not_json_and_the_error_shows_what_is() -> None:
    with pytest.raises(InputError) as caught:
        read_profile(SNIPPET.read_text(encoding="utf-8"))
    first, form, *_ = str(caught.value).splitlines()
    assert first == "profile:2:5: not a profile: a map cannot be a key"
    shown = form.strip().removeprefix("write ").removesuffix(",")
    assert read_profile(shown).repeat == 5


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("80", "1:1", "a profile is a list of phases or a map, not 80"),
        ("[]", "1:1", "a profile has 1 to 10000 phases, not 0"),
        ("{phases: []}", "1:10", "phases is empty"),
        ("[{time: 1h, utilisation: 80}]", "1:13", 'unknown field "utilisation" in [0]; did you mean "utilization"?'),
        ("[{time: 0m}]", "1:9", "a phase must last some time, not 0"),
        ("[{time: 1h, utilization: 120}]", "1:26", "utilization cannot be 120"),
        ("[{time: 1h, utilization: -1}]", "1:26", "utilization cannot be -1"),
        ("[{time: 1h, utilization: 1.5}]", "1:26", "must be a whole number or text, not 1.5"),
        ("[{time: 1h, memory: -1}]", "1:21", "memory must not be negative, got -1"),
    ],
)
def test_what_is_no_profile_is_told_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_profile(text)
    assert str(caught.value).startswith(f"profile:{place}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("repeat", [0, -1, "x", "", 10**10])
def test_a_round_is_counted_from_one(repeat: int | str) -> None:
    with pytest.raises(InputError, match="repeat cannot be"):
        read_profile("[{time: 1h}]", repeat=repeat)
