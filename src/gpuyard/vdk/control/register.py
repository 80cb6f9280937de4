"""The register of data jobs: what is defined, uploaded and deployed, kept in a database of its own.

Place in the flow: REST handlers ─in its thread─▶ **register** ─events─▶ log. Who may ask is settled before.
Invariant: what is answered is durable; the archive of every version that a job keeps can be read.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.control.needs import Needs
from gpuyard.vdk.control.sources import Sources
from gpuyard.vdk.control.state import (
    Archive,
    ArchiveKept,
    ArchivesDropped,
    Deployment,
    Event,
    JobDefinition,
    JobKey,
    JobRemoved,
    JobSet,
    PropertiesSet,
    State,
    Version,
    story,
)
from gpuyard.vdk.log import KEPT_MS, Log, store_of

MAX_DATA_JOBS: Final = 10_000
MAX_VERSIONS: Final = 10
"""Of one job: the newest, and the one that is deployed."""
MAX_ARCHIVES_BYTES: Final = 2 << 30
"""All archives together."""
MAX_PROPERTIES_BYTES: Final = 256 << 10
"""Of one job, as JSON."""
REWRITTEN_MS: Final = KEPT_MS // 2
"""An archive that is still needed is written anew after so long: old entries of a log go."""

_EMPTY: Final = msgspec.Raw(b"{}")


class Register:
    """Not thread-safe: it is used in one thread."""

    def __init__(self, log: Log[State, Event]) -> None:
        self._log = log

    @classmethod
    def open(cls, address: str | None, markers: Path | None = None) -> Register:
        return cls(Log(store_of(address, markers), story()))

    def close(self) -> None:
        self._log.close()

    # -------------------------------------------------------------------------------------------------------- looking

    @property
    def _state(self) -> State:
        return self._log.state

    def find(self, key: JobKey) -> JobDefinition | None:
        return self._state.jobs.get(str(key))

    def job(self, key: JobKey) -> JobDefinition:
        found = self.find(key)
        if found is None:
            raise unknown(key)
        return found

    def jobs(self) -> list[JobDefinition]:
        return list(self._state.jobs.values())

    def properties(self, key: JobKey) -> dict[str, Any]:
        self.job(key)
        found: dict[str, Any] = msgspec.json.decode(self._state.properties.get(str(key), _EMPTY))
        return found

    def archive(self, digest: str) -> bytes | None:
        found = self._state.archives.get(digest)
        return None if found is None else self._read(found)

    def _read(self, archive: Archive) -> bytes:
        event = self._log.event(archive.seq)
        assert isinstance(event, ArchiveKept), "the state knows which entry holds it"
        return event.data

    # ------------------------------------------------------------------------------------------------------- changing

    def create(self, job: JobDefinition) -> None:
        if self.find(job.key) is not None:
            what = f'team "{job.key.team}" has a data job "{job.key.name}" already'
            raise RefusedError(ProblemReason.DATA_JOB_KNOWN, what, fix="choose another name", field="job_name")
        if len(self._state.jobs) >= MAX_DATA_JOBS:
            what = f"there are {len(self._state.jobs)} data jobs, and {MAX_DATA_JOBS} is the most"
            raise RefusedError(ProblemReason.TOO_MANY, what, fix="delete those that nobody needs")
        self.put(job, job.created_at_ms)

    def put(self, job: JobDefinition, now_ms: int) -> None:
        with self._log.change():
            self._enter(JobSet(job), now_ms)

    def remove(self, key: JobKey, now_ms: int) -> None:
        self.job(key)
        with self._log.change():
            self._enter(JobRemoved(key), now_ms)

    def set_properties(self, key: JobKey, properties: dict[str, Any], now_ms: int) -> None:
        self.job(key)
        text = msgspec.json.encode(properties)
        if len(text) > MAX_PROPERTIES_BYTES:
            what = f"the properties have {len(text) >> 10} KiB, and {MAX_PROPERTIES_BYTES >> 10} is the most"
            raise RefusedError(ProblemReason.TOO_LARGE, what, fix="keep data elsewhere, and where it is in here")
        with self._log.change():
            self._enter(PropertiesSet(key, msgspec.Raw(text)), now_ms)

    def upload(self, key: JobKey, sources: Sources, version: Version, in_use: Collection[str]) -> None:
        """Sources of a job; the same again make no new version. `in_use` are archives that running jobs need."""
        job = self.job(key)
        self._check_room(len(sources.archive))
        with self._log.change() as state:
            self._keep_archives(state, version.uploaded_at_ms, in_use)
            if version.digest not in state.archives:
                self._enter(ArchiveKept(version.digest, sources.archive), version.uploaded_at_ms)
            others = [one for one in job.versions if one.digest != version.digest]
            self._enter(JobSet(replace(job, versions=_shortened(job, [*others, version]))), version.uploaded_at_ms)

    def deploy(self, key: JobKey, deployment: Deployment) -> JobDefinition:
        job = self.job(key)
        known_version(job, deployment.digest)
        changed = replace(job, deployment=deployment)
        with self._log.change():
            self._enter(JobSet(changed), deployment.deployed_at_ms)
        return changed

    def undeploy(self, key: JobKey, now_ms: int) -> None:
        job = self.job(key)
        with self._log.change():
            self._enter(JobSet(replace(job, deployment=None)), now_ms)

    def _enter(self, event: Event, at_ms: int) -> None:
        self._log.enter(event, at_ms)

    # ------------------------------------------------------------------------------------------------------- archives

    def _check_room(self, size: int) -> None:
        total_bytes = sum(archive.size for archive in self._state.archives.values())
        if total_bytes + size > MAX_ARCHIVES_BYTES:
            what = (
                f"the sources of all data jobs have {total_bytes >> 20} MiB, and {MAX_ARCHIVES_BYTES >> 20} is the most"
            )
            raise RefusedError(ProblemReason.TOO_MANY, what, fix="delete data jobs that nobody needs")

    def _keep_archives(self, state: State, now_ms: int, in_use: Collection[str]) -> None:
        """Old ones that are needed are written anew, those that are not are let go."""
        needed = {version.digest for job in state.jobs.values() for version in job.versions} | set(in_use)
        gone = tuple(digest for digest in state.archives if digest not in needed)
        if gone:
            self._enter(ArchivesDropped(gone), now_ms)
        for digest, archive in list(state.archives.items()):
            if now_ms - archive.written_at_ms > REWRITTEN_MS:
                self._enter(ArchiveKept(digest, self._read(archive)), now_ms)


def _shortened(job: JobDefinition, versions: list[Version]) -> tuple[Version, ...]:
    """The newest, and whichever is deployed."""
    deployed = job.deployment.digest if job.deployment else ""
    beyond = len(versions) - MAX_VERSIONS
    return tuple(one for index, one in enumerate(versions) if index >= beyond or one.digest == deployed)


def known_version(job: JobDefinition, digest: str) -> Version:
    found = job.version(digest)
    if found is None:
        what = f'data job "{job.key.name}" has no version "{digest[:80]}"'
        fix = f"the newest {MAX_VERSIONS} versions are kept: upload its sources again with vdkcli deploy"
        raise RefusedError(ProblemReason.DATA_JOB_VERSION_UNKNOWN, what, fix=fix, field="job_version")
    return found


def needs_of(job: JobDefinition, deployment: Deployment) -> Needs:
    """What the deployed version asks for."""
    version = job.version(deployment.digest)
    assert version is not None, "a deployed version is kept"
    return version.needs


def unknown(key: JobKey) -> RefusedError:
    what = f'team "{key.team[:80]}" has no data job "{key.name[:80]}"'
    return RefusedError(
        ProblemReason.DATA_JOB_UNKNOWN, what, fix="make it first: vdkcli create --cloud -n NAME -t TEAM"
    )
