"""What a client sends that the server reads like a file: a job, a change of teams, a change of the cluster.

Place in the flow: flags or a program ─**body**─JSON or YAML─▶ the readers in `files/`, on the server. A field that is
not given is not sent; what it then means is the server's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

JSON: Final = "application/json"
YAML: Final = "application/yaml"


class YamlText(msgspec.Struct, frozen=True):
    """A file as its author wrote it, so that errors can name line and column."""

    text: str


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job to submit; the fields of a job file (docs/job-file.md)."""

    name: str | None = None
    team: str | None = None
    queue: str | None = None
    """Another word for `team`."""
    command: Sequence[str] | str | None = None
    """A list is run as it is, a text by the shell."""
    env: dict[str, str] | None = None
    workdir: str | None = None
    gpus: str | int | float | None = None
    devices: int | None = None
    gpu_memory: str | int | None = None
    mig: dict[str, int] | None = None
    cpu: str | int | float | None = None
    ram: str | int | None = None
    other: dict[str, int] | None = None
    model: Sequence[str] | str | None = None
    selector: dict[str, object] | None = None
    affinity: Sequence[object] | None = None
    tolerations: Sequence[str] | None = None
    near: object | None = None
    apart: object | None = None
    even: object | None = None
    prefer: object | None = None
    sharing: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    gang: int | None = None
    """How many start together at least; fewer than `tasks` makes the job elastic."""
    groups: Sequence[object] | None = None
    min_groups: int | None = None
    topology: object | None = None
    spread: bool | None = None
    priority: int | str | None = None
    preemptible: bool | None = None
    movable: bool | None = None
    checkpointable: bool | None = None
    run_limit: str | None = None
    estimate: str | None = None
    restart: str | None = None
    preemption_delay: str | None = None
    staleness_grace: str | None = None
    disruption_budget: int | None = None
    labels: dict[str, str] | None = None
    array: str | int | None = None
    after: Sequence[str] | None = None
    afterok: Sequence[str] | None = None
    retries: int | None = None
    on_node_lost: str | None = None
    grace: str | None = None
    notice_signal: str | None = None
    checkpoint: Sequence[str] | str | None = None
    hold: bool | None = None
    slurm_env: bool | None = None


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that comes again; the fields of a schedule file (docs/recurring-jobs.md)."""

    cron: str
    job: JobRequest | dict[str, object]
    time_zone: str | None = None
    overlap: str | None = None
    missed: str | None = None
    missed_limit: str | None = None
    paused: bool | None = None


class TeamChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Other values for one team; what is not given stays."""

    parent: str | None = None
    quota: str | None = None
    limit: str | None = None
    weight: str | None = None
    priority: int | None = None
    idle_limit: str | None = None
    idle_percent: int | None = None
    unix_user: str | None = None
    new: bool | None = None
    """True: it does not exist yet, and stands at the top."""


class TeamsChange(msgspec.Struct, frozen=True):
    """Teams by name."""

    queues: dict[str, TeamChange]


Body = YamlText | msgspec.Struct


def encoded(body: Body) -> tuple[bytes, str]:
    """The bytes to send, and what they are."""
    if isinstance(body, YamlText):
        return body.text.encode(), YAML
    return msgspec.json.encode(body), JSON
