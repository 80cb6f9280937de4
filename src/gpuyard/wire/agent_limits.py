"""What an agent may say: a named limit for every value, and the one check of each.

Place in the flow: agent ─bytes─▶ agent_reading ─message─▶ **agent_limits** ─▶ manager. Pure. An agent speaks for its
own node and is not trusted beyond it. Facts out of range are refused as a whole (`facts_problem`); words for people are
cut and cleaned (`cleaned_report`); an attempt out of range is dropped (`attempt_problem`); what names the session or
its questions ends the session (`message_problem`). Invariant: what passes here can be folded, planned on, logged and
printed.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from msgspec.structs import replace

from gpuyard.model.limits import MAX_NAME_CHARS, MAX_NUMBER, node_facts_problem
from gpuyard.model.nodes import OWN_LABEL, Device
from gpuyard.wire.agents import (
    MAX_LOG_PIECE_BYTES,
    MAX_PARCEL_BYTES,
    AgentMessage,
    AttemptId,
    AttemptReport,
    Hello,
    LogPiece,
    MachineFacts,
    ReadLog,
    ReadParcel,
    Report,
)

MAX_SENTENCE_CHARS: Final = 2_000
"""Of one sentence of an agent: why an attempt ended, what is wrong with its node. Longer ones are cut."""
MAX_SENTENCES: Final = 16
"""About what is wrong with one node."""
MAX_VERSION_CHARS: Final = 100
"""Of the versions of an agent and of a driver."""
MAX_ID_CHARS: Final = 100
"""Of the ids of an agent's home, of a boot, and of a job."""
MAX_ATTEMPTS_PER_REPORT: Final = 4_096
"""Of attempts that were not given to the node: those that were always count, and a node has 110 tasks at a time."""
MAX_EXIT_CODE: Final = 255
MAX_TIME_MS: Final = 1 << 53
"""Of an agent's own clock: far beyond every real one, and still exact in JSON."""
MAX_LOG_OFFSET: Final = 1 << 62
CUT: Final = "… (cut)"
"""Stands where a text was too long."""
HOSTNAME: Final = "hostname"
"""The label that the manager itself gives to every node."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HOST: Final = re.compile(r"[0-9A-Za-z]([0-9A-Za-z_-]{0,62})?(\.[0-9A-Za-z]([0-9A-Za-z_-]{0,62})?)*\.?")
_ADDRESS_CHARACTERS: Final = re.compile(r"[0-9A-Za-z.:%_-]*")


# --------------------------------------------------------------------------------------------------------------- facts


def facts_problem(facts: MachineFacts) -> str:
    """Return why these facts are refused, as a sentence about the node; an empty text where they are in range."""
    return (
        node_facts_problem(facts.devices, facts.cpu_milli, facts.memory_bytes, facts.labels)
        or _labels_problem(facts.labels)
        or _devices_problem(facts.devices)
        or _address_problem("address", facts.address)
        or _address_problem("manager_address", facts.manager_address)
    )


def _labels_problem(labels: dict[str, str]) -> str:
    for key, value in labels.items():
        shown = cleaned_text(key, 40)
        if not key or not key.isprintable() or not value.isprintable():
            return f'its label "{shown}" is empty or has a character that cannot be printed'
        if key.startswith(OWN_LABEL) or key == HOSTNAME:
            return f'it claims the label "{shown}", which only the manager gives'
    return ""


def _devices_problem(devices: tuple[Device, ...]) -> str:
    known: set[str] = set()
    for index, device in enumerate(devices):
        if not (device.id.isprintable() and device.model.isprintable() and _profiles_printable(device)):
            return f"the id, model or MIG profile of its GPU {index} has a character that cannot be printed"
        if device.id and device.id in known:
            return f'it reports two GPUs with the id "{device.id}"'
        known.add(device.id)
    return ""


def _profiles_printable(device: Device) -> bool:
    return all(slices.profile.isprintable() for slices in device.mig)


def _address_problem(field: str, address: str) -> str:
    if not address or _is_address(address):
        return ""
    return f'its {field} "{cleaned_text(address, 40)}" is neither an IP address nor a host name'


def _is_address(address: str) -> bool:
    if len(address) > MAX_NAME_CHARS or not _ADDRESS_CHARACTERS.fullmatch(address):
        return False
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return bool(_HOST.fullmatch(address))
    return True


# ------------------------------------------------------------------------------------------------------------ messages


def message_problem(message: AgentMessage) -> str:
    """Return why the session ends with this message; an empty text where it goes on.

    The facts of a message are judged by `facts_problem`, its attempts by `attempt_problem`: they end no session.
    """
    match message:
        case Hello():
            return _name_problem("incarnation", message.incarnation) or _name_problem("boot_id", message.boot_id)
        case Report(sent_ms):
            return "" if 0 < sent_ms <= MAX_TIME_MS else f"sent_ms is {sent_ms}; the range is 1 to {MAX_TIME_MS}"
        case LogPiece():
            return _piece_problem(message)
        case ReadParcel(digest, offset):
            if not _DIGEST.fullmatch(digest):
                return "an artifact is asked for by what is no SHA-256"
            return "" if 0 <= offset <= MAX_PARCEL_BYTES else f"offset {offset} is outside 0 to {MAX_PARCEL_BYTES}"


def _name_problem(field: str, name: str) -> str:
    if 0 < len(name) <= MAX_ID_CHARS and name.isprintable():
        return ""
    return f"{field} is empty, longer than {MAX_ID_CHARS} characters, or has one that cannot be printed"


def _piece_problem(piece: LogPiece) -> str:
    if len(piece.data) > MAX_LOG_PIECE_BYTES:
        return f"{len(piece.data)} bytes of a log; the limit is {MAX_LOG_PIECE_BYTES}"
    if not (0 <= piece.offset <= MAX_LOG_OFFSET and 0 <= piece.size <= MAX_LOG_OFFSET):
        return f"an offset or size of a log is outside 0 to {MAX_LOG_OFFSET}"
    return ""


def answer_problem(asked: ReadLog, piece: LogPiece) -> str:
    """Return why this is no answer to what was asked of a log: too much, or from before where it should begin."""
    if len(piece.data) > asked.limit:
        return f"the answer has {len(piece.data)} bytes of the log, and {asked.limit} were asked for"
    if piece.data and not asked.since_ms and piece.offset < asked.offset:
        return f"the answer begins at {piece.offset} of the log, and {asked.offset} was asked for"
    return ""


# ------------------------------------------------------------------------------------------------------------ attempts


def attempt_problem(report: AttemptReport) -> str:
    """Return why this report of an attempt is dropped; an empty text where it is in range.

    Its times are no reason: a job sets the time of its checkpoint file. They are taken for no more than can be true.
    Nor are its process and its memory, of which nothing is kept.
    """
    return _attempt_id_problem(report.id) or next(
        (
            f"it reports {field} {value} of attempt {report.id}; the range is 0 to {most}"
            for field, value, most in (
                ("exit_code", report.exit_code, MAX_EXIT_CODE),
                ("gpu_percent", report.gpu_percent, 100),
            )
            if value is not None and not 0 <= value <= most
        ),
        "",
    )


def _attempt_id_problem(id: AttemptId) -> str:
    if len(id.job) <= MAX_ID_CHARS and 0 <= id.task <= MAX_NUMBER and 0 <= id.attempt <= MAX_NUMBER:
        return ""
    return f'it reports an attempt "{cleaned_text(str(id), 40)}" whose job, task or number is out of range'


# --------------------------------------------------------------------------------------------------------------- words


def cleaned_text(text: str, most: int = MAX_SENTENCE_CHARS) -> str:
    """Return a text of an agent as one line that can be printed, cut with a mark where it is longer than `most`."""
    kept = text if len(text) <= most else text[: most - len(CUT)] + CUT
    if kept.isprintable():
        return kept
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in kept
    )


def cleaned_facts(facts: MachineFacts) -> MachineFacts:
    """Return facts whose words for people are in range; their numbers and names stay as they were said."""
    return replace(
        facts,
        driver=cleaned_text(facts.driver, MAX_VERSION_CHARS),
        trouble=tuple(cleaned_text(sentence) for sentence in facts.trouble[:MAX_SENTENCES]),
        limits_note=cleaned_text(facts.limits_note),
    )


def cleaned_hello(hello: Hello) -> Hello:
    return replace(
        hello,
        version=cleaned_text(hello.version, MAX_VERSION_CHARS),
        facts=cleaned_facts(hello.facts),
        unreadable=cleaned_text(hello.unreadable),
    )


def cleaned_report(report: Report) -> Report:
    return replace(
        report,
        attempts=tuple(_cleaned_attempt(attempt) for attempt in report.attempts),
        facts=None if report.facts is None else cleaned_facts(report.facts),
        unreadable=cleaned_text(report.unreadable),
        unreadable_attempts=cleaned_text(report.unreadable_attempts),
    )


def _cleaned_attempt(attempt: AttemptReport) -> AttemptReport:
    message = cleaned_text(attempt.message) if attempt.message else ""
    return attempt if message == attempt.message else replace(attempt, message=message)
