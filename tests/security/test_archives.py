"""Hostile archives, tar and zip: refused where they are uploaded, and again by the agent that would unpack them."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import struct
import subprocess
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.agent.parcels import Parcels
from gpuyard.errors import InputError, RefusedError, StoreError
from gpuyard.vdk.control.sources import as_zip, unpacked_zip
from gpuyard.wire.agents import MAX_PARCEL_BYTES, ParcelPiece
from gpuyard.wire.artifacts import (
    MAX_FILES,
    MAX_NAME_BYTES,
    MAX_PATH_BYTES,
    File,
    Paths,
    TooLargeError,
    pack_tar,
    unpack_tar,
    unpack_zip,
)
from tests.service.yard import Yard
from tests.vdk.control.jobs import OCTETS, DataJobs

CONFIG: Final = ("config.ini", b"[owner]\nteam = vision\n")
HOSTILE_NAMES: Final = {
    "above": "../evil",
    "above, further in": "lib/../../evil",
    "above, and back": "lib/../evil",
    "two dots at the end": "lib/..",
    "absolute": "/etc/cron.d/evil",
    "absolute, with two slashes": "//etc/evil",
    "an empty part": "lib//evil",
    "itself": "./evil",
    "itself, further in": "lib/./evil",
    "backslashes": "..\\evil",
    "backslashes, further in": "lib\\..\\..\\evil",
    "a drive": "C:evil",
    "a drive with a folder": "c:/windows/evil",
    "a share": "\\\\host\\share\\evil",
    "a line break": "a\nb",
    "an escape": "a\x1b[2Jb",
    "a bell": "a\x07",
    "turned round": "a\u202egnp.exe",
    "no width": "a\u200bb",
    "a long name": "x" * (MAX_NAME_BYTES + 1),
    "a long name of two bytes each": "\u00e9" * (MAX_NAME_BYTES // 2 + 1),
    "a long path": "/".join(["d" * 100] * (MAX_PATH_BYTES // 100 + 1)),
}
SAME_PLACE: Final = {
    "a name twice": ("a.py", "a.py"),
    "a file and a folder": ("a", "a/b"),
    "a folder and a file": ("a/b", "a"),
    "a file and a folder further in": ("lib/x/y", "lib/x/y/z"),
    "a folder far below a file": ("a", "a/b/c/d"),
    "two spellings of one name": ("caf\u00e9.py", "cafe\u0301.py"),
    "two spellings of a folder": ("caf\u00e9", "cafe\u0301/x.py"),
}


def a_zip(*members: tuple[str | zipfile.ZipInfo, bytes], config: bool = True) -> bytes:
    """As VDK's command line packs, one folder."""
    data = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as target:
        warnings.simplefilter("ignore")
        for name, content in ((f"job/{CONFIG[0]}", CONFIG[1]), *members) if config else members:
            target.writestr(name, content)
    return data.getvalue()


