"""A job that reads whatever it can learns nothing of jobs of other users, of its own team or another.

The manager and the agent are the real ones. What others must not learn is put where their jobs have it: variables,
command lines, files and output.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.platform.chance import token
from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from gpuyard.wire.access import Grant, Role
from gpuyard.wire.rest import NodeObject, TokenRequest, UserChange
from tests.yard import Yard, open_folder, running_yard, wait_for

NOSY = Path(__file__).with_name("nosy.py")
PYTHONS = (os.path.realpath(sys.executable), "/usr/bin/python3")
TEAMS = "queues: {vision: {quota: 4}, speech: {quota: 4}}"
MEMBERS = {"ada": "vision", "bob": "vision", "cleo": "speech"}
UIDS = range(30_100, 30_200)
VICTIM = """
echo WORD-file > secret; cp secret saved; cp secret /tmp/PLACE; cp secret /dev/shm/PLACE; echo WORD-output
cp secret "$GPUYARD_CHECKPOINT_FILE"; bash -c 'exec -a WORD-name sleep 600' WORD-argument & wait
"""


def passable(path: str) -> bool:
    """Whether every user may run it."""
    places = [Path(path), *Path(path).parents]
    return all(place.exists() and place.stat().st_mode & stat.S_IXOTH for place in places)


PYTHON = next((path for path in PYTHONS if passable(path)), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("yard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: jobs run as other users"),
    pytest.mark.skipif(not PYTHON, reason="no Python here that every user may run"),
]


class Cluster:
    """A running manager and agent, two teams, three people, and a word that only their secrets hold."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.word = f"canary-{token(8)}"
        self.admin = yard.ready()
        teams = yard.home.parent / "teams.yaml"
        teams.write_text(TEAMS)
        yard.gpuyard("team", "set", str(teams), "--replace", "--yes")
        self.clients = {name: self._member(name, team) for name, team in MEMBERS.items()}
        self.nosy = yard.home.parent / "nosy.py"
        shutil.copyfile(NOSY, self.nosy)
        self.nosy.chmod(0o755)

    def _member(self, name: str, team: str) -> Client:
        self.admin.set_user(name, UserChange((Grant(Role.MEMBER, team),)))
        return Client(self.yard.url, self.admin.create_token(TokenRequest("test", user=name)).secret)

    def submit(self, user: str, *command: str, **fields: object) -> str:
        body = JobRequest(team=MEMBERS[user], command=list(command), **fields)  # type: ignore[arg-type]
        return self.clients[user].submit_job(body).jobs[0].id

    def start_victim(self, user: str) -> str:
        word, place = f"{self.word}-{user}", f"gpuyard-test-{self.word[-8:]}-{user}"
        script = VICTIM.replace("WORD", word).replace("PLACE", place)
        job = self.submit(user, "bash", "-c", script, f"{word}-zeroth", gpus=1, env={"SECRET": f"{word}-variable"})
        wait_for(lambda: f"{word}-output" in self.log(user, job), why=lambda: self.log(user, job))
        return job

    def log(self, user: str, job: str) -> str:
        return b"".join(self.clients[user].logs(job)).decode("utf-8", "replace")

    def run_nosy(self, user: str, **fields: object) -> list[str]:
        """What it has met and seen, once it has looked everywhere."""
        job = self.submit(user, PYTHON, "-I", str(self.nosy), self.word[::-1], str(self.yard.home), **fields)
        wait_for(lambda: self.clients[user].get_job(job).state in ("succeeded", "failed"), 120)
        said = self.log(user, job).splitlines()
        assert said[-1:] == ["DONE"], said[-20:]
        return said

    def node(self) -> NodeObject:
        return next(iter(self.admin.nodes()))

    def clear_up(self) -> None:
        for client in (self.admin, *self.clients.values()):
            client.close()
        for folder in (Path("/tmp"), Path("/dev/shm")):
            for left in folder.glob(f"gpuyard-test-{self.word[-8:]}-*"):
                left.unlink()


def running_cluster(*prefix: str) -> Iterator[Cluster]:
    options = ("--fake-gpus", "8", "--job-uids", f"{UIDS[0]}-{UIDS[-1]}")
    with open_folder() as folder, running_yard(folder, *options, prefix=prefix) as yard:
        cluster = Cluster(yard)
        try:
            cluster.start_victim("bob")
            cluster.start_victim("cleo")
            yield cluster
        finally:
            cluster.clear_up()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    yield from running_cluster()


def meetings(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith(("MET", "CGROUP"))]


def test_a_job_that_reads_whatever_it_can_meets_nothing_of_other_users(cluster: Cluster) -> None:
    if cluster.node().process_view != "isolated":
        pytest.skip(f"no PID namespaces here: {cluster.node().process_note}")
    said = cluster.run_nosy("ada", gpus=1)
    assert meetings(said) == []
    seen = [line for line in said if line.startswith("SEES")]
    assert seen
    assert all(int(line.split()[1]) <= 2 for line in seen), seen  # Its init and itself.


def test_the_same_job_meets_what_is_its_own(cluster: Cluster) -> None:
    """So the attack would find what is there to be found: the folders of its own user, with the same eyes."""
    cluster.start_victim("ada")
    said = cluster.run_nosy("ada")
    assert any("/tmp/" in line for line in meetings(said)), said
    assert any("/dev/shm/" in line for line in meetings(said)), said


def test_members_of_a_team_run_as_users_of_their_own(cluster: Cluster) -> None:
    ids = {user: cluster.submit(user, "sh", "-c", "id -u; id -g; id -G; umask; pwd") for user in MEMBERS}
    for user, job in ids.items():
        wait_for(lambda user=user, job=job: cluster.clients[user].get_job(job).state == "succeeded")  # type: ignore[misc]
    told = {user: cluster.log(user, job).split() for user, job in ids.items()}
    assert len({words[0] for words in told.values()}) == len(MEMBERS)
    assert all(words[0] == words[1] == words[2] and words[3] == "0077" for words in told.values())
    assert {int(words[0]) for words in told.values()} <= set(UIDS)
    known = {user.name: str(user.uid) for user in cluster.admin.users()}
    assert {user: words[0] for user, words in told.items()} == {user: known[user] for user in MEMBERS}


def without_namespaces() -> Iterator[Cluster]:
    """As in a container that may make none: root, but without the right to."""
    yield from running_cluster("setpriv", "--bounding-set", "-sys_admin")


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_where_the_kernel_refuses_namespaces_that_is_said_and_only_command_lines_are_seen() -> None:
    for cluster in without_namespaces():
        node = cluster.node()
        assert node.process_view == "shared"
        assert "Operation not permitted" in node.process_note
        described = cluster.yard.gpuyard("node", "describe", node.name).stdout
        assert "see the command lines" in described
        assert node.process_note in described
        doctor = cluster.yard.gpuyard("doctor", check=False).stdout
        assert "see the command lines" in doctor
        met = [line for line in meetings(cluster.run_nosy("ada", gpus=1)) if not is_command_line(line)]
        assert met == []


def is_command_line(line: str) -> bool:
    places: tuple[Callable[[str], bool], ...] = (
        lambda text: "/cmdline:" in text,
        lambda text: "MET ps auxeww" in text and "-variable" not in text,
    )
    return any(place(line) for place in places)
