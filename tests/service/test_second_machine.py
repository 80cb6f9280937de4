"""A second machine in a network namespace: joining by a token, gangs over both, and the cable pulled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import ClientError
from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from tests.cells import remove_cells
from tests.namespaces import Cable, cable, needs_namespaces
from tests.yard import Yard, open_folder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard"), needs_namespaces]


class TwoMachines:
    """A yard that listens for others, and an agent on the far end of the cable."""

    def __init__(self, yard: Yard, far: Cable, folder: Path) -> None:
        self.yard, self.far, self.folder = yard, far, folder
        self.agent: subprocess.Popen[bytes] | None = None

    def client(self) -> Client:
        token = (self.yard.home / "admin.token").read_text().strip()
        return Client(f"https://{self.far.address}:{self.yard.port}", token, ca=str(self.yard.home / "ca" / "ca.pem"))

    def start_agent(self, *options: str) -> None:
        command = [sys.executable, "-m", "gpuyard", "agent", "--home", str(self.folder / "far"), "--node", "far"]
        with (self.folder / "far.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [*self.far.prefix(), *command, "--fake-gpus", "8", *options],
                stdout=log,
                stderr=log,
                env={**self.yard.environment, "GPUYARD_HOME": str(self.folder / "far-home")},
                start_new_session=True,
            )

    def said(self) -> str:
        return (self.folder / "far.log").read_text()[-2000:]

    def stop(self) -> None:
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if str(self.folder).encode() in words and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
        if self.agent is not None:
            self.agent.wait()
        remove_cells(self.folder / "far")


@contextmanager
def two_machines() -> Iterator[TwoMachines]:
    with cable() as far, open_folder() as folder:
        yard = Yard(folder / "home", "--node", "near", "--fake-gpus", "8", "--lease", "4s")
        yard.listen = "0.0.0.0"
        both = TwoMachines(yard, far, folder)
        try:
            yard.start()
            yield both
        finally:
            both.stop()
            yard.stop()


def invitation(both: TwoMachines) -> str:
    """What an operator copies from `gpuyard node token`: the last word of the command to run there.

    It names this machine by its host name, which the far end of the cable cannot look up.
    """
    token, _, url = both.yard.gpuyard("node", "token").stdout.split("--join")[1].split()[0].partition("@")
    return f"{token}@https://{both.far.address}:{url.rpartition(':')[2]}"


RANKS = "echo $RANK $LOCAL_RANK $NODE_RANK $LOCAL_WORLD_SIZE $GPUYARD_TASKS_PER_NODE $WORLD_SIZE $MASTER_ADDR"
AGAIN = f"{RANKS}; test $GPUYARD_RESTART_COUNT = 1 || sleep 600"


def _lies_on_two_nodes_with_two_tasks_each_also_when_it_starts_again(client: Client) -> None:
    with pytest.raises(ClientError, match="needs 3 nodes with room for 2 tasks each, the cluster has 2"):
        client.submit_job(JobRequest(command="date", nodes=3, tasks=2, gpus=1))
    job = client.submit_job(JobRequest(command=AGAIN, nodes=2, tasks=2, gpus=2, grace="1s")).jobs[0]
    wait_for(lambda: client.get_job(job.id).state == "running", 60)
    nodes = [task.node for task in client.get_job(job.id).task_list]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    client.requeue_job(job.id)
    wait_for(lambda: client.get_job(job.id).state == "succeeded", 60)
    told = [b"".join(client.logs(job.id, task=task)).decode().rpartition(" ") for task in range(4)]
    assert [ranks for ranks, _, _ in told] == ["0 0 0 2 2 4", "1 1 0 2 2 4", "2 0 1 2 2 4", "3 1 1 2 2 4"]
    assert len({address for _, _, address in told}) == 1


def test_a_machine_joins_runs_a_part_of_a_gang_and_is_survived_when_its_cable_is_pulled() -> None:
    with two_machines() as both, both.client() as client:
        told = invitation(both)
        both.start_agent("--join", told)
        wait_for(lambda: client.status().ready_nodes == 2, 60, both.said)

        # A token is good once.
        again = subprocess.run(
            [sys.executable, "-m", "gpuyard", "agent", "--home", str(both.folder / "x"), "--node", "x", "--join", told],
            env=both.yard.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert again.returncode != 0

        meet = "echo $RANK of $WORLD_SIZE at $MASTER_ADDR of $GPUYARD_NODE_IPS"
        gang = client.submit_job(JobRequest(command=meet, gpus=8, tasks=2)).jobs[0]
        wait_for(lambda: client.get_job(gang.id).state == "succeeded", 60)
        assert set(client.get_job(gang.id).nodes or ("near", "far")) == {"near", "far"}
        wrote = [b"".join(client.logs(gang.id, task=task)).decode().split() for task in (0, 1)]
        assert [words[:3] for words in wrote] == [["0", "of", "2"], ["1", "of", "2"]]
        # Also the manager's own machine, whose agent finds the manager by loopback, is named as the other reaches it.
        assert {address for words in wrote for address in words[-1].split(",")} == {
            both.far.address,
            both.far.far_address,
        }
        assert [words[4] for words in wrote] == [wrote[0][-1].split(",")[0]] * 2

        _lies_on_two_nodes_with_two_tasks_each_also_when_it_starts_again(client)

        client.drain_node("near")
        record = both.folder / "beats"
        record.touch()
        record.chmod(0o666)
        note = f"echo $GPUYARD_NODE_RANK $GPUYARD_RESTART_COUNT $(date +%s%N) >> {record}"
        beat = f"while true; do {note}; sleep 0.05; done"
        job = client.submit_job(JobRequest(command=beat, gpus=1, grace="1s")).jobs[0]
        wait_for(lambda: client.get_job(job.id).state == "running", 60)
        assert client.get_job(job.id).nodes == ("far",)
        both.far.pull()
        client.resume_node("near")
        wait_for(lambda: client.get_job(job.id).nodes == ("near",) and client.get_job(job.id).state == "running", 60)
        time.sleep(0.5)
        beats = [line.split() for line in record.read_text().splitlines()]
        last_there = max(int(at) for _, restart, at in beats if restart == "0")
        first_here = min(int(at) for _, restart, at in beats if restart == "1")
        assert last_there < first_here, "it ran in two places at once"

        both.far.plug()
        wait_for(lambda: client.status().ready_nodes == 2, 60, both.said)
        client.cancel_job(job.id)
        wait_for(lambda: client.get_job(job.id).state == "cancelled")


def _beating(both: TwoMachines, client: Client, name: str, **fields: Any) -> tuple[str, Path]:
    """A job on the far machine that notes that it lives, and where it notes that."""
    record = both.folder / name
    record.touch()
    record.chmod(0o666)
    beat = f"while true; do echo $GPUYARD_RESTART_COUNT $(date +%s%N) >> {record}; sleep 0.05; done"
    job = client.submit_job(JobRequest(command=beat, name=name, gpus=1, grace="1s", **fields)).jobs[0]
    wait_for(lambda: client.get_job(job.id).state == "running", 60)
    return job.id, record


def _never_ran_twice_at_once(record: Path) -> None:
    spans: dict[str, list[int]] = {}
    for line in record.read_text().splitlines():
        restart, at = line.split()
        spans.setdefault(restart, []).append(int(at))
    ordered = [(min(beats), max(beats)) for _, beats in sorted(spans.items(), key=lambda one: int(one[0]))]
    assert all(before[1] < after[0] for before, after in pairwise(ordered)), "it ran in two places at once"


def test_each_job_of_a_machine_that_is_lost_does_what_its_owner_chose_and_the_machine_may_come_back() -> None:
    with two_machines() as both, both.client() as client:
        both.start_agent("--join", invitation(both))
        wait_for(lambda: client.status().ready_nodes == 2, 60, both.said)
        client.drain_node("near")
        restarts, restarts_record = _beating(both, client, "restarts", on_node_lost="restart-after-lease")
        waits, waits_record = _beating(both, client, "waits", on_node_lost="wait")
        fails, _ = _beating(both, client, "fails", on_node_lost="fail")
        cancelled, _ = _beating(both, client, "cancelled", on_node_lost="wait")
        with pytest.raises(ClientError, match="is heard of"):
            client.declare_lost_node("far")
        client.resume_node("near")
        # One part of it on each machine: four GPUs of the far one are taken, and it needs eight on both.
        gang = client.submit_job(JobRequest(command="sleep 600", gpus=4, nodes=2, tasks=1, grace="1s")).jobs[0].id
        wait_for(lambda: client.get_job(gang).state == "running", 60)
        assert set(client.get_job(gang).nodes or ()) == {"near", "far"}

        both.far.pull()
        wait_for(lambda: client.get_node("far").state == "lost", 60)
        wait_for(lambda: client.get_job(fails).state == "failed", 60)
        wait_for(lambda: client.get_job(restarts).nodes == ("near",), 60)
        wait_for(lambda: client.get_job(gang).state == "waiting", 60)
        assert client.get_job(waits).state == client.get_job(cancelled).state == "running"
        # Who is told to stop is not waited for: what ran there has ended.
        client.cancel_job(cancelled)
        wait_for(lambda: client.get_job(cancelled).state == "cancelled", 60)
        both.yard.kill_manager()
        both.yard.start()
        wait_for(lambda: client.status().ready_nodes == 1, 60)
        assert client.get_job(waits).state == "running"
        assert client.get_node("far").state == "lost"
        wait_for(lambda: _declared_lost(client), 60)
        wait_for(lambda: client.get_job(waits).nodes == ("near",) and client.get_job(waits).state == "running", 60)

        both.far.plug()
        wait_for(lambda: client.get_node("far").state == "ready", 60, both.said)
        wait_for(lambda: client.get_job(gang).state == "running", 60)
        assert client.get_job(fails).state == "failed"
        for id, record in ((restarts, restarts_record), (waits, waits_record)):
            # On a busy machine the manager may be back only after the lease: then both have started once more.
            wait_for(lambda one=id: client.get_job(one).state == "running", 60)  # type: ignore[misc]
            assert client.get_job(id).restarts >= 1
            _never_ran_twice_at_once(record)


def _declared_lost(client: Client) -> bool:
    """Refused for a whole lease after the start of the manager, which does not know when it was last heard of."""
    with suppress(ClientError):
        client.declare_lost_node("far")
        return True
    return False
