"""`gpuyard backup` and `gpuyard restore` as a person uses them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.backup import backup
from gpuyard.cli.exit_codes import USAGE
from gpuyard.cli.main import cli
from gpuyard.platform.home import HOME_VARIABLE
from gpuyard.worlds.standalone.store.archive import FORMAT
from gpuyard.worlds.standalone.store.opening import open_store
from tests.postgres import Server
from tests.worlds.store.places import content, entries, fill


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gpuyard")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with some state in it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.delenv("GPUYARD_DATABASE", raising=False)
    store = open_store(home / "state" / "gpuyard.db")
    store.open()
    fill(store)
    store.close()
    return home


def held(address: str | Path) -> object:
    store = open_store(address)
    store.open()
    try:
        return content(store)
    finally:
        store.close()


def test_the_state_of_the_home_goes_into_a_file_and_back(home: Path, tmp_path: Path) -> None:
    file, database = tmp_path / "yard.backup", home / "state" / "gpuyard.db"
    made = run("backup", file)
    assert (made.exit_code, made.stderr) == (0, "")
    assert made.stdout == f"{file} holds 25 entries, 2 snapshots, 25 daily sums; the last entry is 25\n"
    before = held(database)
    database.unlink()
    put_back = run("restore", "--move", file)
    assert (put_back.exit_code, put_back.stderr) == (0, "")
    assert put_back.stdout.startswith(f"{database} now holds 25 entries")
    assert held(database) == before


def test_what_may_be_missing_after_a_backup_is_marked_behind_it(home: Path, tmp_path: Path) -> None:
    run("backup", tmp_path / "x")
    assert run("restore", tmp_path / "x", "--force").exit_code == 0
    store = open_store(home / "state" / "gpuyard.db")
    store.open()
    try:
        (last,) = store.history(limit=1)
    finally:
        store.close()
    assert (last.seq, last.kind) == (26, "restored")


def test_a_program_reads_what_a_backup_holds(home: Path, tmp_path: Path) -> None:
    made = json.loads(run("backup", tmp_path / "x", "-o", "json").stdout)
    assert (made["entries"], made["last_seq"], made["format"]) == (25, 25, FORMAT)
    assert (
        json.loads(run("restore", tmp_path / "x", "--database", tmp_path / "new" / "db", "-o", "json").stdout) == made
    )


def test_state_moves_to_postgresql_and_the_password_is_not_shown(
    home: Path, tmp_path: Path, postgres_server: Server
) -> None:
    url = postgres_server.url(postgres_server.make_database())
    secret = url.replace("gpuyard@", "gpuyard:secret@")
    assert run("backup", tmp_path / "x").exit_code == 0
    moved = run("restore", tmp_path / "x", "--move", "--database", secret)
    assert moved.exit_code == 0
    assert held(url) == held(home / "state" / "gpuyard.db")
    again = run("restore", tmp_path / "x", "--database", secret)
    assert (again.exit_code, again.stdout) == (USAGE, "")
    assert "is not empty" in again.stderr
    assert "secret" not in moved.output + again.output


def test_a_database_with_something_in_it_needs_force(home: Path, tmp_path: Path) -> None:
    assert run("backup", tmp_path / "x").exit_code == 0
    database = home / "state" / "gpuyard.db"
    store = open_store(database)
    store.open()
    store.append(entries(26, 30))
    store.close()
    refused = run("restore", tmp_path / "x")
    assert (refused.exit_code, refused.stdout) == (USAGE, "")
    assert refused.stderr == (
        f"error: the database {database} is not empty: its log has 30 entries\n"
        "  name an empty one, or give --force to replace everything in it\n"
    )
    assert run("restore", tmp_path / "x", "--force").exit_code == 0


def test_a_manager_that_runs_may_be_backed_up_and_not_restored_into(home: Path, tmp_path: Path) -> None:
    store = open_store(home / "state" / "gpuyard.db")
    store.open()
    try:
        assert run("backup", tmp_path / "x").exit_code == 0
        refused = run("restore", tmp_path / "x", "--force")
    finally:
        store.close()
    assert refused.exit_code == USAGE
    assert "another manager, process " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("backup",), "Missing argument 'FILE'"),
        (("backup", "."), "is a directory"),
        (("backup", "absent/x"), "cannot be written: No such file or directory"),
        (("backup", "x", "--database", "mysql://db"), "there is no database called mysql://"),
        (("backup", "x", "--database", "absent.db"), "there is no database "),
        (("restore", "absent"), "cannot be read: No such file or directory"),
        (("restore", "text"), "is no backup of gpuyard"),
        (("restore", "text", "--colour"), "No such option"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_way_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("hello")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert what in result.stderr
    assert not Path("x").exists()


def test_a_person_who_waits_sees_how_far_it_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    backup.callback(tmp_path / "x", None, False, "text")  # type: ignore[misc]
    assert capsys.readouterr().err == "\rbackup: 25 of 25 entries\n"


def test_a_backup_is_checked_without_making_one(home: Path, tmp_path: Path) -> None:
    """Also one of several databases, in which anything is damaged: members, and what stands between them."""
    pool = open_store(home / "state" / "pool.db")
    pool.open()
    pool.append(entries(1, 3))
    pool.close()
    file = tmp_path / "yard.backup"
    assert run("backup", file).exit_code == 0
    checked = run("backup", "--verify", file)
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert checked.stdout.startswith(f"{file} is whole and holds 25 entries")
    assert "and pool: 3 entries" in checked.stdout
    whole = file.read_bytes()
    for at in range(0, len(whole), 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert run("backup", "--verify", file).exit_code == USAGE, at
    for length in (1, 511, 600, len(whole) // 2, len(whole) - 512, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert run("backup", "--verify", file).exit_code == USAGE, length
