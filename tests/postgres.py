"""A real PostgreSQL for the tests: Debian's server, started by hand in a folder of its own, stopped at the end.

One server serves a whole test process; every test gets a database of its own. The server refuses to run as root, so
root starts it as the user `postgres`. GPUYARD_POSTGRES names a folder with the programs; where there are none and a
package can be had, it is only downloaded and unpacked into the cache.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pg8000.native import Connection, Error  # type: ignore[import-untyped]

FOLDER = "GPUYARD_POSTGRES"
DEBIAN = Path("/usr/lib/postgresql")
PACKAGES = ("postgresql-15", "libpq5", "libicu72", "libxml2", "libldap-2.5-0", "libsasl2-2")
"""The server, and those libraries it needs that a small machine lacks."""
USER = "gpuyard"
SERVER_USER = "postgres"
PORT = 5432
START_LIMIT_S = 60.0

_numbers = count(1)


class Server:
    """One server that runs; its socket is in its folder."""

    def __init__(self, folder: Path, port: int, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.folder = folder
        self.port = port
        self._start = start
        self.process = start()

    def url(self, database: str, *, user: str = USER, options: str = "") -> str:
        return f"postgresql://{user}@:{self.port}/{database}?host={self.folder}{options}"

    def make_database(self) -> str:
        """A new one; gives its name."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.run("postgres", f"CREATE DATABASE {name}")
        return name

    def run(self, database: str, *statements: str) -> None:
        connection = self._connect(database)
        try:
            for statement in statements:
                connection.run(statement)
        finally:
            connection.close()

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                self._connect("postgres").close()
                return
            except Error:
                time.sleep(0.02)
        raise AssertionError(f"PostgreSQL did not start: {(self.folder / 'server.log').read_text()}")

    def restart(self) -> None:
        """As an update of it does: whoever was connected is cut off."""
        self.stop()
        self.process = self._start()
        self.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _connect(self, database: str) -> Connection:
        return Connection(USER, database=database, unix_sock=f"{self.folder}/.s.PGSQL.{self.port}")


@contextmanager
def running_server(
    *, settings: tuple[str, ...] = (), files: dict[str, str] | None = None, port: int = PORT
) -> Iterator[Server]:
    """Start a server; the test is skipped, and says so, where there is no way to have one.

    `settings` are lines of its configuration, `files` texts that lie in its folder of data.
    """
    programs = find_programs()
    # Short, because the path of a socket may not be long.
    folder = Path(tempfile.mkdtemp(prefix="gy-pg-", dir="/tmp"))
    how = {**_server_user(folder), "cwd": folder, "env": _environment(programs)}
    try:
        data = folder / "data"
        make = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*make, "--no-sync"], check=True, capture_output=True, **how)
        for name, text in (files or {}).items():
            _write(data / name, text, how)
        server = Server(folder, port, lambda: _start(programs, folder, data, how, settings))
        try:
            server.wait()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str, how: dict[str, Any]) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    if "user" in how:
        os.chown(path, how["user"], how["group"])


def _start(
    programs: Path, folder: Path, data: Path, how: dict[str, Any], settings: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    options = (f"unix_socket_directories={folder}", "listen_addresses=", f"port={PORT}", "max_connections=50")
    # Tests end processes, not machines: what the system holds for the disk is never lost.
    quick = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB")
    command = [str(programs / "postgres"), "-D", str(data)]
    for option in (*options, *quick, *settings):
        command += ["-c", option]
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, **how)


def _server_user(folder: Path) -> dict[str, Any]:
    """Whom root starts it as, and gives the folder to; nobody else may change who they are."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam(SERVER_USER)
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def find_programs() -> Path:
    found = _found()
    if found is None:
        pytest.skip(f"no PostgreSQL server here: as root run scripts/setup_postgres.sh, or name a folder in ${FOLDER}")
    return found


@cache
def _found() -> Path | None:
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    for server in sorted(DEBIAN.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]), reverse=True):
        return server.parent
    on_path = shutil.which("postgres")
    if on_path and (Path(on_path).resolve().parent / "initdb").exists():
        return Path(on_path).resolve().parent
    return _unpacked()


def _unpacked() -> Path | None:
    # The server does not run as root, so what root unpacks must be open to others.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = (Path("/var/cache") if os.geteuid() == 0 else cache) / "gpuyard"
    kept = home / PACKAGES[0]
    if not kept.exists() and not _download(home, kept):
        return None
    programs = kept / "usr" / "lib" / "postgresql" / "15" / "bin"
    return programs if all(_runs(programs / name) for name in ("postgres", "initdb")) else None


def _runs(program: Path) -> bool:
    """What it needs beside it may not be there."""
    environment = _environment(program.parent)
    return (
        subprocess.run([str(program), "--version"], capture_output=True, check=False, env=environment).returncode == 0
    )


def _environment(programs: Path) -> dict[str, str]:
    """The libraries that were unpacked lie beside the programs."""
    libraries = os.pathsep.join(str(folder) for folder in programs.parents[2].glob("*-linux-gnu*"))
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "LC_ALL": "C"}


def _download(home: Path, kept: Path) -> bool:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return False
    home.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="postgresql-", dir=home))
    try:
        _run(["apt-get", "download", "--quiet", *PACKAGES], unfinished)
        for package in unfinished.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), "."], unfinished)
            package.unlink()
        unfinished.chmod(0o755)
        # A folder that has its name is whole; another test may have been faster.
        if not kept.exists():
            unfinished.rename(kept)
    except (OSError, ValueError, subprocess.SubprocessError):
        return kept.exists()
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return True


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
