"""Every way a fleet file can be wrong, and the exact words a person then reads.

Each `malformed/<name>.yaml` has its message in `<name>.error`. After a wanted change of words, write them anew with
GPUYARD_WRITE_ERRORS=1 and read the difference.
"""

import os
from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import read_fleet

FILES = sorted((Path(__file__).parent / "malformed").glob("*.yaml"))
WRITE = os.environ.get("GPUYARD_WRITE_ERRORS") == "1"
WHOLE_FILE = {"empty"}


def message_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read from its own folder, so that the message does not depend on where the tests are."""
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError) as caught:
        read_fleet(Path(path.name))
    return str(caught.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_malformed_file_is_refused_in_exact_words(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = message_of(path, monkeypatch)
    expected = path.with_suffix(".error")
    if WRITE:
        expected.write_text(message + "\n", encoding="utf-8")
    assert message + "\n" == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_message_says_line_and_column_and_what_may_stand_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = message_of(path, monkeypatch).splitlines()
    file, *place = first.split(": ")[0].split(":")
    assert file == path.name
    assert path.stem in WHOLE_FILE or [int(number) > 0 for number in place] == [True, True]
    assert rest


def test_there_are_many_ways_to_be_wrong() -> None:
    assert len(FILES) >= 50
