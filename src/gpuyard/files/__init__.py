"""Readers of files a person wrote, into model values, with exact errors.

    cluster.read_cluster(path) -> ClusterFile(snapshot, policy)     nodes, queues, what runs and what waits
    cluster.read_jobs(path, cluster) -> tuple[Job, ...]             jobs to plan on that cluster
    change.read_change(path, cluster) -> tuple[Change, ...]         what would be changed about that cluster
    scenario.read_scenario(path) -> GoldenScenario                  a cluster and what one cycle must decide
    schema.json_schema(kind) -> dict                                the published format of each

Each raises InputError, with the line and column, and nothing else. The way of a file: `source` (text) → `tree` (YAML
with places) → `shape` (checked against `format`) → `nodes`, `queues`, `jobs`, `seating` (model values) → `cluster`,
`change`, `scenario` (the whole). Nothing is imported here: whoever reads another kind of file does not load the core.
"""
