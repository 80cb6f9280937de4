"""The objects of VDK's control service, as its command line sends and reads them.

Their names and fields are VDK's. What a client sends beyond them is passed over, as VDK's own service does.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Schedule(msgspec.Struct, frozen=True):
    schedule_cron: str | None = None


class Contacts(msgspec.Struct, frozen=True):
    """Kept and shown; gpuyard sends no mail."""

    notified_on_job_failure_user_error: tuple[str, ...] | None = None
    notified_on_job_failure_platform_error: tuple[str, ...] | None = None
    notified_on_job_success: tuple[str, ...] | None = None
    notified_on_job_deploy: tuple[str, ...] | None = None


class DataJobConfig(msgspec.Struct, frozen=True):
    db_default_type: str | None = None
    contacts: Contacts | None = None
    schedule: Schedule | None = None
    generate_keytab: bool | None = None
    enable_execution_notifications: bool | None = None
    notification_delay_period_minutes: int | None = None


class DataJob(msgspec.Struct, frozen=True):
    """The definition of a data job."""

    job_name: str
    description: str | None = None
    config: DataJobConfig | None = None
    team: str | None = None


class DataJobVersion(msgspec.Struct, frozen=True):
    version_sha: str


class DataJobDeployment(msgspec.Struct, frozen=True):
    """What is to be deployed, or is; what is left out stays as it is."""

    job_version: str | None = None
    enabled: bool | None = None
    vdk_version: str | None = None
    python_version: str | None = None
    id: str | None = None
    mode: str | None = None
    deployed_by: str | None = None
    deployed_date: datetime | None = None
    schedule: Schedule | None = None


class DataJobDeploymentStatus(msgspec.Struct, frozen=True):
    id: str
    job_version: str
    enabled: bool
    last_deployed_by: str
    last_deployed_date: str
    mode: str = "release"
    vdk_version: str | None = None
    python_version: str | None = None
    contacts: Contacts | None = None
    schedule: Schedule | None = None


class DataJobExecutionRequest(msgspec.Struct, frozen=True):
    started_by: str | None = None
    args: dict[str, Any] | None = None
    """Given to every step of the job."""


class DataJobExecution(msgspec.Struct, frozen=True):
    """One run of a data job. Its id is that of the gpuyard job that carries it out."""

    id: str
    job_name: str
    status: str
    type: str
    start_time: datetime
    started_by: str
    message: str
    deployment: DataJobDeployment
    end_time: datetime | None = None
    logs_url: str | None = None
    op_id: str | None = None


class DataJobExecutionLogs(msgspec.Struct, frozen=True):
    logs: str


class DataJobPage(msgspec.Struct, frozen=True, rename="camel"):
    content: tuple[dict[str, Any], ...]
    total_items: int
    total_pages: int


class DataJobQueryResponse(msgspec.Struct, frozen=True):
    data: DataJobPage
    errors: tuple[dict[str, Any], ...] = ()


class DataJobApiInfo(msgspec.Struct, frozen=True):
    api_version: str
    supported_python_versions: tuple[str, ...]


class AccessToken(msgspec.Struct, frozen=True):
    """RFC 6749, 5.1."""

    access_token: str
    token_type: str
    expires_in: int
