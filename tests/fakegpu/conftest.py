"""The native faces for the tests: built once, pointed at a state directory of the test's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.fakegpu import build
from gpuyard.fakegpu.publish import Publisher


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Writes the machine "node-a", which the faces of this test then show."""
    monkeypatch.setenv("GPUYARD_FAKE_STATE", str(tmp_path / "node-a"))
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with Publisher(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def library() -> Path:
    """libnvidia-ml.so.1, also loaded into this process: nvidia-ml-py then finds it under its name."""
    path = build.library()
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return path


@pytest.fixture(scope="session")
def pynvml(library: Path) -> Any:
    """The unmodified nvidia-ml-py, on our library."""
    return pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


@pytest.fixture
def nvml(pynvml: Any, publisher: Publisher) -> Iterator[Callable[..., Any]]:
    """Publishes readings and gives nvidia-ml-py, initialised after the first of them."""
    begun: list[bool] = []

    def show(*readings: Any) -> Any:
        for reading in readings:
            publisher.write(reading)
        if not begun:
            pynvml.nvmlInit()
            begun.append(True)
        return pynvml

    yield show
    if begun:
        pynvml.nvmlShutdown()
