"""Objects of Kubernetes as their JSON, read as the scheduler reads them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpuyard.worlds.kubernetes import objects

Object = TypeVar("Object")


def decoded(kind: type[Object], value: dict[str, Any]) -> Object:
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


def a_pod(name: str = "p", namespace: str = "default", **fields: Any) -> objects.Pod:
    """A pod with these fields of its spec; `labels`, `annotations`, `uid` and `status` go where they belong."""
    metadata = {"name": name, "namespace": namespace, "uid": fields.pop("uid", f"uid-{name}")}
    metadata |= {key: fields.pop(key) for key in ("labels", "annotations") if key in fields}
    return decoded(objects.Pod, {"metadata": metadata, "status": fields.pop("status", {}), "spec": fields})


def a_container(name: str = "c", *, limits: dict[str, str] | None = None, **requests: str) -> dict[str, Any]:
    """Requests by keyword: `cpu="1"`, `gpu="2"` for nvidia.com/gpu, `ephemeral_storage="1Gi"`."""
    names = {"gpu": "nvidia.com/gpu"}
    asked = {names.get(key, key.replace("_", "-")): value for key, value in requests.items()}
    return {"name": name, "resources": {"requests": asked, **({"limits": limits} if limits else {})}}


def a_sidecar(name: str = "s", *, cpu: str) -> dict[str, Any]:
    return {**a_container(name, cpu=cpu), "restartPolicy": "Always"}


def a_node(name: str = "n", *, labels: dict[str, str] | None = None, **fields: Any) -> objects.Node:
    """A ready node; `allocatable` and `conditions` belong to its status, the rest to its spec."""
    status = {
        "allocatable": fields.pop("allocatable", {"cpu": "8", "memory": "32Gi", "pods": "110"}),
        "conditions": fields.pop("conditions", [{"type": "Ready", "status": "True"}]),
    }
    return decoded(objects.Node, {"metadata": {"name": name, "labels": labels}, "spec": fields, "status": status})


def a_claim(name: str = "data", namespace: str = "default", **fields: Any) -> objects.VolumeClaim:
    """A claim; bound where `volumeName` is given and `annotations` do not say otherwise."""
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if fields.get("volumeName") else {}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"}
    metadata["annotations"] = fields.pop("annotations", bound)
    metadata |= {key: fields.pop(key) for key in ("ownerReferences", "deletionTimestamp") if key in fields}
    phase = fields.pop("phase", "Bound" if fields.get("volumeName") else "Pending")
    return decoded(objects.VolumeClaim, {"metadata": metadata, "spec": fields, "status": {"phase": phase}})


def a_volume(name: str, *, labels: dict[str, str] | None = None, **fields: Any) -> objects.PersistentVolume:
    status = {"phase": fields.pop("phase", "Bound")}
    metadata = {"name": name, "labels": labels, "resourceVersion": "7"}
    return decoded(objects.PersistentVolume, {"metadata": metadata, "spec": fields, "status": status})


def a_class(name: str, **fields: Any) -> objects.StorageClass:
    return decoded(objects.StorageClass, {"metadata": {"name": name}, "provisioner": "example.com/disk", **fields})
