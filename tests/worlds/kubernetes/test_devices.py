"""The document of a node's devices: it reads back as it was written, and nonsense is a note, never an exception."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.kubeapi.names import MAX_NAME
from gpuyard.kubeapi.paths import path_of
from gpuyard.worlds.kubernetes.devices import (
    KEY,
    MAX_DEVICES,
    MAX_DOCUMENT_BYTES,
    Held,
    NodeDevices,
    PublishedDevice,
    Unreadable,
    document_of,
    indices_held,
    map_name,
    read_devices,
)
from gpuyard.worlds.kubernetes.objects import ConfigMap, Metadata

TWO = (PublishedDevice("GPU-0"), PublishedDevice("GPU-1", healthy=False))


def a_map(text: str, node: str = "n") -> ConfigMap:
    return ConfigMap(Metadata(name=map_name(node)), {KEY: text})


def why(found: object) -> str:
    assert isinstance(found, Unreadable)
    return str(found)


# ---------------------------------------------------------------------------------------------------------- what is so

names = st.text(st.characters(categories=("L", "N", "P", "Z")), min_size=1, max_size=20)
numbers = st.integers(0, 1 << 20)


@st.composite
def documents(draw: st.DrawFn) -> NodeDevices:
    ids = draw(st.lists(names, unique=True, max_size=8))
    devices = tuple(
        PublishedDevice(id, draw(st.booleans()), draw(names), draw(numbers), draw(numbers), draw(numbers), draw(names))
        for id in ids
    )
    pods = draw(st.lists(st.tuples(names, names), unique=True, max_size=len(ids)))
    shares = {id: pods[draw(numbers) % len(pods)] for id in ids if pods and draw(numbers) % 2}
    held = tuple(
        Held(namespace, pod, container, tuple(id for id in ids if shares.get(id) == (namespace, pod)), draw(names))
        for namespace, pod in pods
        for container in draw(st.lists(names, unique=True, max_size=2))
    )
    return NodeDevices(draw(st.from_regex(r"[a-z0-9.-]{1,253}", fullmatch=True)), devices, held, draw(names))


@given(documents())
def test_what_is_written_reads_back_as_it_was(devices: NodeDevices) -> None:
    text = document_of(devices)
    assert read_devices(a_map(text, devices.node)) == devices
    assert document_of(msgspec.structs.replace(devices)) == text


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True))
def test_every_node_has_a_config_map_with_a_name_the_api_server_takes(node: str) -> None:
    name = map_name(node)
    assert len(name) <= MAX_NAME
    assert path_of("configmaps", name, namespace="gpuyard-system")


def test_long_names_that_begin_alike_are_two() -> None:
    assert map_name("n" * 252 + "a") != map_name("n" * 252 + "b")


def test_what_a_later_version_adds_is_passed_over_and_what_it_leaves_out_is_as_usual() -> None:
    text = '{"node": "n", "devices": [{"id": "GPU-0", "colour": "red"}], "news": {"a": [1]}}'
    assert read_devices(a_map(text)) == NodeDevices("n", (PublishedDevice("GPU-0"),))


def test_a_pod_has_the_gpus_of_all_its_containers_by_their_place_among_the_whole_ones() -> None:
    slices = (PublishedDevice("MIG-0", resource="nvidia.com/mig-1g.10gb", gpu="GPU-9"),)
    held = (
        Held("a", "p", "init", ("GPU-0", "GPU-1")),
        Held("a", "p", "main", ("GPU-1",)),
        Held("a", "q", "main", ("MIG-0",)),
    )
    devices = NodeDevices("n", (*slices, *TWO), held)
    assert [device.id for device in devices.gpus()] == ["GPU-0", "GPU-1"]
    assert indices_held(devices, "a", "p") == (0, 1)
    assert indices_held(devices, "a", "q") == ()
    assert indices_held(devices, "b", "p") == ()


def test_the_largest_node_fits_in_a_config_map() -> None:
    long, uuid = "n" * 253, "GPU-12345678-1234-1234-1234-123456789012::{}"
    devices = tuple(PublishedDevice(uuid.format(at), model="H100", memory_mib=81559) for at in range(MAX_DEVICES))
    held = tuple(Held("n" * 63, long, "c" * 63, (device.id,), "u" * 36) for device in devices)
    assert len(document_of(NodeDevices(long, devices, held))) < MAX_DOCUMENT_BYTES


# ------------------------------------------------------------------------------------------------------------ nonsense

json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(json)
def test_any_json_is_devices_or_a_note(value: object) -> None:
    assert isinstance(read_devices(a_map(msgspec.json.encode(value).decode())), NodeDevices | Unreadable)


@given(st.text())
def test_any_text_is_a_note(text: str) -> None:
    assert isinstance(read_devices(a_map(text)), Unreadable)


@given(documents(), st.data())
def test_a_field_of_another_kind_is_devices_or_a_note(devices: NodeDevices, data: st.DataObject) -> None:
    """As by a hand that edits: one value somewhere in a good document is another."""
    content = msgspec.to_builtins(devices)
    place = content
    while isinstance(place, list | dict) and place:
        keys = list(range(len(place))) if isinstance(place, list) else list(place)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], list | dict) or data.draw(st.booleans()):
            place[key] = data.draw(json)
            break
        place = place[key]
    text = msgspec.json.encode(content).decode()
    assert isinstance(read_devices(a_map(text, devices.node)), NodeDevices | Unreadable)


@pytest.mark.parametrize("data", [None, {}, {"devices.yaml": "{}"}])
def test_a_config_map_without_the_document(data: dict[str, str] | None) -> None:
    assert "it has no devices.json" in why(read_devices(ConfigMap(Metadata(name="x"), data)))


def test_nonsense_of_every_size_and_depth() -> None:
    assert "longer than" in why(read_devices(a_map(" " * (MAX_DOCUMENT_BYTES + 1))))
    assert "cannot be read" in why(read_devices(a_map('{"devices": ' + "[" * 100_000)))
    assert "cannot be read" in why(read_devices(a_map('{"x": ' + "[" * 100_000)))
    assert "cannot be read" in why(read_devices(a_map("\udc80")))


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (NodeDevices("other", TWO), 'it is about node "other"'),
        (NodeDevices("", TWO), 'it is about node ""'),
        (NodeDevices("n", (*TWO, TWO[0])), "two devices have the same id"),
        (NodeDevices("n", (PublishedDevice(""),)), "or one has none"),
        (NodeDevices("n", tuple(PublishedDevice(str(at)) for at in range(MAX_DEVICES + 1))), "more than 1024 devices"),
        (NodeDevices("n", TWO, (Held("a", "p", "c", ("GPU-7",)),)), '"a/p" holds "GPU-7", which is not among'),
        (NodeDevices("n", TWO, (Held("a", "p", "c", ("GPU-0",)), Held("a", "q", "c", ("GPU-0",)))), "by two pods"),
        (NodeDevices("n", TWO, (Held("a", "", "c", ("GPU-0",)),)), "a container belongs to no pod"),
        (NodeDevices("n", (PublishedDevice("a", memory_mib=-1),)), "cannot be read"),
        (NodeDevices("n", (PublishedDevice("a", memory_mib=1 << 80),)), "cannot be read"),
    ],
)
def test_a_document_that_contradicts_itself(devices: NodeDevices, reason: str) -> None:
    assert reason in why(read_devices(a_map(document_of(devices))))


def test_a_device_of_two_containers_of_one_pod_is_no_contradiction() -> None:
    held = (Held("a", "p", "init", ("GPU-0", "GPU-1")), Held("a", "p", "main", ("GPU-0",)))
    devices = NodeDevices("n", TWO, held)
    assert read_devices(a_map(document_of(devices))) == devices
