"""Data jobs in a yard, over REST as VDK's command line speaks it."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx2

from gpuyard.wire.agents import AttemptId
from tests.service.yard import Yard
from tests.vdk.control.folders import STEP, config, packed

_names = count(1)
OCTETS = {"Content-Type": "application/octet-stream"}


class DataJobs:
    """Those of one team, by one person."""

    def __init__(self, yard: Yard, user: str = "lea", team: str = "vision") -> None:
        self.yard = yard
        self.user = user
        self.team = team

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self.yard.ask(self.user, method, f"/data-jobs/for-team/{self.team}{path}", **options)

    def create(self, name: str = "", **more: Any) -> str:
        name = name or f"job-{next(_names):04}"
        body = {"job_name": name, "team": self.team, "description": "", "config": {"schedule": {}}, **more}
        made = self.ask("POST", "/jobs", params={"name": name}, json=body)
        assert made.status_code == 201, made.text
        return name

    def upload(self, name: str, text: str = STEP, **needs: object) -> httpx2.Response:
        data = packed({"config.ini": config(self.team, **needs), "10_step.py": text}, name)
        return self.ask("POST", f"/jobs/{name}/sources", params={"reason": "test"}, content=data, headers=OCTETS)

    def deploy(self, name: str, text: str = STEP, **needs: object) -> str:
        """The version."""
        uploaded = self.upload(name, text, **needs)
        assert uploaded.status_code == 200, uploaded.text
        version = str(uploaded.json()["version_sha"])
        done = self.ask("POST", f"/jobs/{name}/deployments", json={"job_version": version})
        assert done.status_code == 202, done.text
        return version

    def ready(self, **needs: object) -> str:
        """A job that can be started."""
        name = self.create()
        self.deploy(name, STEP, **needs)
        return name

    def try_start(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> httpx2.Response:
        body = {"started_by": "manual/vdk-control-cli", "args": arguments or {}}
        return self.ask("POST", f"/jobs/{name}/deployments/production/executions", json=body, **options)

    def start(self, name: str, arguments: dict[str, Any] | None = None) -> str:
        """The id of the execution."""
        done = self.try_start(name, arguments)
        assert done.status_code == 202, done.text
        return done.headers["location"].rpartition("/")[2]

    def execution(self, name: str, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/jobs/{name}/executions/{id}").json()
        return found

    def finish(self, id: str, exit_code: int = 0) -> None:
        """As its machine would tell."""
        self.yard.wait_for(id, "running")

        async def end() -> None:
            record = self.yard.manager.state.jobs[id]
            self.yard.machine.finish(AttemptId(id, 0, record.tasks[0].attempt), exit_code)

        self.yard.call(end)
        self.yard.wait_for(id, "succeeded", "failed")

    def clear(self) -> None:
        """Nothing of this team runs."""
        jobs = self.yard.ask("root", "GET", "/v1/jobs", params={"team": self.team, "state": "active"}).json()["items"]
        for job in jobs:
            self.yard.ask("root", "POST", f"/v1/jobs/{job['id']}/cancel")
            self.yard.wait_for(job["id"], "cancelled")
