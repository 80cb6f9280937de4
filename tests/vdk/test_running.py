"""The pool in the real manager: killed between plan and confirmation, left unconfirmed, backed up and put back."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.vdk.model import PlanState
from gpuyard.vdk.pool.pool import Pool
from gpuyard.worlds.standalone.store.address import beside
from tests.vdk.faces import GrpcPool, RestPool
from tests.yard import Yard, running_yard

pytestmark = pytest.mark.slow

OPTIONS = ("--fake-gpus", "0")


def token(yard: Yard) -> str:
    return (yard.home / "admin.token").read_text().strip()


def rest(yard: Yard) -> RestPool:
    return RestPool(yard.url, token(yard))


def over_grpc(yard: Yard) -> GrpcPool:
    return GrpcPool(json.loads((yard.home / "server.json").read_bytes())["pool"], token(yard))


def prepared(pool: RestPool) -> str:
    """A plan of two steps: a job of a greedy team goes, one of a modest team comes."""
    pool.set_machine("m", 1)
    pool.set_budget("greedy", "0")
    pool.set_budget("modest", "1")
    pool.confirm(pool.id_of(pool.provision("greedy", "old", "1")), 1)
    return pool.id_of(pool.provision("modest", "new", "1", key="once"))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_plan_is_resumed_after_the_manager_was_killed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database: tuple[str, ...] = ()
    if store == "postgres":
        server = request.getfixturevalue("postgres_server")
        database = ("--database", server.url(server.make_database()))
    with running_yard(tmp_path, *OPTIONS, *database) as yard:
        with closing(rest(yard)) as pool:
            id = prepared(pool)
            pool.confirm(id, 1)
            before, seen = pool.plan(id), pool.everything()
        yard.kill_manager()
        yard.start()
        with closing(rest(yard)) as pool, closing(over_grpc(yard)) as other:
            assert (pool.plan(id), pool.everything()) == (before, seen)
            assert pool.provision("modest", "new", "1", key="once") == before
            assert other.state_of(other.confirm(id, 2)) == "done"
            assert [job["name"] for job in pool.everything()[2]] == ["new"]


def test_what_nobody_confirms_is_rolled_back_although_nobody_calls(tmp_path: Path) -> None:
    with running_yard(tmp_path, *OPTIONS, "--pool-expiry", "1s") as yard:
        with closing(rest(yard)) as pool:
            pool.set_machine("m", 1)
            pool.set_budget("team", "1")
            id = pool.id_of(pool.provision("team", "x", "1"))
        # Every call looks for what is overdue first; so nobody calls for a while, and the record is read at its place.
        time.sleep(3)
        yard.kill_manager()
        with Pool(str(yard.home / "state" / "pool.db"), clock=lambda: 0) as kept:
            assert kept.plan(id).state is PlanState.ROLLED_BACK
            assert kept.jobs() == []


def test_a_backup_holds_the_pool_and_puts_it_back(tmp_path: Path) -> None:
    file = tmp_path / "yard.backup"
    with running_yard(tmp_path, *OPTIONS) as yard:
        with closing(rest(yard)) as pool:
            id = prepared(pool)
            seen = pool.everything()
            made = yard.gpuyard("backup", str(file))
            assert "and pool: " in made.stdout
            assert file.stat().st_mode & 0o777 == 0o600
            pool.fail(id, 1)
        yard.stop()
        refused = yard.gpuyard("restore", str(file), check=False)
        assert refused.returncode == 2
        assert "is not empty" in refused.stderr
        yard.gpuyard("restore", str(file), "--force")
        yard.start()
        with closing(rest(yard)) as pool:
            assert pool.everything() == seen


def test_a_manager_whose_pool_cannot_be_opened_ends_and_says_why(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "home")
    (yard.home / "state").mkdir(parents=True, mode=0o700)
    with Pool(str(yard.home / "state" / "pool.db")):
        done = yard.gpuyard("serve", "--listen", "127.0.0.1:0", check=False)
    assert done.returncode == 2
    assert "another manager" in done.stderr
    assert "pool.db" in done.stderr


def test_the_pool_lies_beside_the_managers_database() -> None:
    assert beside("/x/gpuyard.db", "pool") == "/x/pool.db"
    assert beside("sqlite:///x/gpuyard.db", "pool") == "/x/pool.db"
    assert beside("/x/other.db", "pool") == "/x/other.db.pool"
    url = "postgresql://yard:p%40ss@db:5433/yard?sslmode=require"
    assert beside(url, "pool") == f"{url}&schema=gpuyard_pool"
    assert beside(f"{url}&schema=lab", "data-jobs") == f"{url}&schema=lab_data_jobs"


def test_where_the_usual_port_is_taken_another_one_is_found_and_told(tmp_path: Path) -> None:
    with running_yard(tmp_path, *OPTIONS) as yard:
        second = Yard(tmp_path / "second", *OPTIONS)
        # The same port for people, on another address: both would listen for platforms on the second after it.
        second.listen, second.port = "127.0.0.2", yard.port
        try:
            second.start()
            found = [json.loads((one.home / "server.json").read_bytes())["pool"] for one in (yard, second)]
            for one, address in zip((yard, second), found, strict=True):
                assert address.startswith("127.0.0.1:")
                assert f"pool       {address} (gRPC)" in one.said()
            assert found[0] != found[1]
        finally:
            second.stop()
