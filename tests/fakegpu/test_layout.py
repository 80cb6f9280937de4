"""layout.py and native/state.h say the same, record by record."""

import subprocess
from pathlib import Path

import pytest

from gpuyard.fakegpu import layout
from gpuyard.fakegpu.build import SOURCES, compilers
from gpuyard.fakegpu.layout import Record


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says about each record: {"gy_device.uuid": offset, "gy_device": size}."""
    place = tmp_path_factory.mktemp("layout")
    (place / "ask.c").write_text(question())
    compiler = next(iter(compilers()))
    program = place / "ask"
    subprocess.run([*compiler.command, f"-I{SOURCES}", "-o", program, place / "ask.c"], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in (line.split() for line in said.splitlines())}


def question() -> str:
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "state.h"', "int main(void) {"]
    for record in layout.RECORDS:
        lines.append(f'printf("{record.name} %zu\\n", sizeof(struct {record.name}));')
        lines += [
            f'printf("{record.name}.{field} %zu\\n", offsetof(struct {record.name}, {field}));'
            for field in named(record)
        ]
    return "\n".join([*lines, "return 0; }"])


def named(record: Record) -> list[str]:
    """The fields C knows by that name; the second element of an array has none."""
    return [field for field in record.fields if not field.endswith("_1")]


@pytest.mark.parametrize("record", layout.RECORDS, ids=lambda record: record.name)
def test_every_field_lies_where_the_compiler_puts_it(record: Record, compiled: dict[str, int]) -> None:
    offsets = record.offsets()
    assert {field: offsets[field] for field in named(record)} == {
        field: compiled[f"{record.name}.{field}"] for field in named(record)
    }


def test_records_are_as_long_as_the_compiler_makes_them(compiled: dict[str, int]) -> None:
    sizes = {record.name: record.size for record in layout.RECORDS}
    sizes |= {"gy_machine": layout.MACHINE_SIZE, "gy_product": layout.PRODUCT_SIZE}
    assert sizes == {name: compiled[name] for name in sizes}


def test_constants_are_those_of_the_header() -> None:
    header = Path(SOURCES / "state.h").read_text()
    assert f"#define GY_VERSION {layout.VERSION}u" in header
    assert f"GY_EVENTS = {layout.EVENTS}" in header
    assert f"GY_MIG_PROFILES = {layout.MIG_PROFILES}" in header


def test_a_long_text_is_cut_between_characters_and_ends_with_zero() -> None:
    assert layout.cut("abcdef", 4) == b"abc"
    assert layout.cut("aäö", 4) == "aä".encode()
