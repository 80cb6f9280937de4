"""The documents of the client and the command line hold what they say."""

import re
from pathlib import Path

import pytest

from gpuyard.cli import exit_codes
from gpuyard.cli.commands import ALIASES, COMMANDS
from gpuyard.sdk.config import VARIABLES
from tests.sdk.yard import TOKEN, Yard, a_job, an_event

DOCS = Path(__file__).parents[2] / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_examples_of_the_client_run(
    url: str, yard: Yard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard.submitted_state = "running"
    yard.logs[("1", 0, 1)] = [b"hello\n"]
    yard.after_log = lambda id: yard.jobs.update({id: a_job(id, state="succeeded", exit_code=0)})
    yard.events = [an_event(1, text="it happened")]
    monkeypatch.setenv("GPUYARD_URL", url)
    monkeypatch.setenv("GPUYARD_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", text("sdk.md"), re.DOTALL)
    names = {"url": url, "token": TOKEN}
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out
    assert len(blocks) == 8
    for words in ("1 running\nhello\n0\n", "ann\n", "1 it happened\n"):
        assert words in said


def test_every_command_setting_and_exit_code_is_in_the_document() -> None:
    page = text("cli.md")
    for name in (*COMMANDS, *ALIASES):
        assert f"`{name}`" in page
    for variable in (*VARIABLES.values(), "GPUYARD_HOME", "GPUYARD_CONFIG", "GPUYARD_DEBUG"):
        assert variable in page
    codes = [value for name, value in vars(exit_codes).items() if name.isupper() and type(value) is int]
    for code in codes:
        assert re.search(rf"\b{code}\b", page), code


def test_every_error_of_the_client_is_in_the_document() -> None:
    from gpuyard.errors import ClientError

    for kind in ClientError.__subclasses__():
        assert f"`{kind.__name__}`" in text("sdk.md")
