"""Readers of files a person wrote, into model values, with exact errors.

    read_cluster(path) -> ClusterFile(snapshot, policy)     nodes, queues, what runs and what waits
    read_jobs(path, cluster) -> tuple[Job, ...]             jobs to plan on that cluster
    read_change(path, cluster) -> tuple[Change, ...]        what would be changed about that cluster
    read_scenario(path) -> GoldenScenario                   a cluster and what one cycle must decide
    json_schema(kind) -> dict                               the published format of each

Each raises InputError, with the line and column, and nothing else. The way of a file: `source` (text) → `tree` (YAML
with places) → `shape` (checked against `format`) → `nodes`, `queues`, `jobs`, `seating` (model values) → `cluster`,
`change`, `scenario` (the whole).
"""

from gpuyard.files.change import read_change
from gpuyard.files.cluster import ClusterFile, read_cluster, read_jobs
from gpuyard.files.scenario import Expectation, GoldenScenario, read_scenario
from gpuyard.files.schema import KINDS, json_schema

__all__ = [
    "KINDS",
    "ClusterFile",
    "Expectation",
    "GoldenScenario",
    "json_schema",
    "read_change",
    "read_cluster",
    "read_jobs",
    "read_scenario",
]
