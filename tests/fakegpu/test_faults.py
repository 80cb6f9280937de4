"""Faults as people write them, and what each means for the health of a GPU."""

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.faults import Fault, FaultKind, PluginFailure, read_fault
from gpuyard.fakegpu.reading import Health

FORMS = {
    "unhealthy": Fault(FaultKind.UNHEALTHY),
    "xid:79": Fault(FaultKind.XID, xid=79),
    "xid:13": Fault(FaultKind.XID, xid=13),
    "ecc:corrected:3": Fault(FaultKind.ECC, corrected=3),
    "ecc:uncorrected:1": Fault(FaultKind.ECC, uncorrected=1, xid=48),
    "off-the-bus": Fault(FaultKind.OFF_THE_BUS, xid=79),
    "throttle": Fault(FaultKind.THROTTLE),
    "memory-loss": Fault(FaultKind.MEMORY_LOSS),
    "memory-loss:8GiB": Fault(FaultKind.MEMORY_LOSS, lost_bytes=8 << 30),
    "plugin:crash": Fault(FaultKind.PLUGIN, plugin=PluginFailure.CRASH),
    "plugin:fail-registration": Fault(FaultKind.PLUGIN, plugin=PluginFailure.FAIL_REGISTRATION),
}


@pytest.mark.parametrize(("text", "fault"), FORMS.items())
def test_a_fault_is_read_and_written_the_same(text: str, fault: Fault) -> None:
    assert read_fault(text) == fault
    assert str(fault) == text


def test_other_words_for_the_same_fault() -> None:
    assert read_fault("ecc:double") == read_fault("ecc:uncorrected") == read_fault("ecc:uncorrected:1")
    assert read_fault("ecc:single:3") == read_fault("ecc:corrected:3")
    assert read_fault("memory-loss:8GiB") == read_fault("memory-loss:8GiB")


@pytest.mark.parametrize(
    ("text", "health"),
    [
        ("unhealthy", Health.UNHEALTHY),
        ("xid:79", Health.OFF_THE_BUS),
        ("off-the-bus", Health.OFF_THE_BUS),
        ("xid:74", Health.UNHEALTHY),
        ("xid:13", Health.OK),
        ("ecc:corrected:9", Health.OK),
        ("ecc:uncorrected", Health.UNHEALTHY),
        ("throttle", Health.OK),
        ("memory-loss", Health.OK),
        ("plugin:hang", Health.OK),
    ],
)
def test_what_a_fault_means_for_health(text: str, health: Health) -> None:
    assert read_fault(text).health is health


@pytest.mark.parametrize(
    "text",
    ["", "xid", "xid:", "xid:0", "xid:1000", "xid:x", "xid:7 9", "ecc", "ecc:corrected:0", "ecc:both", "throttle:1",
     "off-the-bus:79", "memory-loss:0", "memory-loss:-1", "memory-loss:some", "burning",
     "plugin", "plugin:", "plugin:burns"],
)  # fmt: skip
def test_what_is_no_fault_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_fault(text)
    assert caught.value.what
    assert caught.value.fix
