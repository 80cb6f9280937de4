"""The section [gpuyard] of config.ini: what it means, and what is said about what it cannot mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.model.jobs import Sharing
from gpuyard.vdk.control.needs import Needs, read_needs
from tests.vdk.control.folders import config


def test_a_job_without_the_section_needs_no_gpu() -> None:
    needs = read_needs("[owner]\nteam = a\n[vdk]\ndb_default_type = SQLITE\n")
    assert needs == Needs()
    assert needs.request.devices == 0


def test_everything_that_can_be_asked_for() -> None:
    needs = read_needs(
        config(
            "a",
            gpus="0.5",
            device_type="A100, H100",
            priority="yes",
            movable="off",
            checkpointable="on",
            cpu="500m",
            ram="8Gi",
            run_limit="1h30m",
        )
    )
    assert needs == Needs(500, ("A100", "H100"), True, False, True, 500, 8 << 30, 5_400_000)
    request = needs.request
    assert (request.devices, request.gpu_milli, request.sharing) == (1, 500, Sharing.TIME_SLICED)
    assert request.where.gpu_models == ("A100", "H100")


@pytest.mark.parametrize(
    ("gpus", "devices", "milli"), [("0", 0, 1000), ("1", 1, 1000), ("8", 8, 1000), ("0.1", 1, 100)]
)
def test_gpus_are_whole_or_a_part_of_one(gpus: str, devices: int, milli: int) -> None:
    request = read_needs(config("a", gpus=gpus)).request
    assert (request.devices, request.gpu_milli) == (devices, milli)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("gpus", "many", 'gpus "many" is not a number'),
        ("gpus", "-1", "gpus must not be negative, got -1"),
        ("gpus", "nan", "gpus must be a finite number, not nan"),
        ("gpus", "inf", "gpus must be a finite number, not inf"),
        ("gpus", "1.5", "gpus 1.5 is neither a whole number nor below 1"),
        ("gpus", "0.0001", "gpus 0.0001 has more than three decimals"),
        ("gpus", "1e99", "gpus 1e99 is absurdly large"),
        ("gpus", "", 'gpus "" is not a number'),
        ("priority", "very", 'priority must be true or false, not "very"'),
        ("movable", "2", 'movable must be true or false, not "2"'),
        ("checkpointable", "often", 'checkpointable must be true or false, not "often"'),
        ("device_type", ",", 'device_type "," names no models of GPU'),
        ("device_type", "A 100", 'device_type "A 100" names no models of GPU'),
        ("cpu", "x", 'cpu "x" is not a number'),
        ("ram", "8 apples", 'ram "8 apples" is not a number'),
        ("run_limit", "soon", 'run_limit "soon" is not a duration'),
        ("run_limit", "0s", "run_limit must be more than 0"),
        ("gpu", "1", '[gpuyard] has no key gpu; did you mean "gpus"?'),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_the_way_out(key: str, value: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read_needs(config("a", **{key: value}))
    assert caught.value.what == what
    assert caught.value.fix
    assert str(caught.value.where) == "config.ini:6:1"
    assert caught.value.where is not None
    assert caught.value.where.field == f"gpuyard.{key}"


def test_the_same_key_of_another_section_is_not_taken_for_it() -> None:
    text = "[job]\ngpus = fine\n[gpuyard]\n; gpus = 1\nGPUS: none\n"
    with pytest.raises(InputError) as caught:
        read_needs(text)
    assert str(caught.value.where) == "config.ini:5:1"


@pytest.mark.parametrize(
    "text", ["no section\n", "[gpuyard]\ngpus = 1\ngpus = 2\n", "[a]\n[a]\n", "[gpuyard]\nnonsense\n"]
)
def test_a_file_that_is_no_ini_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_needs(text)
    assert str(caught.value.where).startswith("config.ini")


@given(st.text(max_size=200))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    for written in (text, f"[gpuyard]\ngpus = {text}"):
        try:
            assert read_needs(written).gpu_milli >= 0
        except InputError as error:
            assert error.what  # noqa: PT017
