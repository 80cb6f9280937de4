"""Teams, machines, people, use and numbers over REST."""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec
import pytest

from gpuyard.model.explanation import QueueStanding
from gpuyard.model.quantities import GPU
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.service.stats import Histogram
from gpuyard.service.usage import gpu_hours, usage_rows
from gpuyard.service.views import lent_milli
from gpuyard.wire.rest import UsageRow, WasteCause
from gpuyard.worlds.standalone.records import State, TeamRecord
from gpuyard.worlds.standalone.store.port import DailySum
from tests.fakegpu.prometheus import program
from tests.service.yard import Yard

pytestmark = pytest.mark.slow


def team(yard: Yard, name: str, user: str = "root") -> dict[str, Any]:
    found: dict[str, Any] = yard.ask(user, "GET", f"/v1/teams/{name}").json()
    return found


# --------------------------------------------------------------------------------------------------------------- teams


def test_the_tree_of_teams_is_listed_with_its_numbers(yard: Yard) -> None:
    found = yard.ask("vic", "GET", "/v1/teams").json()["items"]
    assert [(one["name"], one["parent"], one["leaf"]) for one in found] == [
        ("research", None, False),
        ("vision", "research", True),
        ("speech", "research", True),
        ("product", None, True),
    ]
    assert (found[0]["quota"], found[1]["quota"], found[1]["limit"]) == ("6", "4", "8")


def test_members_are_for_those_of_the_team(yard: Yard) -> None:
    assert {member["user"] for member in team(yard, "vision", "max")["members"]} >= {"lea", "max", "mia", "vic"}
    assert team(yard, "vision", "sam")["members"] is None
    assert team(yard, "speech", "root")["members"] is not None


def test_an_edit_is_shown_before_it_is_made(fresh_yard: Yard) -> None:
    yard = fresh_yard
    id = yard.submit("max", gpus=4)
    yard.wait_for(id, "running")
    wanted = {"queues": {"vision": {"quota": 2, "limit": 2}}}
    before = yard.manager.state.teams_revision
    dry = yard.ask("root", "PATCH", "/v1/teams?dry_run=true", json=wanted)
    assert dry.status_code == 200, dry.text
    assert dry.json()["dry_run"] is True
    assert yard.manager.state.teams_revision == before
    done = yard.ask("root", "PATCH", "/v1/teams", json=wanted, headers={"If-Match": f'"{before}"'})
    assert done.json()["revision"] > before
    assert (team(yard, "vision")["quota"], team(yard, "vision")["borrowed"]) == ("2", "2")


def test_teams_come_and_go_with_their_members(fresh_yard: Yard) -> None:
    yard = fresh_yard
    added = {
        "queues": {"robots": {"new": True, "quota": 1, "idle_limit": "1h", "members": {"max": "lead", "neo": "member"}}}
    }
    assert yard.ask("root", "PATCH", "/v1/teams", json=added).status_code == 200
    found = team(yard, "robots")
    assert found["idle_limit_ms"] == 3_600_000
    assert found["members"] == [{"user": "max", "role": "lead"}, {"user": "neo", "role": "member"}]
    assert yard.ask("max", "GET", "/v1/whoami").json()["teams"] == ["robots", "vision"]
    assert yard.ask("root", "DELETE", "/v1/teams/robots").status_code == 200
    assert yard.ask("root", "GET", "/v1/teams/robots").status_code == 404
    # A team of the same name is another team: nobody is in it.
    yard.ask("root", "PATCH", "/v1/teams", json={"queues": {"robots": {"new": True}}})
    assert team(yard, "robots")["members"] == []


def test_the_whole_tree_is_written_anew(fresh_yard: Yard) -> None:
    tree = "queues:\n  vision: {quota: 3}\n  labs: {children: {speech: 2, robots: 1}}\n"
    done = fresh_yard.ask("root", "PUT", "/v1/teams", content=tree, headers={"Content-Type": "application/yaml"})
    assert done.status_code == 200, done.text
    names = [one["name"] for one in fresh_yard.ask("root", "GET", "/v1/teams").json()["items"]]
    assert names == ["vision", "labs", "speech", "robots"]


