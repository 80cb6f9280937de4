"""How teams look in lists."""

from __future__ import annotations

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import span
from gpuyard.wire.rest import TeamObject

TEAMS: Kind[TeamObject] = Kind(
    TeamObject,
    (
        Column("TEAM", lambda team, at: team.name),
        Column("PARENT", lambda team, at: team.parent or ""),
        Column("OWED", lambda team, at: "all it asks" if team.quota is None else team.quota),
        Column("HELD", lambda team, at: team.held, key=lambda team: float(team.held)),
        Column("BORROWED", lambda team, at: team.borrowed, key=lambda team: float(team.borrowed)),
        Column("LENT", lambda team, at: team.lent, key=lambda team: float(team.lent)),
        Column("FAIR-SHARE", lambda team, at: team.fair_share),
        Column("LIMIT", lambda team, at: "none" if team.limit is None else team.limit),
        Column("WAITING", lambda team, at: team.waiting),
        Column("RUNNING-JOBS", lambda team, at: str(team.running_jobs), key=lambda team: team.running_jobs),
        Column("WAITING-JOBS", lambda team, at: str(team.waiting_jobs), key=lambda team: team.waiting_jobs),
        Column("WEIGHT", lambda team, at: team.weight, wide=True),
        Column("PRIORITY", lambda team, at: str(team.priority), wide=True),
        Column("IDLE-LIMIT", lambda team, at: span(team.idle_limit_ms / 1000) if team.idle_limit_ms else "", wide=True),
        Column("MEMBERS", lambda team, at: ",".join(member.user for member in team.members or ()), wide=True),
    ),
    lambda team: team.name,
)