def a_tar(*members: tarfile.TarInfo, format: int = tarfile.GNU_FORMAT, mode: str = "w") -> bytes:
    """Any archive, a file `config.ini` first."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode, format=format) as target:  # type: ignore[call-overload]
        first = tarfile.TarInfo(CONFIG[0])
        first.size = len(CONFIG[1])
        target.addfile(first, io.BytesIO(CONFIG[1]))
        for member in members:
            target.addfile(member, io.BytesIO(b"x" * member.size))
    return data.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 1 if kind == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def entry(name: str, mode: int = 0, **fields: object) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(f"job/{name}")
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


# ------------------------------------------------------------------------------------------------------------ the names


@pytest.mark.parametrize("case", HOSTILE_NAMES)
def test_a_name_that_leads_elsewhere_or_cannot_be_shown_is_refused_in_both_forms(case: str) -> None:
    name = HOSTILE_NAMES[case]
    with pytest.raises(InputError) as from_zip:
        unpack_zip(a_zip((f"job/{name}", b"x")))
    with pytest.raises(InputError) as from_tar:
        unpack_tar(a_tar(member(name)))
    for caught in (from_zip, from_tar):
        assert caught.value.fix
        assert caught.value.what.isprintable()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "../../job/evil", "C:/evil", "evil", ".", ".."])
def test_the_folder_that_is_packed_is_one(name: str) -> None:
    with pytest.raises(InputError):
        unpack_zip(a_zip((name, b"x")))


@pytest.mark.parametrize("case", SAME_PLACE)
def test_two_that_would_lie_in_one_place_are_refused_in_both_forms(case: str) -> None:
    first, second = SAME_PLACE[case]
    with pytest.raises(InputError, match=r"one name|twice"):
        unpack_zip(a_zip((f"job/{first}", b"1"), (f"job/{second}", b"2")))
    with pytest.raises(InputError, match=r"one name|twice"):
        unpack_tar(a_tar(member(first), member(second)))


def test_a_folder_of_its_own_beside_a_file_of_its_name_is_refused() -> None:
    for order in (1, -1):
        with pytest.raises(InputError, match="a file and a folder of one name"):
            unpack_zip(a_zip(*[("job/a/", b""), ("job/a", b"x")][::order]))


def test_a_name_with_a_nul_is_not_the_name_before_it() -> None:
    """Python's zip reads up to the NUL; other programs do not."""
    data = a_zip(("job/a.pyX..Xevil", b"x")).replace(b"a.pyX..Xevil", b"a.py\x00../evil"[:12].ljust(12, b"e"))
    with pytest.raises(InputError):
        unpack_zip(data)


def test_an_entry_without_a_name_is_refused() -> None:
    data = bytearray(a_zip(("Q", b"x"), config=False))
    for mark, at in ((b"PK\x03\x04", 26), (b"PK\x01\x02", 28)):
        # Its one letter is told to be something else than its name.
        struct.pack_into("<2H", data, data.find(mark) + at, 0, 1)
    with pytest.raises(InputError, match="cannot be read"):
        unpack_zip(bytes(data))


PARTS: Final = st.sampled_from(["a", "b", "A", ".", "..", "", "c\\d", "e\u0301", "\u00e9", "x" * 256, "\0", "C:"])


@given(st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=6))
def test_what_is_taken_in_lies_in_the_folder_and_overlaps_nothing(paths: list[str]) -> None:
    taken = Paths()
    kept: list[str] = []
    for path in paths:
        try:
            taken.add(path)
        except InputError:
            continue
        kept.append(path)
    for path in kept:
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
        assert not any(other.startswith(f"{path}/") for other in kept)
    assert len(kept) == len(set(kept))


# ------------------------------------------------------------------------------------------------------------ the kinds