def test_what_is_not_used_is_lent_as_far_as_others_borrow() -> None:
    def queue(name: str, quota: int) -> Queue:
        return Queue(name, shares=(QueueShare(GPU, quota),))

    def standing(name: str, held: int) -> QueueStanding:
        return QueueStanding(name, None, None, held, 0, 0)

    state = State(
        queues=(queue("a", 1000), queue("b", 3000), queue("c", 1000)),
        teams={name: TeamRecord(1) for name in "abc"},
    )
    standings = {name: standing(name, held) for name, held in (("a", 3000), ("b", 0), ("c", 0))}
    assert lent_milli(state, standings) == {"b": 1500, "c": 500}


# ------------------------------------------------------------------------------------------------------------ machines


def test_machines_and_gpus_are_listed_with_who_holds_them(yard: Yard) -> None:
    id = yard.submit("max", gpus=0.5)
    yard.wait_for(id, "running")
    node = yard.ask("max", "GET", "/v1/nodes/m1").json()
    assert (node["state"], node["gpus"], node["models"], node["fake"]) == ("ready", 8, ["A100"], True)
    devices = yard.ask("max", "GET", "/v1/devices", params={"node": "m1"}).json()["items"]
    held = [holder for device in devices for holder in device["holders"] if holder.get("job") == id]
    assert held[0]["gpu_milli"] == 500
    other = yard.ask("sam", "GET", "/v1/devices", params={"limit": 1000}).json()["items"]
    assert id not in [holder.get("job") for device in other for holder in device["holders"]]


