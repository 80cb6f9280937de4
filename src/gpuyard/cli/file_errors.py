"""Errors of the server about what a person wrote, in the terms they wrote it in: their file's lines, or their flags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from gpuyard.cli.inputs import PIPE
from gpuyard.errors import ClientError
from gpuyard.sdk.bodies import YamlText

_PLACE: Final = re.compile(r"^(?:[\w ./<>-]{1,60}:)?([0-9]+:[0-9]+: )", re.MULTILINE)
"""How the server says where: `body.yaml:3:7: ...`."""

_FLAGS: Final = {"ram": "memory", "gpu_memory": "gpus", "run_limit": "time", "labels": "label", "gang": "elastic"}
"""Fields whose flag has another name."""
_HAVE_FLAGS: Final = frozenset(
    {
        *("team", "gpus", "cpu", "nodes", "tasks", "priority", "preemptible", "estimate", "array", "after", "afterok"),
        *("retries", "env", "workdir", "model", "checkpoint", "grace", "on_node_lost", "hold", "name", "slurm_env"),
        *("cron", "time_zone", "overlap", "missed", "missed_limit", "paused"),
        *("quota", "limit", "weight", "parent", "idle_limit", "idle_percent", "unix_user"),
    }
)


@contextlib.contextmanager
def about_file(name: str, body: object) -> Iterator[None]:
    """Let errors about what was sent begin with the file's name, line and column, or with the flag."""
    try:
        yield
    except ClientError as error:
        if isinstance(body, YamlText):
            shown = "standard input" if name in ("-", str(PIPE)) else name
            error.what = _PLACE.sub(lambda place: f"{shown}:{place[1]}", error.what)
        else:
            error.what = f"{_flag(error.field)}{_PLACE.sub('', error.what)}"
        error.fix = error.fix.replace("allow_never", "--allow-never")
        raise


def _flag(field: str) -> str:
    """`--memory: ` for the field ram; nothing for a field that has no flag."""
    known = next((part for part in field.split(".") if part in _FLAGS or part in _HAVE_FLAGS), "")
    return f"--{_FLAGS.get(known, known).replace('_', '-')}: " if known else ""
