"""Values nobody means well with, and ways to put them into right ones; written as text no JSON encoder would write."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, Final


class Raw(str):
    """Text that is written as it is, where a value would be."""


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may come twice."""


# ------------------------------------------------------------------------------------------------------- hostile values

TEXTS: Final = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\n",
        "\r\nX: y",
        "\t",
        "\x7f",
        "\x1b[2J",
        "\ufeff",
        "\u202e",
        "\u200b",
        "\u2028",
        "é",
        "e\u0301",
    ),
    *(
        "😀",
        "\U0010ffff",
        "a" * 300,
        "x" * 5000,
        "é" * 200,
        "..",
        ".",
        "../..",
        "/",
        "a/b",
        "a\\b",
        "%2f",
        "%",
        "%s",
        "{}",
        "${X}",
    ),
    *(
        "*",
        "~",
        "null",
        "true",
        "NaN",
        "inf",
        "-inf",
        "1e400",
        "0x10",
        "1_0",
        "٣",
        "0",
        "-1",
        "1",
        "0.5",
        "0.0001",
        "1e-9",
        "+1",
    ),
    *(
        "99999999999999999999",
        "9223372036854775808",
        "18446744073709551616",
        "1" * 400,
        "1/3",
        "1Gi",
        "1Ei",
        "-5Gi",
        "1e99Gi",
    ),
    *(
        "admin",
        "root",
        "gpuyard",
        "system",
        "(hidden)",
        "hidden (team speech)",
        "job/1",
        "'",
        '"',
        "';--",
        "<script>",
        "{{7*7}}",
    ),
    *(
        "0s",
        "1ms",
        "9999999d",
        "1d",
        "* * * * *",
        "@yearly",
        "60 24 32 13 8",
        "0 0 30 2 *",
        "*/0 * * * *",
        "Europe/Berlin",
        "no/zone",
    ),
    *(
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "0000-00-00",
        "1969-12-31T23:59:59-99:99",
        "in",
        "now",
    ),
)
NUMBERS: Final = (
    *(
        0,
        -1,
        1,
        2,
        62,
        63,
        64,
        65,
        1000,
        100_001,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
    ),
    *(10**15, 10**16, 10**30, 10**400, 0.1, 0.5, 1.5, -0.5, 1e-300, 1e15, 1e308, 0.30000000000000004, 2.675, 1e22),
)
WRITTEN: Final = tuple(
    map(
        Raw,
        (
            *(
                "NaN",
                "Infinity",
                "-Infinity",
                "1e999",
                "-1e999",
                "1E+2",
                "-0",
                "-0.0",
                "0e0",
                "01",
                "+1",
                ".5",
                "5.",
                "0x1F",
                "1__0",
            ),
            *(
                "nul",
                "True",
                "undefined",
                "'x'",
                '"\\ud800"',
                '"\\udc00\\ud800"',
                '"\\u0000"',
                '"\\x41"',
                '"unended',
                "\ufeff1",
                "//c",
            ),
            *(
                "!!python/object:os.system x",
                "!!binary aGk=",
                "&a [*a]",
                "*nowhere",
                "<<: {a: 1}",
                "? x",
                "| x",
                "@x",
                "`x`",
                "--- 1",
            ),
            *(
                "[" * 200 + "]" * 200,
                "[" * 5000,
                '{"a":' * 100 + "1" + "}" * 100,
                "1" + "0" * 5000,
                '"' + "y" * 20_000 + '"',
            ),
            *(
                "2026-01-01",
                "12:30:45",
                "0o17",
                "0b1",
                "1,000",
                "~",
                "yes",
                "on",
                ".nan",
                ".inf",
                "=",
                "\x01",
                "\x85",
                "\u2028",
            ),
        ),
    )
)
PATHS: Final = (
    *(
        "..",
        ".",
        "%2e",
        "%2e%2e",
        "%2f",
        "%5c",
        "\\",
        "%00",
        "%0a",
        "%",
        "%zz",
        "%ff",
        "%c0%ae",
        "%252f",
        "%25",
        ";",
        ";x=1",
        "*",
        "a%20b",
    ),
    *(
        "a" * 300,
        "%F0%9F%98%80" * 20,
        "x" * 2100,
        "//",
        "",
        "~",
        "@",
        ":",
        "a:b",
        "'",
        "%27",
        "%3Cscript%3E",
        "%E2%80%AE",
        "-",
        "+",
        "%2B",
    ),
)


def hostile(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    match kind:
        case 0:
            return chance.choice((None, True, False))
        case 1 | 2:
            return chance.choice(TEXTS)
        case 3:
            return chance.choice(NUMBERS)
        case 4 | 5:
            return chance.choice(WRITTEN)
        case 6:
            return [hostile(chance, depth + 1) for _ in range(chance.choice((0, 1, 2, 30)))]
        case _:
            return {chance.choice(TEXTS): hostile(chance, depth + 1) for _ in range(chance.randrange(4))}


# ------------------------------------------------------------------------------------------------------------ mutations


def mutated(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts exchanged, taken away, added or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        keys = list(value)
        key = chance.choice(keys)
        match chance.randrange(6):
            case 0:
                return {name: value[name] for name in keys if name != key}
            case 1:
                return {**value, chance.choice((*TEXTS, key.upper(), f"{key} ")): hostile(chance)}
            case 2:
                return Pairs([*value.items(), (key, hostile(chance))])
            case 3:
                return {**value, key: hostile(chance)}
            case _:
                return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        match chance.randrange(3):
            case 0:
                return value * chance.choice((0, 2, 50))
            case _:
                return [*value[:at], mutated(value[at], chance), *value[at + 1 :]]
    return hostile(chance)


def written(value: Any) -> str:
    """As JSON, or nearly."""
    match value:
        case Raw():
            return str.__str__(value)
        case Pairs():
            return _object(value)
        case dict():
            return _object(value.items())
        case list() | tuple():
            return f"[{', '.join(map(written, value))}]"
        case str():
            # Now and then not as escapes, but as they are.
            return json.dumps(value, ensure_ascii=len(value) % 2 == 0)
        case int() if not isinstance(value, bool):
            return hex(value) if value.bit_length() > 10_000 else str(value)
        case _:
            return json.dumps(value)


def _object(fields: Iterable[tuple[object, Any]]) -> str:
    return "{" + ", ".join(f"{json.dumps(str(key))}: {written(one)}" for key, one in fields) + "}"


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some of them cut, doubled or exchanged."""
    at, size = chance.randrange(len(data) + 1), chance.randrange(1, 40)
    match chance.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + chance.randbytes(size) + data[at:]
        case 2:
            return data[:at] + data[at + size :]
        case 3:
            return data[:at] + data[at : at + size] * 3 + data[at + size :]
        case _:
            return (
                data[:at] + bytes(byte ^ 1 << chance.randrange(8) for byte in data[at : at + size]) + data[at + size :]
            )
