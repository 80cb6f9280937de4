"""What the containers of a pod do with their GPUs, as its annotations say.

Place in the flow: PodFacts ─**workload**─▶ Work ─▶ holdings. Pure. Invariant: an annotation that cannot be read never
stops a pod from being shown: it counts as busy, and the mistake is there to be reported.

    gpuyard.io/gpu-profile: '[{time: 1h, utilization: 80}, {time: 1h, utilization: 0}]'    a profile, or the name of one
    gpuyard.io/gpu-profile.NAME: training                                                 of one container
    run.ai/simulated-gpu-utilization: 10-30                                               per cent, or a range of it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.kubernetes.observed import PROFILE, UTILIZATION, PodFacts
from gpuyard.fakegpu.profile import BUSY, Phase, Profile, read_profile
from gpuyard.files.suggest import did_you_mean

MAX_ANNOTATION_BYTES: Final = 64 << 10

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PERCENT: Final = re.compile(r"\s*([0-9]{1,3})\s*%?\s*(?:-\s*([0-9]{1,3})\s*%?\s*)?")


class Mistake(msgspec.Struct, frozen=True):
    """An annotation that cannot be used, and why."""

    annotation: str
    error: str

    def __str__(self) -> str:
        return f"the annotation {self.annotation} is not used, and the GPUs count as fully busy: {self.error}"


class Work(msgspec.Struct, frozen=True):
    """What a pod's containers do: all the same, but for those that have a profile of their own."""

    usual: Profile = BUSY
    own: tuple[tuple[str, Profile], ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    def profile(self, container: str) -> Profile:
        return dict(self.own).get(container, self.usual)


def work_of(pod: PodFacts, named: Mapping[str, Profile]) -> Work:
    """`named` are the profiles of the configuration."""
    annotations = dict(pod.annotations)
    mistakes: list[Mistake] = []
    found = {name: _read(name, text, named, mistakes) for name, text in annotations.items()}
    usual = next((profile for name in (PROFILE, UTILIZATION) if (profile := found.get(name))), BUSY)
    prefix = PROFILE + "."
    own = tuple((name.removeprefix(prefix), each) for name, each in found.items() if each and name.startswith(prefix))
    return Work(usual, own, tuple(mistakes))


def _read(name: str, text: str, named: Mapping[str, Profile], mistakes: list[Mistake]) -> Profile | None:
    try:
        return _utilization(text) if name == UTILIZATION else _profile(text, named)
    except InputError as error:
        mistakes.append(Mistake(name, str(error).partition("\n")[0]))
        return None


def _profile(text: str, named: Mapping[str, Profile]) -> Profile:
    if len(text.encode()) > MAX_ANNOTATION_BYTES:
        raise InputError(f"it is longer than {MAX_ANNOTATION_BYTES >> 10} KiB")
    word = text.strip()
    if word in named:
        return named[word]
    if _NAME.fullmatch(word):
        raise InputError(f'no profile of the configuration is called "{word}"{did_you_mean(word, named)}')
    return read_profile(text, source="profile")


def _utilization(text: str) -> Profile:
    found = _PERCENT.fullmatch(text)
    low = int(found.group(1)) if found else 101
    high = int(found.group(2)) if found and found.group(2) else low
    if not low <= high <= 100:
        raise InputError(f'"{text[:60]}" is neither a per cent nor a range such as 10-30')
    return Profile((Phase(None, low, high),))