def test_devices_come_in_pages(yard: Yard) -> None:
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = yard.ask("max", "GET", "/v1/devices", params=query).json()
        seen += [device["index"] for device in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == list(range(8))


def test_a_machine_is_drained_labelled_and_takes_work_again(fresh_yard: Yard) -> None:
    yard = fresh_yard
    assert yard.ask("olga", "POST", "/v1/nodes/m1/drain").json()["state"] == "drained"
    labelled = yard.ask("olga", "PATCH", "/v1/nodes/m1", json={"labels": {"rack": "r1", "old": None}})
    assert labelled.json()["labels"] == {"zone": "a", "rack": "r1"}
    etag = labelled.headers["etag"]
    assert yard.ask("olga", "POST", "/v1/nodes/m1/resume", headers={"If-Match": etag}).json()["state"] == "ready"
    assert yard.ask("olga", "POST", "/v1/nodes/m1/drain", headers={"If-Match": etag}).status_code == 412
    assert yard.ask("olga", "DELETE", "/v1/nodes/m1").status_code == 204
    assert yard.ask("olga", "GET", "/v1/nodes").json()["items"] == []


# -------------------------------------------------------------------------------------------------------------- people


def test_users_and_tokens_are_made_listed_and_ended(yard: Yard) -> None:
    made = yard.ask("root", "PUT", "/v1/users/neo", json={"grants": [{"role": "member", "team": "vision"}]})
    assert made.json()["grants"] == [{"role": "member", "team": "vision"}]
    token = yard.ask("root", "POST", "/v1/tokens", json={"user": "neo", "name": "laptop", "scope": "read"}).json()
    with yard.client(token=token["secret"]) as client:
        assert client.get("/v1/whoami").json()["scope"] == "read"
        assert client.post("/v1/jobs", json={"command": ["x"]}).status_code == 403
        listed = client.get("/v1/tokens")
        assert listed.status_code == 403
        assert yard.ask("root", "DELETE", f"/v1/tokens/{token['token']['id']}").status_code == 204
        assert client.get("/v1/whoami").status_code == 401
    assert "neo" in [user["name"] for user in yard.ask("root", "GET", "/v1/users").json()["items"]]
    listed = yard.ask("max", "GET", "/v1/tokens").json()["items"]
    assert {one["user"] for one in listed} == {"max"}
    assert [one for one in listed if one["last_used_at"]]


def test_whoami_says_where_one_may_submit(yard: Yard) -> None:
    assert yard.ask("max", "GET", "/v1/whoami").json()["teams"] == ["vision"]
    assert yard.ask("vic", "GET", "/v1/whoami").json()["teams"] == []
    assert yard.ask("root", "GET", "/v1/whoami").json()["teams"] == ["product", "speech", "vision"]


def test_the_cluster_in_short(yard: Yard) -> None:
    found = yard.ask("vic", "GET", "/v1/status").json()
    assert (found["cluster"], found["nodes"], found["gpus"], found["fake"]) == ("test", 1, 8, True)
    assert found["revision"] >= 1


# ----------------------------------------------------------------------------------------------------------------- use


def test_use_is_told_in_gpu_hours_with_what_was_wasted_and_why() -> None:
    hour = 3_600_000_000
    sums = [
        DailySum("2026-11-15", "vision", "max", "1", "held", "", 2 * hour),
        DailySum("2026-11-16", "vision", "max", "1", "held", "", hour // 2),
        DailySum("2026-11-16", "vision", "max", "1", "wasted", "17/Reclaimed", hour // 4),
        DailySum("2026-11-16", "vision", "mia", "2", "wasted", "18/exited", hour // 8),
        DailySum("2026-11-16", "speech", "", "", "lent", "", hour),
    ]
    by_team = usage_rows(sums, ("team",))
    reclaimed = "had to give way to a team that was owed the GPUs"
    assert by_team == [
        UsageRow(team="speech", lent="1"),
        UsageRow(
            team="vision",
            held="2.5",
            wasted="0.375",
            causes=(
                WasteCause(17, "Reclaimed", "0.25", reclaimed),
                WasteCause(18, "exited", "0.125", "ended with an error"),
            ),
        ),
    ]
    jobs = [DailySum("2026-11-16", "vision", "ann", job, "held", "", 1) for job in ("10", "9", "6_10", "6_9", "")]
    assert [row.job for row in usage_rows(jobs, ("job",))] == ["", "6_9", "6_10", "9", "10"]
    assert [(row.day, row.user) for row in usage_rows(sums, ("day", "user"))] == [
        ("2026-11-15", "max"),
        ("2026-11-16", ""),
        ("2026-11-16", "max"),
        ("2026-11-16", "mia"),
    ]


def test_gpu_hours_are_plain_decimals() -> None:
    assert [gpu_hours(amount) for amount in (0, 1, 3_600_000_000, 10**13)] == ["0", "0", "1", "2777.777778"]


def test_use_of_other_teams_is_not_told(yard: Yard) -> None:
    id = yard.submit("sam", gpus=1)
    yard.wait_for(id, "running")
    yard.ask("sam", "POST", f"/v1/jobs/{id}/cancel")
    yard.wait_for(id, "cancelled")
    for user, sees in (("root", True), ("sam", True), ("max", False)):
        rows = yard.ask(user, "GET", "/v1/usage", params={"by": "team,job"}).json()["items"]
        assert (id in [row["job"] for row in rows]) == sees


# ------------------------------------------------------------------------------------------------------------- metrics


def test_the_metrics_are_what_prometheus_expects(yard: Yard) -> None:
    id = yard.submit("max", gpus=1)
    yard.wait_for(id, "running")
    text = yard.ask("olga", "GET", "/metrics").text
    for line in (
        'gpuyard_queue_owed_gpus{queue="vision"} 4',
        'gpuyard_nodes{state="ready"} 1',
        "gpuyard_agents_connected 1",
    ):
        assert line in text
    for name in (
        "gpuyard_cycle_seconds_bucket",
        "gpuyard_evictions_total",
        "gpuyard_jobs_pending",
        "gpuyard_request_seconds",
    ):
        assert name in text
    told = subprocess.run([str(program("promtool")), "check", "metrics"], input=text, capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_no_metric_names_a_job_or_a_user(yard: Yard) -> None:
    yard.submit("max", name="very-secret-name", gpus=0)
    text = yard.ask("olga", "GET", "/metrics").text
    assert "very-secret-name" not in text
    assert "max" not in text.replace("max_", "")


def test_a_histogram_counts_by_upper_bounds() -> None:
    histogram = Histogram()
    for took in (0.5, 1, 1.5, 99_999):
        histogram.add(took)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1], histogram.count) == (2, 1, 1, 4)
    assert msgspec.json.encode(histogram)


def test_an_account_for_a_whole_team_is_told_to_be_shared(yard: Yard) -> None:
    wanted = {"queues": {"product": {"unix_user": "shared"}}}
    (note,) = yard.ask("root", "PATCH", "/v1/teams?dry_run=true", json=wanted).json()["notes"]
    assert note.startswith('all jobs of team "product" run as the account "shared": its members can read each other')
    assert (
        yard.ask("root", "PATCH", "/v1/teams?dry_run=true", json={"queues": {"product": {"quota": 2}}}).json()["notes"]
        == []
    )


def test_an_edit_that_owes_more_than_there_is_says_so(yard: Yard) -> None:
    wanted = {"queues": {"product": {"quota": 3}}}
    (note,) = yard.ask("root", "PATCH", "/v1/teams?dry_run=true", json=wanted).json()["notes"]
    assert note.startswith("teams are owed 9 GPUs in all, and the cluster has 8 GPUs")
