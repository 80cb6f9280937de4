"""What is known of data jobs: definitions, versions, deployments, properties; and the events it is the fold of.

Place in the flow: register ─event─▶ log ─fold─▶ **State**. The archives of sources are in the log alone: the state
only knows which entry holds which, so that a snapshot stays small. Invariant: a version of a job that is kept has an
entry that holds its archive.
"""

from __future__ import annotations

import msgspec

from gpuyard.vdk.control.needs import Needs
from gpuyard.vdk.log import Story
from gpuyard.wire.data_jobs import DataJobConfig


class JobKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A data job is named within its team."""

    team: str
    name: str

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"


class Version(msgspec.Struct, frozen=True):
    """Sources that were uploaded. `digest` is the SHA-256 of their archive, and VDK's word for the version."""

    digest: str
    uploaded_at_ms: int
    uploaded_by: str
    needs: Needs
    reason: str = ""


class Deployment(msgspec.Struct, frozen=True):
    """Which version runs when the job is started."""

    digest: str
    enabled: bool
    deployed_at_ms: int
    deployed_by: str
    vdk_version: str = ""
    python_version: str = ""


class JobDefinition(msgspec.Struct, frozen=True):
    """A data job, with everything but its properties."""

    key: JobKey
    created_at_ms: int
    created_by: str
    description: str = ""
    config: DataJobConfig = DataJobConfig()
    versions: tuple[Version, ...] = ()
    """Newest last."""
    deployment: Deployment | None = None

    def version(self, digest: str) -> Version | None:
        return next((one for one in self.versions if one.digest == digest), None)

    @property
    def schedule_cron(self) -> str:
        schedule = self.config.schedule
        return (schedule.schedule_cron or "").strip() if schedule else ""


class Archive(msgspec.Struct, frozen=True):
    """Where the archive of some sources is."""

    seq: int
    """The entry of the log that holds it."""
    written_at_ms: int
    size: int


class State(msgspec.Struct):
    seq: int = 0
    """Entries folded: the number of the newest."""
    jobs: dict[str, JobDefinition] = {}
    """By their key as text, TEAM/NAME: neither holds a slash."""
    properties: dict[str, msgspec.Raw] = {}
    """TEAM/NAME → its properties, a JSON object."""
    archives: dict[str, Archive] = {}
    """By digest."""


# -------------------------------------------------------------------------------------------------------------- events


class JobSet(msgspec.Struct, frozen=True, tag="data-job-set"):
    job: JobDefinition


class JobRemoved(msgspec.Struct, frozen=True, tag="data-job-removed"):
    key: JobKey


class PropertiesSet(msgspec.Struct, frozen=True, tag="properties-set"):
    key: JobKey
    properties: msgspec.Raw


class ArchiveKept(msgspec.Struct, frozen=True, tag="archive-kept"):
    digest: str
    data: bytes


class ArchivesDropped(msgspec.Struct, frozen=True, tag="archives-dropped"):
    digests: tuple[str, ...]


Event = JobSet | JobRemoved | PropertiesSet | ArchiveKept | ArchivesDropped


def fold(state: State, event: Event, at_ms: int) -> None:
    state.seq += 1
    match event:
        case JobSet(job):
            state.jobs[str(job.key)] = job
        case JobRemoved(key):
            del state.jobs[str(key)]
            state.properties.pop(str(key), None)
        case PropertiesSet(key, properties):
            state.properties[str(key)] = properties.copy()
        case ArchiveKept(digest, data):
            state.archives[digest] = Archive(state.seq, at_ms, len(data))
        case ArchivesDropped(digests):
            for digest in digests:
                del state.archives[digest]


_DECODER = msgspec.json.Decoder(State)


def story() -> Story[State, Event]:
    return Story(
        events=Event,
        empty=State,
        fold=fold,
        save=msgspec.json.encode,
        load=lambda body: _copied(_DECODER.decode(body)),
        oldest_needed=lambda state: min((archive.seq for archive in state.archives.values()), default=None),
    )


def _copied(state: State) -> State:
    """Properties must not keep the whole snapshot in memory, of which they are a view."""
    state.properties = {key: raw.copy() for key, raw in state.properties.items()}
    return state
