"""A node whose agent says what is out of range: seen in lists, in what happened, and in why a job waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gpuyard.cli.doctor import _nodes
from gpuyard.cli.session import Session
from gpuyard.model.findings import FAIL
from gpuyard.model.nodes import Device
from gpuyard.sdk.answers import decoded_json
from gpuyard.wire.agents import MachineFacts, Report
from gpuyard.wire.rest import NodeObject
from tests.service.yard import Yard

WHY = "it reports 64 GPUs, and a node has at most 62"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as yard:
        yield yard


def says(yard: Yard, facts: MachineFacts) -> None:
    async def report() -> None:
        machine = yard.machine
        machine._clock += 1
        yard.manager.agent_reported("m1", Report(machine._clock, tuple(machine.running.values()), facts))

    yard.call(report)


def test_an_unhealthy_node_is_shown_with_its_reason_and_takes_nothing_new(yard: Yard) -> None:
    runs = yard.submit("max", gpus=1)
    yard.wait_for(runs, "running")
    says(yard, replace(yard.machine.facts, devices=(Device(),) * 64))
    node: dict[str, Any] = yard.ask("max", "GET", "/v1/nodes/m1").json()
    assert (node["state"], node["unhealthy"], node["gpus"]) == ("unhealthy", WHY, 8)
    waits = yard.submit("max", gpus=1)
    explained = yard.ask("max", "GET", f"/v1/jobs/{waits}/explanation").json()
    assert explained["unhealthy_nodes"] == [f"node m1 is unhealthy and takes no new task: {WHY}"]
    assert explained["unhealthy_nodes"][0] in explained["text"]
    events = yard.ask("root", "GET", "/v1/events?object=node/m1").json()["items"]
    assert any(event["kind"] == "node-unhealthy" and WHY in event["text"] for event in events)
    assert yard.ask("root", "GET", "/v1/nodes").json()["items"][0]["state"] == "unhealthy"
    assert 'gpuyard_nodes{state="unhealthy"} 1' in yard.ask("root", "GET", "/metrics").text
    assert yard.wait_for(runs, "running")["state"] == "running"
    says(yard, yard.machine.facts)
    assert yard.wait_for(waits, "running")["state"] == "running"
    assert yard.ask("max", "GET", f"/v1/jobs/{waits}/explanation").json()["unhealthy_nodes"] == []
    assert yard.ask("max", "GET", "/v1/nodes/m1").json()["unhealthy"] == ""


def test_a_job_that_asks_for_other_nodes_hears_nothing_of_it(yard: Yard) -> None:
    says(yard, replace(yard.machine.facts, cpu_milli=-1))
    body = {"command": ["true"], "gpus": 1, "model": ["H100"]}
    elsewhere = yard.ask("max", "POST", "/v1/jobs?allow_never=true", json=body).json()["jobs"][0]["id"]
    assert yard.ask("max", "GET", f"/v1/jobs/{elsewhere}/explanation").json()["unhealthy_nodes"] == []


def test_doctor_fails_for_an_unhealthy_node(yard: Yard) -> None:
    says(yard, replace(yard.machine.facts, devices=(Device(),) * 64))
    raw = yard.ask("root", "GET", "/v1/nodes/m1").content
    client = SimpleNamespace(nodes=lambda: [decoded_json(raw, NodeObject)])
    findings = list(_nodes(cast(Session, SimpleNamespace(client=client))))
    assert [finding.verdict for finding in findings if WHY in finding.what] == [FAIL]
