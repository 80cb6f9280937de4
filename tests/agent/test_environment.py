"""What a task finds in its environment, and what nobody can put there."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.agent.environment import DEFAULT_PATH, Given, variables
from gpuyard.agent.users import Account
from gpuyard.errors import AgentError
from gpuyard.model.jobs import DeviceShare

ADA = Account(os.geteuid() + 1, 1001, (1001,), "ada", "/homes/ada")
AGENT = {"PATH": "/usr/bin", "AWS_SECRET": "secret", "LD_LIBRARY_PATH": "/agent"}


def given_to(*devices: str, account: Account = ADA, fake: dict[str, str] | None = None) -> Given:
    shares = tuple(DeviceShare(place) for place, _ in enumerate(devices))
    return Given(account, "mark", "/private", "/notice.json", devices, shares, fake or {})


LOADER = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
NVIDIA = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES")
OURS = ("GPUYARD_MARK", "GPUYARD_FAKE_STATE", "GPUYARD_PREEMPT_NOTICE_FILE")
names = st.sampled_from([*LOADER, *NVIDIA, *OURS, "HARMLESS"])


@given(st.dictionaries(names, st.just("evil")))
def test_nothing_a_user_writes_reaches_the_loader_or_names_devices(asked: dict[str, str]) -> None:
    made = variables(asked, given_to("GPU-a"), AGENT)
    assert {name for name, value in made.items() if value == "evil"} <= {"HARMLESS"}
    assert made["CUDA_VISIBLE_DEVICES"] == made["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"


def test_nothing_of_the_agent_is_passed_on_but_what_everybody_may_know() -> None:
    made = variables({}, given_to(), AGENT)
    assert "AWS_SECRET" not in made
    assert "LD_LIBRARY_PATH" not in made
    assert made["PATH"] == DEFAULT_PATH


def test_the_agents_own_path_is_that_of_jobs_of_its_own_user() -> None:
    own = msgspec.structs.replace(ADA, uid=os.geteuid())
    made = variables({}, given_to(account=own), AGENT)
    assert made["PATH"] == "/usr/bin"


def test_without_gpus_none_are_seen() -> None:
    made = variables({}, given_to(), {})
    assert (made["CUDA_VISIBLE_DEVICES"], made["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_a_bare_number_has_its_private_directory_as_home() -> None:
    assert variables({}, given_to(account=Account(7, 7, (7,), "7", "")), {})["HOME"] == "/private"


def test_a_job_may_say_itself_where_it_saves_its_work() -> None:
    assert variables({}, given_to(), {})["GPUYARD_CHECKPOINT_FILE"] == "/private/checkpoint"
    asked = {"GPUYARD_CHECKPOINT_FILE": "/data/model.pt"}
    assert variables(asked, given_to(), {})["GPUYARD_CHECKPOINT_FILE"] == "/data/model.pt"


def test_fake_gpus_come_first_on_the_path_of_the_user() -> None:
    fake = {"PATH": "/fake/bin", "LD_LIBRARY_PATH": "/fake/lib", "GPUYARD_FAKE_STATE": "/fake/state"}
    made = variables({"PATH": "/mine"}, given_to(fake=fake), {})
    assert made["PATH"] == "/fake/bin:/mine"
    assert made["LD_LIBRARY_PATH"] == "/fake/lib"


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_what_cannot_be_a_name_is_told(name: str) -> None:
    with pytest.raises(AgentError, match="cannot be the name of a variable"):
        variables({name: "x"}, given_to(), {})
