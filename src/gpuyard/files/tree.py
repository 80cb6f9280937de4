"""YAML (and JSON, which is YAML) as a tree of values that know where they stand.

Place in the flow: source ─text─▶ **tree** ─Spot─▶ shape. It reads YAML as people mean it: numbers keep their text, so
that 0.3 stays exact, and what different YAML versions read differently (`no`, `010`, `1:30`) is refused by name.
Invariant: a tree keeps to its `Limits` at every moment it is read: reading stops at the value that goes beyond one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
import yaml

from gpuyard.errors import InputError, Where
from gpuyard.files.budget import LOCAL, Budget, Limits, Size

MAX_DIGITS: Final = 18
MAX_SHOWN: Final = 60
"""Characters of a value that an error message quotes."""

NOT_YAML: Final = "is not YAML"
NOT_JSON: Final = "is not JSON"
"""How errors begin about a text that cannot be read at all."""

EXAMPLE: Final = "gpuyard demo --yaml, or gpuyard scenario new"

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
YES_NO: Final = frozenset(form for word in ("yes", "no", "on", "off") for form in (word, word.title(), word.upper()))
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL: Final = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OTHER_BASE: Final = re.compile(r"[-+]?(0[0-9_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9]+(_[0-9]+)+)")
_BARE_RANGE: Final = re.compile(r"[{,]\s*([^\s\"',{}\[\]]+\[[0-9]+-[0-9]+\][^\s\"',{}:]*)")
_BASE_SIXTY: Final = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")


class Kind(enum.StrEnum):
    """What a value is, in the words of an error message."""

    TEXT = "text"
    NUMBER = "a whole number"
    DECIMAL = "a number"
    BOOL = "true or false"
    NULL = "nothing"
    LIST = "a list"
    MAP = "a map"


Value: TypeAlias = "str | int | bool | list[Spot] | dict[str, Spot] | None"


class Spot(msgspec.Struct):
    """One value and where it stands. A decimal's value is its text; a map also knows where its keys stand."""

    line: int
    column: int
    kind: Kind
    value: Value = None
    keys: dict[str, tuple[int, int]] = {}

    @property
    def items(self) -> list[Spot]:
        return self.value if isinstance(self.value, list) else []

    @property
    def fields(self) -> dict[str, Spot]:
        return self.value if isinstance(self.value, dict) else {}

    def shown(self) -> str:
        """The value as an error message quotes it."""
        match self.kind:
            case Kind.TEXT:
                text = str(self.value)
                return f'"{text[:MAX_SHOWN]}…"' if len(text) > MAX_SHOWN else f'"{text}"'
            case Kind.BOOL:
                return "true" if self.value else "false"
            case Kind.NUMBER | Kind.DECIMAL:
                return str(self.value)
            case _:
                return str(self.kind)


def parse(text: str, file: str, example: str = EXAMPLE, limits: Limits = LOCAL) -> Spot:
    """Return the one document of a file; `example` names a sample file, for the error about an empty one."""
    builder = _Builder(file, limits)
    try:
        for event in _events(text, file):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except yaml.YAMLError as error:
        raise InputError(f"{_is_not(file)}: {error}", where=Where(file)) from None
    return builder.finish(example)


def _events(text: str, file: str) -> Iterator[yaml.Event]:
    # JSON allows tabs between its tokens, YAML does not; one blank for each keeps every column.
    readable = text.replace("\t", " ") if file.endswith(".json") else text
    events: Iterator[yaml.Event] = yaml.parse(readable, Loader=_LOADER)
    return events


class _Open(msgspec.Struct):
    """A list or map whose end has not been seen."""

    spot: Spot
    anchor: str | None
    before: Size
    """What had been read when it began."""
    key: str | None = None


