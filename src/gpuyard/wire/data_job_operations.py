"""The part of VDK's control service that the manager speaks, as a table: paths and objects are VDK's own.

A team's data jobs are read by whoever sees its jobs, and changed, started and downloaded by whoever may submit for it.
"""

from __future__ import annotations

from typing import Final

from gpuyard.wire import data_jobs
from gpuyard.wire.access import Permission
from gpuyard.wire.operations import ARCHIVE, FORM, Operation, Parameter

TOKEN_PATH: Final = "/oauth2/token"
TEAM: Final = "/data-jobs/for-team/{team}"
JOB: Final = f"{TEAM}/jobs/{{name}}"
DEPLOYMENT: Final = f"{JOB}/deployments/{{deployment}}"
EXECUTION: Final = f"{JOB}/executions/{{id}}"
STATUS: Final = Parameter("execution_status", str, "Only with these statuses, with commas.", "")

P = Permission
DATA_JOB_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "exchange_token",
        "POST",
        TOKEN_PATH,
        "An access token for an API token, as OAuth 2 asks for one: vdkcli login.",
        None,
        data_jobs.AccessToken,
        FORM,
    ),
    Operation("data_jobs_info", "GET", f"{TEAM}/info", "What serves data jobs.", P.SEE_JOBS, data_jobs.DataJobApiInfo),
    Operation(
        "query_data_jobs",
        "GET",
        f"{TEAM}/jobs",
        "Data jobs, by a query that looks like GraphQL.",
        P.SEE_JOBS,
        data_jobs.DataJobQueryResponse,
        query=(
            Parameter("query", str, "Page, filter and fields.", ""),
            Parameter("operation_name", str, "Passed over.", ""),
            Parameter("variables", str, "Passed over.", ""),
        ),
    ),
    Operation(
        "create_data_job",
        "POST",
        f"{TEAM}/jobs",
        "Make a data job.",
        P.SUBMIT,
        None,
        data_jobs.DataJob,
        (Parameter("name", str, "As in the body.", ""),),
        status=201,
    ),
    Operation("get_data_job", "GET", JOB, "One data job.", P.SEE_JOBS, data_jobs.DataJob),
    Operation("set_data_job", "PUT", JOB, "Change a data job.", P.SUBMIT, None, data_jobs.DataJob),
    Operation("delete_data_job", "DELETE", JOB, "Take a data job away, with its sources and properties.", P.SUBMIT),
    Operation(
        "upload_sources",
        "POST",
        f"{JOB}/sources",
        "Upload the folder of a data job as a zip file; its config.ini is checked.",
        P.SUBMIT,
        data_jobs.DataJobVersion,
        ARCHIVE,
        (Parameter("reason", str, "Why, for the record.", ""),),
    ),
    Operation(
        "download_sources",
        "GET",
        f"{JOB}/sources",
        "The folder of a data job as it is deployed, or was last uploaded: a zip file.",
        P.SUBMIT,
        bytes,
        media="application/octet-stream",
    ),
    Operation(
        "list_deployments",
        "GET",
        f"{JOB}/deployments",
        "The deployment of a data job, if it has one.",
        P.SEE_JOBS,
        tuple[data_jobs.DataJobDeploymentStatus, ...],
        query=(Parameter("deployment_id", str, "Passed over.", ""), Parameter("mode", str, "Passed over.", "")),
    ),
    Operation(
        "deploy_data_job",
        "POST",
        f"{JOB}/deployments",
        "Deploy a version of a data job: what is started from now on.",
        P.SUBMIT,
        None,
        data_jobs.DataJobDeployment,
        (Parameter("send_notification", bool, "Passed over: gpuyard sends no mail.", True),),
        status=202,
    ),
    Operation("get_deployment", "GET", DEPLOYMENT, "The deployment.", P.SEE_JOBS, data_jobs.DataJobDeploymentStatus),
    Operation(
        "patch_deployment",
        "PATCH",
        DEPLOYMENT,
        "Enable or disable a deployment, or take another version.",
        P.SUBMIT,
        None,
        data_jobs.DataJobDeployment,
        status=202,
    ),
    Operation("remove_deployment", "DELETE", DEPLOYMENT, "Take the deployment away; what runs goes on.", P.SUBMIT),
    Operation(
        "list_executions",
        "GET",
        f"{JOB}/executions",
        "Executions, newest first.",
        P.SEE_JOBS,
        tuple[data_jobs.DataJobExecution, ...],
        query=(STATUS,),
    ),
    Operation(
        "list_deployment_executions",
        "GET",
        f"{DEPLOYMENT}/executions",
        "The same.",
        P.SEE_JOBS,
        tuple[data_jobs.DataJobExecution, ...],
        query=(STATUS,),
    ),
    Operation(
        "start_execution",
        "POST",
        f"{DEPLOYMENT}/executions",
        "Start a data job now; refused, and not queued, where it cannot have a place. Location names the execution.",
        P.SUBMIT,
        data_jobs.DataJobExecution,
        data_jobs.DataJobExecutionRequest,
        status=202,
    ),
    Operation("get_execution", "GET", EXECUTION, "One execution.", P.SEE_JOBS, data_jobs.DataJobExecution),
    Operation("cancel_execution", "DELETE", EXECUTION, "End an execution, politely.", P.STEER_JOBS),
    Operation(
        "execution_logs",
        "GET",
        f"{EXECUTION}/logs",
        "What an execution has written.",
        P.SEE_SECRETS,
        data_jobs.DataJobExecutionLogs,
        query=(Parameter("tail_lines", int, "Only so many lines, the last ones; 0: all.", 0),),
    ),
    Operation("get_properties", "GET", f"{DEPLOYMENT}/properties", "Its properties.", P.SUBMIT, dict),
    Operation(
        "set_properties",
        "PUT",
        f"{DEPLOYMENT}/properties",
        "Write its properties anew.",
        P.SUBMIT,
        None,
        dict,
        status=204,
    ),
)
