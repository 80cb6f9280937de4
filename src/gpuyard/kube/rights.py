"""Rights on a cluster that somebody lacks, named so that an administrator can grant them.

Place in the flow: an API server's refusal ─**rights**─▶ one error, or a finding of the doctor. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gpuyard.errors import KubeRefusedError
from gpuyard.kubeapi.client import FORBIDDEN

READER: Final = "gpuyard-reader"
"""The role the errors propose."""


class Right(msgspec.Struct, frozen=True, order=True):
    """To do one thing with objects of one kind."""

    verb: str
    resource: str
    """The plural."""
    group: str = ""
    namespace: str = ""
    """Empty: in all of them."""
    name: str = ""
    """Of one object; empty: of all."""

    @property
    def full(self) -> str:
        """As kubectl takes it: `pods`, `queues.scheduling.run.ai`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def __str__(self) -> str:
        named = f"/{self.name}" if self.name else ""
        return f"{self.verb} {self.full}{named}{f' in namespace {self.namespace}' if self.namespace else ''}"


def right_of(path: str, verb: str = "list") -> Right:
    """What a request to a collection takes."""
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    below = parts[3:] if group else parts[2:]
    namespace = below[1] if len(below) > 2 and below[0] == "namespaces" else ""
    return Right(verb, below[2] if namespace else below[0], group, namespace)


def rights_error(lacking: Sequence[Right]) -> KubeRefusedError:
    """All of them at once, and how to grant them."""
    rights = sorted(set(lacking))
    what = f"you may not {_listed([str(right) for right in rights])}"
    return KubeRefusedError(what, status=FORBIDDEN, reason="Forbidden", fix=granting(rights))


def granting(rights: Sequence[Right]) -> str:
    """The commands that grant rights to whoever is told them."""
    kind, option = ("role", f" -n {rights[0].namespace}") if rights[0].namespace else ("clusterrole", "")
    verbs = ",".join(sorted({right.verb for right in rights}))
    resources = ",".join(dict.fromkeys(right.full for right in rights))
    role = f"kubectl create {kind} {READER}{option} --verb={verbs} --resource={resources}"
    binding = f"kubectl create {kind}binding {READER}-YOU{option} --{kind}={READER} --user=YOU"
    return f"an administrator grants it with: {role} && {binding}"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