class _Builder:
    """Takes the parser's events one by one; nesting is kept in a list, so that no input can exhaust the stack."""

    def __init__(self, file: str, limits: Limits) -> None:
        self.file = file
        self.budget = Budget(limits)
        self.root: Spot | None = None
        self.documents = 0
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Spot, Size]] = {}

    def take(self, event: yaml.Event) -> None:
        """Add one event to the tree, after the budget has admitted it."""
        self._within_budget(event)
        match event:
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.MappingStartEvent():
                self._begin(event, Kind.MAP)
            case yaml.SequenceStartEvent():
                self._begin(event, Kind.LIST)
            case yaml.CollectionEndEvent():
                self._end()
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.DocumentStartEvent():
                self._document(event)

    def _within_budget(self, event: yaml.Event) -> None:
        """Refuse the event that goes beyond a limit, before anything is made of it."""
        match event:
            case yaml.ScalarEvent():
                keys = len(self.open[-1].spot.keys) if self._key_expected() else None
                over = self.budget.scalar(len(event.value), keys, anchor=event.anchor is not None)
            case yaml.CollectionStartEvent():
                over = self.budget.collection(len(self.open), anchor=event.anchor is not None)
            case yaml.AliasEvent():
                known = self.anchors.get(event.anchor or "")
                over = self.budget.alias(known[1] if known else Size())
            case _:
                return
        if over is not None:
            raise self._error(over.what, event, fix=over.fix)

    def finish(self, example: str) -> Spot:
        if self.root is None or self.root.kind is Kind.NULL:
            raise InputError("the file is empty", where=Where(self.file), fix=f"start from an example: {example}")
        return self.root

    def _document(self, event: yaml.Event) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self._error("a second document starts here", event, fix="keep one document (---) per file")

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        self._refuse_tag(event)
        if self._key_expected():
            self._key(event)
            return
        spot = self._plain(event) if event.implicit[0] else self._spot(event, Kind.TEXT, event.value)
        self._name(event.anchor, spot, Size(1, len(event.value)))
        self._add(spot)

    def _plain(self, event: yaml.ScalarEvent) -> Spot:
        """A scalar without quotes: what it looks like is what it is."""
        text: str = event.value
        if text in _NULLS:
            return self._spot(event, Kind.NULL, None)
        if text in _BOOLS:
            return self._spot(event, Kind.BOOL, _BOOLS[text])
        if text in YES_NO:
            meant = "true" if text.lower() in ("yes", "on") else "false"
            raise self._error(
                f"YAML reads {text} as {meant}", event, fix=f'write {meant}, or "{text}" in quotes if it is a name'
            )
        if text[0] in "+-.0123456789":
            return self._number_or_text(event, text)
        return self._spot(event, Kind.TEXT, text)

    def _number_or_text(self, event: yaml.ScalarEvent, text: str) -> Spot:
        if _INTEGER.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise self._error(f"the number {text[:MAX_DIGITS]}… is absurdly large", event, fix="check its unit")
            return self._spot(event, Kind.NUMBER, int(text))
        if _DECIMAL.fullmatch(text):
            return self._spot(event, Kind.DECIMAL, text)
        if _NOT_FINITE.fullmatch(text):
            raise self._error(f"{text} is not a finite number", event, fix="write digits such as 2 or 0.5")
        if _OTHER_BASE.fullmatch(text):
            raise self._error(
                f"YAML versions disagree about the number {text} (leading zero, base or underscore)",
                event,
                fix=f'write it in plain decimal digits, or "{text}" in quotes if it is text',
            )
        if _BASE_SIXTY.fullmatch(text):
            raise self._error(
                f"YAML reads {text} as a number to the base 60",
                event,
                fix=f'write a duration as 1m30s, or "{text}" in quotes if it is text',
            )
        return self._spot(event, Kind.TEXT, text)

    def _begin(self, event: yaml.CollectionStartEvent, kind: Kind) -> None:
        self._refuse_tag(event)
        if self._key_expected():
            raise self._error(f"{kind} cannot be a key", event, fix="a key is one word of text")
        spot = self._spot(event, kind, {} if kind is Kind.MAP else [])
        spot.keys = {}
        self.open.append(_Open(spot, event.anchor, self.budget.used.without(Size(1))))

    def _end(self) -> None:
        done = self.open.pop()
        self._name(done.anchor, done.spot, self.budget.used.without(done.before))
        self._add(done.spot)

    def _alias(self, event: yaml.AliasEvent) -> None:
        name = event.anchor
        if self._key_expected():
            raise self._error(f"the alias *{name} cannot be a key", event, fix="write the key out")
        if any(parent.anchor == name for parent in self.open):
            raise self._error(f"&{name} contains itself", event, fix="write the value out")
        if name not in self.anchors:
            raise self._error(f"*{name} is used but &{name} is defined nowhere above", event, fix="define it first")
        self._add(self.anchors[name][0])

    def _key_expected(self) -> bool:
        return bool(self.open) and self.open[-1].spot.kind is Kind.MAP and self.open[-1].key is None

    def _key(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        if event.implicit[0]:
            self._refuse_unclear_key(text, event)
        parent = self.open[-1]
        if text in parent.spot.keys:
            line, _ = parent.spot.keys[text]
            raise self._error(
                f'"{text}" is written twice (first in line {line})',
                event,
                fix="keep one; the other would be ignored",
                field=text,
            )
        parent.key = text
        parent.spot.keys[text] = _mark(event)

    def _refuse_unclear_key(self, text: str, event: yaml.ScalarEvent) -> None:
        # `on` is the one field whose name is such a word, and it can mean nothing else as a key.
        if text == "<<":
            raise self._error("merge keys (<<) are not part of the format", event, fix="write the fields out")
        if text in _NULLS:
            raise self._error("a key is missing before the colon", event, fix='write a name, or "" in quotes')
        if text in _BOOLS or (text in YES_NO and text != "on"):
            raise self._error(f"YAML reads {text} as true or false", event, fix=f'as a name it needs quotes: "{text}"')
        if text[0] in "+-.0123456789" and self._number_or_text(event, text).kind is not Kind.TEXT:
            raise self._error(f"the key {text} is a number", event, fix=f'as a name it needs quotes: "{text}"')

    def _name(self, anchor: str | None, spot: Spot, size: Size) -> None:
        if anchor is not None:
            self.anchors[anchor] = (spot, size)

    def _add(self, spot: Spot) -> None:
        if not self.open:
            self.root = spot
            return
        parent = self.open[-1]
        if parent.spot.kind is Kind.MAP:
            assert parent.key is not None
            parent.spot.fields[parent.key] = spot
            parent.key = None
        else:
            parent.spot.items.append(spot)

    def _spot(
        self, event: yaml.Event, kind: Kind, value: str | int | bool | list[Spot] | dict[str, Spot] | None
    ) -> Spot:
        line, column = _mark(event)
        return Spot(line, column, kind, value)

    def _refuse_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag not in (None, "!"):
            raise self._error(f"the tag {event.tag} is not part of the format", event, fix="remove it; quote text")

    def _error(self, what: str, event: yaml.Event, *, fix: str, field: str = "") -> InputError:
        """`field`: the one that was just begun in the innermost map; what is meant may be deeper."""
        return InputError(what, where=Where(self.file, *_mark(event), self._path(field)), fix=fix)

    def _path(self, last: str) -> str:
        """Where the builder stands, as a path from the top: queues.vision.quota, jobs[2].gpus."""
        path = ""
        for parent in self.open:
            if parent.spot.kind is Kind.LIST:
                path += f"[{len(parent.spot.items)}]"
            elif parent.key is not None:
                path += f".{parent.key}"
        return f"{path}.{last}".strip(".")


def _mark(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (0, 0)


def _is_not(file: str) -> str:
    return NOT_JSON if file.endswith(".json") else NOT_YAML


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InputError(f"{_is_not(file)}: {error.problem}", where=Where(file))
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation or line[mark.column : mark.column + 1] == "\t":
        where = Where(file, mark.line + 1, line.index("\t") + 1)
        return InputError("a tab stands where YAML wants blanks", where=where, fix="indent with blanks only")
    context = f" {error.context}" if error.context else ""
    ranged = _BARE_RANGE.search(line)
    if ranged and "flow mapping" in context:
        fix = f'inside {{ }} a name with a range needs quotes: "{ranged.group(1)}"'
        return InputError(
            f"{_is_not(file)}: {error.problem}{context}", where=Where(file, mark.line + 1, ranged.start(1) + 1), fix=fix
        )
    return InputError(
        f"{_is_not(file)}: {error.problem}{context}",
        where=Where(file, mark.line + 1, mark.column + 1),
        fix="look for a missing colon, quote or bracket, or a wrong indentation, here or just above",
    )
