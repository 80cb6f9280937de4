"""docs/limits.md holds the limits as the code has them, and no other page says another number.

Written anew with GPUYARD_WRITE_DOCS=1: what a limit is about is said by the text below it in the code.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
WRITE: Final = os.environ.get("GPUYARD_WRITE_DOCS") == "1"
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Requests": ("service.limits", "service.settings", "service.certificates"),
    "Files and their values": (
        "files.source",
        "files.tree",
        "files.jobs",
        "files.work",
        "files.cron",
    ),
    "Jobs, queues and nodes": (
        "model.jobs",
        "model.work",
        "model.queues",
        "model.nodes",
        "model.limits",
        "model.job_limits",
        "model.snapshot",
    ),
    "The cluster": (
        "worlds.standalone.decide",
        "worlds.standalone.submitting",
        "worlds.standalone.schedules",
        "worlds.standalone.records",
    ),
    "Nodes and what travels to them": (
        "wire.agents",
        "wire.agent_limits",
        "wire.artifacts",
        "agent.process_runtime",
        "agent.parcels",
    ),
    "The manager": ("service.manager", "service.recurring"),
    "The pool": ("vdk.pool.amounts", "vdk.pool.state", "vdk.serving.server", "vdk.serving.desk", "vdk.serving.keys"),
    "Data jobs": ("vdk.control.register", "vdk.control.rest", "vdk.control.execution_rest", "vdk.control.exchange"),
}
A_LIMIT: Final = re.compile(
    r"(MAX|MIN|KEPT|LONGEST)_[A-Z_]+|STREAMS_PER_TOKEN|[A-Z]+_SECONDS|LOG_PIECE_BYTES|LOG_PIECES|DEFAULT_LEASE_MS"
)
DAY_MS: Final = 24 * 3_600_000


# ------------------------------------------------------------------------------------------------------------ the table


def shown(name: str, value: float) -> str:
    """A limit as a person writes it, by the unit in its name."""
    if name.endswith("_BYTES"):
        return next((f"{value / size:g} {unit}" for size, unit in _SIZES if value >= size and not value % size), "")
    if name.endswith(("_MS", "_SECONDS")):
        milliseconds = value * (1 if name.endswith("_MS") else 1000)
        whole = [(size, unit) for size, unit in _TIMES if milliseconds >= size and not milliseconds % size]
        size, unit = whole[1] if whole[0] == _TIMES[0] and milliseconds == DAY_MS else whole[0]
        return f"{milliseconds / size:g} {unit}"
    return f"{value:,}".replace(",", " ")


_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_TIMES: Final = ((DAY_MS, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def limits_of(module: ModuleType) -> Iterator[tuple[str, float, str]]:
    """(name, value, what it is about) of the limits that are stated in a module."""
    assert module.__file__
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    for at, statement in enumerate(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        value = getattr(module, name)
        if A_LIMIT.fullmatch(name) and isinstance(value, int | float):
            yield name, value, _text_below(body, at)


def _text_below(body: list[ast.stmt], at: int) -> str:
    match body[at + 1 : at + 2]:
        case [ast.Expr(ast.Constant(str(text)))]:
            return " ".join(text.split())
    return ""


def table() -> str:
    lines = []
    for section, modules in SECTIONS.items():
        lines += [f"## {section}", "", "| limit | value | where | |", "|---|---|---|---|"]
        for path in modules:
            module = importlib.import_module(f"gpuyard.{path}")
            where = f"`{path.replace('.', '/')}.py`"
            rows = limits_of(module)
            lines += [f"| `{name}` | {shown(name, value)} | {where} | {text} |" for name, value, text in rows]
        lines.append("")
    return "\n".join(lines)


def test_the_page_holds_what_the_code_has() -> None:
    path = DOCS / "limits.md"
    found = re.compile(r"(<!-- limits -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    if WRITE:
        text = found.sub(lambda match: f"{match[1]}{table()}\n{match[3]}", path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
    match = found.search(path.read_text(encoding="utf-8"))
    assert match is not None
    assert match[2] == f"{table()}\n", "write it anew: GPUYARD_WRITE_DOCS=1"


def test_every_place_that_is_named_states_some_limit() -> None:
    for modules in SECTIONS.values():
        for path in modules:
            assert list(limits_of(importlib.import_module(f"gpuyard.{path}"))), path


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MAX_A_BYTES", 1 << 20, "1 MiB"),
        ("MAX_A_BYTES", 3 << 9, "1536 bytes"),
        ("MAX_A_BYTES", 96 << 10, "96 KiB"),
        ("MAX_A_MS", 60_000, "1 min"),
        ("MAX_A_MS", 90_000, "90 s"),
        ("MAX_A_MS", DAY_MS, "24 h"),
        ("MAX_A_MS", 400 * DAY_MS, "400 days"),
        ("HEAD_SECONDS", 0.5, "500 ms"),
        ("HEAD_SECONDS", 15.0, "15 s"),
        ("MAX_A", 100_000, "100 000"),
    ],
)
def test_values_are_shown_with_their_unit(name: str, value: float, text: str) -> None:
    assert shown(name, value) == text


# ------------------------------------------------------------------------------------------------------------ the prose

PROSE: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("api.md", r"A comment every (.+?) shows that", ("service.limits:HEARTBEAT_SECONDS",)),
    ("api.md", r"does\s+not read for (.+?) is cut off", ("service.limits:SEND_SECONDS",)),
    (
        "api.md",
        r"cut off; (\d+) streams per token .*? and (\d+) in all",
        ("service.limits:STREAMS_PER_TOKEN", "service.limits:MAX_WATCHERS"),
    ),
    ("api.md", r"`limit` is 1 to\s+(\d+)", ("service.limits:MAX_PAGE",)),
    ("security.md", r"Tokens expire \((.+?) at most\)", ("service.limits:MAX_TOKEN_MS",)),
    (
        "agent.md",
        r"\| a log \| pieces of (.+?), the last (\d+) of each attempt; at most (.+?) a read, (\d+) reads.*? (\d+ s) of",
        (
            "agent.process_runtime:LOG_PIECE_BYTES",
            "agent.process_runtime:LOG_PIECES",
            "wire.agents:MAX_LOG_PIECE_BYTES",
            "agent.daemon:MAX_LOG_READS",
            "agent.daemon:LONGEST_LOG_WAIT_MS",
        ),
    ),
    (
        "agent.md",
        r"\| logs of recorded attempts \| (.+?), (.+?), (.+?) attempts",
        (
            "agent.process_runtime:KEPT_MS",
            "agent.process_runtime:KEPT_BYTES",
            "agent.process_runtime:KEPT_COUNT",
        ),
    ),
    (
        "agent.md",
        r"\| open files, processes of a user \| (.+?); (.+?) \|",
        ("agent.process_runtime:MAX_OPEN_FILES", "agent.process_runtime:MAX_PROCESSES"),
    ),
    ("agent.md", r"\| processes and threads of a task \| (.+?), where", ("agent.cgroups:MAX_TASK_PIDS",)),
    ("agent.md", r"\| a command line \| (.+?) \|", ("agent.process_runtime:MAX_COMMAND_BYTES",)),
    (
        "agent.md",
        r"\| parcels \| (.+?) each, in pieces of (.+?), .*?; kept (.+?) after their last use, (.+?) in all",
        (
            "wire.agents:MAX_PARCEL_BYTES",
            "wire.agents:PARCEL_PIECE_BYTES",
            "agent.parcels:KEPT_MS",
            "agent.parcels:KEPT_BYTES",
        ),
    ),
    (
        "vdk.md",
        r"one folder, at most (.+?) and (.+?) files",
        ("wire.agents:MAX_PARCEL_BYTES", "wire.artifacts:MAX_FILES"),
    ),
    (
        "vdk.md",
        r"A manager keeps (.+?) data jobs and (.+?) of sources",
        ("vdk.control.register:MAX_DATA_JOBS", "vdk.control.register:MAX_ARCHIVES_BYTES"),
    ),
    ("vdk.md", r"are kept, ([\d ]+ KiB) per job", ("vdk.control.register:MAX_PROPERTIES_BYTES",)),
    (
        "pool-api.md",
        r"At most (\d+) alternatives in a request, (.+?) characters of why .*?, "
        r"(.+?) in a gRPC message, ([\d ]+) characters",
        (
            "vdk.pool.amounts:MAX_ALTERNATIVES",
            "vdk.serving.desk:MAX_WHY",
            "vdk.serving.server:MAX_REQUEST_BYTES",
            "vdk.serving.server:MAX_TEXT",
        ),
    ),
    ("pool-api.md", r"Keys of the last (.+?) requests", ("vdk.serving.keys:MAX_KEYS",)),
    (
        "gpu-resource-manager.md",
        r"at most ([\d ]+) devices, a request (.+?) alternatives, a name (.+?) characters",
        ("vdk.pool.amounts:MAX_DEVICES", "vdk.pool.amounts:MAX_ALTERNATIVES", "vdk.pool.amounts:MAX_NAME_CHARS"),
    ),
    ("gpu-resource-manager.md", r"devices times jobs up to (.+?)\)", ("vdk.pool.solver:MAX_COLUMNS",)),
    (
        "gpu-resource-manager.md",
        r"The last (.+?) closed plans and (.+?) ended jobs",
        ("vdk.pool.state:KEPT_PLANS", "vdk.pool.state:KEPT_ENDED"),
    ),
    (
        "recurring-jobs.md",
        r"at most ([\d ]+) schedules, a cluster (.+?); a job of a schedule has at most (.+?) tasks",
        (
            "worlds.standalone.schedules:MAX_SCHEDULES_PER_TEAM",
            "worlds.standalone.schedules:MAX_SCHEDULES",
            "worlds.standalone.schedules:MAX_SCHEDULED_TASKS",
        ),
    ),
    ("recurring-jobs.md", r"\(at most (\d+) wait\)", ("worlds.standalone.schedules:MAX_QUEUED_RUNS",)),
    ("job-file.md", r"failed by itself; at most (\d+)", ("model.work:MAX_RETRIES",)),
    ("job-file.md", r"7, 9; at most (\d+)", ("model.work:MAX_ARRAY",)),
    (
        "cluster-file.md",
        r"## Limits\s+(.+?) and a million values .*?, (.+?) levels of nesting, (.+?) nodes, (.+?) GPUs per node, "
        r"(.+?) queues on\s+(.+?) levels, (.+?) tasks per job .*?, (.+?) levels of groups",
        (
            "files.source:MAX_FILE_BYTES",
            "files.budget:LOCAL.nesting",
            "model.snapshot:MAX_NODES",
            "model.nodes:MAX_DEVICES_PER_NODE",
            "model.queues:MAX_QUEUES",
            "model.queues:MAX_QUEUE_DEPTH",
            "model.jobs:MAX_TASKS_PER_JOB",
            "model.jobs:MAX_GROUP_DEPTH",
        ),
    ),
    ("kube-scheduler.md", r"fulfilled in at most (.+?) ways", ("worlds.kubernetes.selectors:MAX_ALTERNATIVES",)),
    (
        "kube-scheduler.md",
        r"- (\d+) GPUs a node, (.+?) nodes, (.+?) pods a job",
        ("model.nodes:MAX_DEVICES_PER_NODE", "model.snapshot:MAX_NODES", "model.jobs:MAX_TASKS_PER_JOB"),
    ),
    (
        "kube-node.md",
        r"At most (\d+) devices, and (.+?) of the",
        ("worlds.kubernetes.devices:MAX_DEVICES", "worlds.kubernetes.devices:MAX_DOCUMENT_BYTES"),
    ),
    ("fleet-file.md", r"any text of at most (\d+) characters", ("fakegpu.fleet:MAX_ID_LENGTH",)),
    (
        "architecture.md",
        r"`MAX_DEVICES_PER_NODE` (\d+) and `MAX_NODES` ([\d ]+\d)",
        ("model.nodes:MAX_DEVICES_PER_NODE", "model.snapshot:MAX_NODES"),
    ),
    (
        "architecture.md",
        r"`MAX_QUEUES` ([\d ]+\d) and depth (\d+)",
        ("model.queues:MAX_QUEUES", "model.queues:MAX_QUEUE_DEPTH"),
    ),
    (
        "architecture.md",
        r"`MAX_TASKS_PER_JOB` ([\d ]+\d) and group depth (\d+)",
        ("model.jobs:MAX_TASKS_PER_JOB", "model.jobs:MAX_GROUP_DEPTH"),
    ),
    ("architecture.md", r"files of (.+?) \(", ("files.source:MAX_FILE_BYTES",)),
)
"""Sentences of other pages, and the constants their numbers are."""


@pytest.mark.parametrize(
    ("page", "sentence", "names"), PROSE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_page_says_another_number(page: str, sentence: str, names: tuple[str, ...]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    match = re.search(sentence, text, re.DOTALL)
    assert match is not None, f"docs/{page} does not say it any more: {sentence}"
    for said, where in zip(match.groups(), names, strict=True):
        module, name = where.split(":")
        value = attrgetter(name)(importlib.import_module(f"gpuyard.{module}"))
        assert plain(said) == plain(shown(name, value)), f"docs/{page} says {said}; {where} is {value}"


def plain(text: str) -> str:
    """Without how it is set: 10000 and 10 000, 15 seconds and 15 s."""
    return text.replace("seconds", "s").replace("minutes", "min").replace(" ", "")