KINDS: Final = {
    "a link": member("evil", tarfile.SYMTYPE, linkname="/etc/shadow"),
    "a link inside": member("evil", tarfile.SYMTYPE, linkname="config.ini"),
    "a hard link": member("evil", tarfile.LNKTYPE, linkname="config.ini"),
    "a hard link outside": member("evil", tarfile.LNKTYPE, linkname="/etc/shadow"),
    "a pipe": member("evil", tarfile.FIFOTYPE),
    "a device": member("evil", tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a disk": member("evil", tarfile.BLKTYPE, devmajor=8),
    "a folder": member("evil", tarfile.DIRTYPE, mode=0o777),
    "of a kind nobody knows": member("evil", b"Z"),
    "contiguous": member("evil", tarfile.CONTTYPE),
    "setuid": member("evil", mode=0o4755),
    "setgid": member("evil", mode=0o2755),
    "sticky": member("evil", mode=0o1755),
    "of another user": member("evil", uid=0, uname="root"),
    "writable by all": member("evil", mode=0o666),
    "of another time": member("evil", mtime=1_700_000_000),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_with_anything_but_our_own_plain_files_is_refused(kind: str, format: int) -> None:
    with pytest.raises(InputError):
        unpack_tar(a_tar(KINDS[kind], format=format))


def test_a_link_and_a_file_behind_it_are_refused() -> None:
    with pytest.raises(InputError):
        unpack_tar(a_tar(member("out", tarfile.SYMTYPE, linkname="/tmp"), member("out/evil")))


GOOD: Final = pack_tar([File("config.ini", b"x"), File("lib/a.py", b"y", executable=True)])
DISGUISED: Final[dict[str, bytes]] = {
    "nothing": b"",
    "no tar": b"no tar at all",
    "packed": gzip.compress(GOOD),
    "with a second archive behind it": GOOD + a_tar(member("../evil")),
    "with a second archive after its end": GOOD[:-1024] + a_tar(member("../evil")),
    "with something behind it": GOOD + b"evil",
    "without its end": GOOD[:-512],
    "cut": GOOD[:700],
    "with garbage before it": b"\xff" * 512 + a_tar(member("../evil")),
    "with a header of pax": a_tar(member("evil", pax_headers={"path": "../evil"}), format=tarfile.PAX_FORMAT),
    "with a global header": a_tar(member("evil"), format=tarfile.PAX_FORMAT),
    "in another order": a_tar(member("z"), member("a")),
    "with a wrong sum": GOOD[:150] + b"9" + GOOD[151:],
}


@pytest.mark.parametrize("case", DISGUISED)
def test_a_tar_that_another_program_could_read_otherwise_is_refused(case: str) -> None:
    with pytest.raises(InputError):
        unpack_tar(DISGUISED[case])


@given(st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=20))
def test_a_damaged_tar_is_refused_or_still_one_of_ours(at: int, junk: bytes) -> None:
    data = GOOD[:at] + junk + GOOD[at + len(junk) :]
    try:
        files = unpack_tar(data)
    except InputError:
        return
    assert pack_tar(files) == data


ZIP_KINDS: Final = {
    "a link": entry("evil", stat.S_IFLNK | 0o777),
    "a pipe": entry("evil", stat.S_IFIFO | 0o644),
    "a device": entry("evil", stat.S_IFCHR | 0o644),
    "a disk": entry("evil", stat.S_IFBLK | 0o644),
    "a socket": entry("evil", stat.S_IFSOCK | 0o644),
    "a folder that is none": entry("evil", stat.S_IFDIR | 0o755),
    "a folder that is a link": entry("evil/", stat.S_IFLNK | 0o777),
    "setuid": entry("evil", stat.S_IFREG | 0o4755),
    "setgid": entry("evil", stat.S_IFREG | 0o2755),
    "sticky": entry("evil", stat.S_IFREG | 0o1755),
    "setuid alone": entry("evil", 0o4000),
    "lzma": entry("evil", compress_type=zipfile.ZIP_LZMA),
    "bzip2": entry("evil", compress_type=zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("kind", ZIP_KINDS)
def test_a_zip_with_anything_but_plain_files_is_refused(kind: str) -> None:
    with pytest.raises(InputError):
        unpack_zip(a_zip((ZIP_KINDS[kind], b"x")))


def test_an_encrypted_zip_is_refused() -> None:
    data = bytearray(a_zip(("job/a.py", b"x")))
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.find(mark)
        data[at + flags] |= 1
    with pytest.raises(InputError):
        unpack_zip(bytes(data))


# ---------------------------------------------------------------------------------------------------------- the amounts


def zip_bomb(total: int) -> bytes:
    return a_zip(("job/zeros", b"\0" * total))


def many_bombs() -> bytes:
    return a_zip(*((f"job/{number}", b"\0" * (1 << 20)) for number in range(MAX_PARCEL_BYTES // (1 << 20) + 1)))


def lying_bomb() -> bytes:
    """It says that it unpacks to one byte."""
    data = bytearray(zip_bomb(64 << 20))
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<L", data, at + 24, 1)
    return bytes(data)


def overlapping() -> bytes:
    """Many names of one and the same packed megabytes."""
    data = a_zip(*((f"job/{number}", b"\0" * (4 << 20)) for number in range(3)), config=False)
    at, places = -1, []
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:
        places.append(at)
    changed = bytearray(data)
    first = struct.unpack_from("<L", data, places[0] + 42)[0]
    for place in places:
        struct.pack_into("<L", changed, place + 42, first)
    return bytes(changed)


@pytest.mark.parametrize("bomb", [lambda: zip_bomb(64 << 20), many_bombs, lying_bomb, overlapping])
def test_a_zip_that_would_become_large_is_refused_soon(bomb: Callable[[], bytes]) -> None:
    data = bomb()
    began = time.monotonic()
    with pytest.raises(InputError):
        unpack_zip(data)
    assert time.monotonic() - began < 2


def test_a_zip_with_a_long_list_is_refused_before_the_list_is_read() -> None:
    one = b"PK\x01\x02" + bytes(42)
    count = 300_000
    listed = one * count
    data = listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(listed), 0, 0)
    began = time.monotonic()
    with pytest.raises(InputError, match=str(count)):
        unpack_zip(data)
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("packed", ["zip", "tar"])
def test_too_many_files_are_refused(packed: str) -> None:
    files = [File(f"f{number:05}", b"") for number in range(MAX_FILES + 1)]
    zipped = a_zip(*((f"job/{file.path}", b"") for file in files))
    read, data = (unpack_tar, pack_tar(files)) if packed == "tar" else (unpack_zip, zipped)
    with pytest.raises(InputError, match=f"{MAX_FILES} is the most"):
        read(data)
    assert len(unpack_tar(pack_tar(files[:-1]))) == MAX_FILES


def test_a_large_tar_is_refused() -> None:
    with pytest.raises(TooLargeError):
        unpack_tar(pack_tar([File("a", b"x" * MAX_PARCEL_BYTES)]))


# ----------------------------------------------------------------------------------------------------- both sides of it


def test_the_agent_throws_a_hostile_archive_away_although_its_digest_is_right(tmp_path: Path) -> None:
    parcels = Parcels(tmp_path)
    hostile = [
        *(a_tar(member(name)) for name in HOSTILE_NAMES.values()),
        *(a_tar(kind) for kind in KINDS.values()),
        *(data for data in DISGUISED.values() if data),
    ]
    for data in hostile:
        digest = hashlib.sha256(data).hexdigest()
        assert not parcels.is_here(digest)
        parcels.questions()
        parcels.arrived(ParcelPiece(digest, 0, data, len(data)))
        assert not parcels.is_here(digest)
        assert "this machine does not unpack it" in parcels.problem(digest)
    assert not list(tmp_path.iterdir())


def test_what_the_agent_keeps_is_unpacked_where_it_is_meant_to_be(tmp_path: Path) -> None:
    data = pack_tar(
        [File("config.ini", b"x"), File("a b/c.py", b"y", executable=True), File("-rf", b""), File("*", b"")]
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "parcel").write_bytes(data)
    subprocess.run(["tar", "-x", "-f", tmp_path / "parcel", "-C", tmp_path / "in"], check=True)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"parcel", "in/config.ini", "in/a b/c.py", "in/-rf", "in/*"}


def test_kept_sources_that_were_changed_are_not_given_out() -> None:
    with pytest.raises(StoreError, match="damaged"):
        as_zip(a_tar(member("../evil")), "job")


@pytest.mark.slow
def test_over_rest_hostile_sources_are_refused_by_name_and_nothing_is_kept(yard: Yard) -> None:
    jobs = DataJobs(yard, "lea")
    name = jobs.create()
    hostile = [
        *(a_zip((f"job/{path}", b"x")) for path in HOSTILE_NAMES.values()),
        *(a_zip((f"job/{first}", b""), (f"job/{second}", b"")) for first, second in SAME_PLACE.values()),
        *(a_zip((kind, b"x")) for kind in ZIP_KINDS.values()),
        *(bomb() for bomb in (many_bombs, lying_bomb, overlapping)),
    ]
    for data in hostile:
        refused = jobs.ask("POST", f"/jobs/{name}/sources", content=data, headers=OCTETS)
        assert refused.status_code in (400, 413), refused.text
        assert refused.json()["reason"] in ("BadValue", "TooLarge")
    assert jobs.ask("GET", f"/jobs/{name}/sources").status_code == 404


def test_refusals_of_uploads_say_what_to_do() -> None:
    with pytest.raises(RefusedError) as caught:
        unpacked_zip(a_zip(("job/a", b""), ("job/a/b", b"")))
    assert (caught.value.reason, caught.value.field) == ("BadValue", "sources")
    assert caught.value.fix == "rename one of them"
