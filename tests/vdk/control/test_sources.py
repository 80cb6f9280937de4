"""Sources: the same files are the same version, and nothing that is unpacked lies outside its folder."""

from __future__ import annotations

import io
import stat
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import RefusedError
from gpuyard.vdk.control.sources import as_zip, unpacked_zip
from gpuyard.wire.agents import MAX_PARCEL_BYTES
from gpuyard.wire.artifacts import MAX_FILES
from tests.vdk.control.folders import packed

CONFIG = {"config.ini": "[owner]\nteam = a\n"}


def zipped(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        for name, content in members:
            target.writestr(name, content)
    return data.getvalue()


def test_the_same_files_are_one_version_whenever_and_in_whatever_order_they_are_packed() -> None:
    one = packed({**CONFIG, "10_a.py": "x", "lib/b.py": "y"})
    late = io.BytesIO()
    with zipfile.ZipFile(late, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in (("other/lib/b.py", "y"), ("other/10_a.py", "x"), ("other/config.ini", CONFIG["config.ini"])):
            target.writestr(zipfile.ZipInfo(name, time.localtime()[:6]), text)
    assert unpacked_zip(one).version == unpacked_zip(late.getvalue()).version
    assert unpacked_zip(one).version != unpacked_zip(packed({**CONFIG, "10_a.py": "z", "lib/b.py": "y"})).version


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z0-9_]{1,8}){0,2}\.py", fullmatch=True), st.text(max_size=200)))
def test_what_is_downloaded_is_what_was_uploaded(files: dict[str, str]) -> None:
    sources = unpacked_zip(packed({**files, **CONFIG}, "job"))
    again = unpacked_zip(as_zip(sources.archive, "train-model"))
    assert again == sources
    assert {file.path: file.data.decode() for file in again.files} == {**files, **CONFIG}


def test_the_archive_is_one_that_tar_unpacks_with_executable_files_still_so(tmp_path: Path) -> None:
    script = zipfile.ZipInfo("job/tool.sh")
    script.external_attr = (stat.S_IFREG | 0o755) << 16
    sources = unpacked_zip(zipped(("job/config.ini", b"[owner]"), (script, b"#!/bin/sh\necho ran\n")))
    (tmp_path / "parcel").write_bytes(sources.archive)
    subprocess.run(["tar", "-x", "-f", "parcel"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "tool.sh"], capture_output=True, check=True).stdout == b"ran\n"
    with tarfile.open(tmp_path / "parcel") as tar:
        assert [member.name for member in tar] == ["config.ini", "tool.sh"]


def link() -> bytes:
    info = zipfile.ZipInfo("job/passwords")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped(("job/config.ini", b""), (info, b"/etc/shadow"))


def twice() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return zipped(("job/config.ini", b""), ("job/a.py", b"1"), ("job/a.py", b"2"))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 no zip at all", "cannot be read"),
        (packed({"10_a.py": "x"}), "no config.ini"),
        (zipped(("config.ini", b"")), "does not lie in the folder"),
        (zipped(("job/config.ini", b""), ("job/../../etc/cron.d/x", b"")), "does not lie in the folder"),
        (zipped(("job/config.ini", b""), ("/etc/cron.d/x", b"")), "does not lie in the folder"),
        (zipped(("job/config.ini", b""), ("job\\..\\x", b"")), "does not lie in the folder"),
        (zipped(("job/config.ini", b""), ("job/" + "x" * 300, b"")), "too long"),
        (zipped(("job/config.ini", b""), ("job/a\x1b[2Jb", b"")), "cannot be shown"),
        (zipped(("job/config.ini", b"\xff\xfe")), "not UTF-8"),
        (packed({**CONFIG, **{f"f{number}": "" for number in range(MAX_FILES)}}), f"{MAX_FILES} is the most"),
        (packed({**CONFIG, "data.csv": "x" * (MAX_PARCEL_BYTES + 1)}), "is the most"),
    ],
)
def test_what_cannot_be_sources_is_refused_in_words(data: bytes, what: str) -> None:
    with pytest.raises(RefusedError, match=what) as caught:
        unpacked_zip(data)
    assert caught.value.fix


def test_links_and_a_name_twice_are_refused() -> None:
    with pytest.raises(RefusedError, match="no plain file"):
        unpacked_zip(link())
    with pytest.raises(RefusedError, match="twice"):
        unpacked_zip(twice())


def test_a_small_file_that_would_unpack_to_a_large_one_is_not_unpacked() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("job/config.ini", "")
        target.writestr("job/zeros", b"\0" * (64 << 20))
    assert len(bomb.getvalue()) < 1 << 20
    with pytest.raises(RefusedError, match="is the most"):
        unpacked_zip(bomb.getvalue())


@given(st.binary(max_size=400))
def test_whatever_is_sent_it_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(RefusedError):
        unpacked_zip(data)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_a_damaged_archive_is_refused_or_holds_what_it_held(at: int, junk: bytes) -> None:
    whole = packed({**CONFIG, "10_a.py": "print('x')\n" * 10})
    damaged = whole[:at] + junk + whole[at + len(junk) :]
    try:
        sources = unpacked_zip(damaged)
    except RefusedError:
        return
    assert all(".." not in file.path for file in sources.files)
