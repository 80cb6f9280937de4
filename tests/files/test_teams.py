"""Teams files: the tree as it is to be, and what teams have besides their quotas."""

import re
from pathlib import Path

from gpuyard.files.cluster import open_file
from gpuyard.files.format import MemberRole
from gpuyard.files.place import Place
from gpuyard.files.queues import QueueTree
from gpuyard.files.teams import TeamSettings, TeamsFile, read_team_changes, read_teams
from gpuyard.files.tree import parse
from gpuyard.model.quantities import GPU

ROOT = Path(__file__).parents[2]
VALID = Path(__file__).parent / "valid"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "teams-file.md").read_text(), re.DOTALL | re.MULTILINE)


def quota(found: TeamsFile, name: str) -> int | None:
    return next(queue for queue in found.tree.queues if queue.name == name).share(GPU).quota


def test_a_whole_tree_is_read() -> None:
    found = read_teams(open_file(VALID / "teams.yaml"))
    assert found.tree.leaves == ("vision", "speech", "product", "guests")
    assert (quota(found, "research"), quota(found, "product")) == (8000, 8000)
    members = (("ann", MemberRole.LEAD), ("bob", MemberRole.MEMBER))
    assert found.settings == {
        "vision": TeamSettings(idle_limit_ms=1_800_000, members=members),
        "speech": TeamSettings(idle_percent=0, unix_user="speech"),
    }


def test_a_change_leaves_the_rest_as_it_is() -> None:
    before = read_teams(open_file(VALID / "teams.yaml")).tree
    found = read_team_changes(open_file(VALID / "team-changes.yaml"), before, frozenset())
    quotas = {name: quota(found, name) for name in ("vision", "speech", "product", "robots", "research")}
    assert quotas == {"vision": 6000, "speech": 3000, "product": 8000, "robots": 2000, "research": 9000}
    assert found.settings["vision"] == TeamSettings(idle_limit_ms=0)
    assert found.settings["robots"].members == (("cid", MemberRole.VIEWER),)


def test_a_change_of_settings_alone_changes_no_queue() -> None:
    before = read_teams(open_file(VALID / "teams.yaml")).tree
    text = "queues: {vision: {unix_user: vis}}"
    found = read_team_changes(Place("x.yaml", parse(text, "x.yaml")), before, frozenset())
    assert found.tree == QueueTree(before.queues, (), before.summed)


def test_the_examples_of_the_document_work() -> None:
    whole, change = BLOCKS
    tree = read_teams(Place("teams.yaml", parse(whole, "teams.yaml"))).tree
    assert "robots" in read_team_changes(Place("x.yaml", parse(change, "x.yaml")), tree, frozenset()).tree.leaves
