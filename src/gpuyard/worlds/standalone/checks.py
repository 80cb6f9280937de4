"""What intents of several kinds are checked for. Pure; refused with a reason that says what to do."""

from __future__ import annotations

from gpuyard.errors import RefusedError
from gpuyard.worlds.standalone.records import State


def check_revision(wanted: int | None, revision: int, what: str) -> None:
    if wanted is not None and wanted != revision:
        raise RefusedError(
            "Changed", f"{what} has changed: it is at revision {revision}, not {wanted}", fix="look again, then decide"
        )


def leaf_of(state: State, team: str) -> str:
    """The team, if it is one that holds jobs."""
    if team in state.teams:
        return team
    teams = ", ".join(sorted(state.teams)[:10])
    if any(queue.name == team for queue in state.queues):
        raise RefusedError("TeamHasTeams", f'"{team}" has teams below it', fix=f"one of: {teams}", field="team")
    fix = f"teams that hold jobs: {teams}" if teams else "an admin makes one: gpuyard team set"
    raise RefusedError("TeamUnknown", f'there is no team "{team}"', fix=fix, field="team")
