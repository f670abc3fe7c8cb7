"""Reads the acknowledgements of published rows, in bulk, and says what a refusal means for its row.

No socket, no clock, no logging. The layers above know columns and options, and add what to change.

A server answers a publish with JSON: ``{"stream":"ORDERS","seq":17}``, with ``,"duplicate": true`` when it knows the
message id, with ``,"val":"5"`` for the new value of a counter, with ``,"batch":"b","count":3`` for the last message of
an atomic batch (the others have empty answers), or with an error object; a subject that no stream listens on gives a
status line, ``NATS/1.0 503``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_jetstream.errors import (
    API_ERRORS,
    InsufficientResources,
    ProtocolError,
    ServerBusy,
    brief,
)
from spark_jetstream.protocol.arrow import IntArray
from spark_jetstream.protocol.jsapi import LONGEST_NAME
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.protocol.vectors import begins_with, parse_unsigned
from spark_jetstream.protocol.wire import Frames, parse_status

NO_STREAM = 503
"""Status of an answer: no stream captures the subject (``err_code`` 0)."""

_DUPLICATE = b',"duplicate": true}'
_COUNTER = b',"val":"'
_ZERO, _NINE, _MINUS, _BRACE, _QUOTE = b'09-}"'
# The forms that the fast path reads; one with anything else in it is read one by one.
_STRING = rb'"(?:[^"\\]|\\.)*"'
_PLAIN_ANSWER = re.compile(
    rb'(\{"stream":%b,(?:"domain":%b,)?"seq":)\d+(?:\}|%b|%b-?\d+"\})'
    % (_STRING, _STRING, re.escape(_DUPLICATE), _COUNTER)
)


@dataclass(frozen=True)
class Refusal:
    """An answer that says that a row is not stored: the status or the error code, and the server's words."""

    number: int
    code: int
    err_code: int
    description: str


@dataclass(frozen=True)
class StoredAcks:
    """Answers of one stream that say that rows are stored.

    ``numbers`` are those of the publishes and ``sequences`` those in the stream (int64); ``duplicate`` says which of
    the rows had been stored before under the same message id. ``domain`` is that of the stream, empty for a server
    without one.
    """

    stream: str
    domain: str
    numbers: IntArray
    sequences: IntArray
    duplicate: npt.NDArray[np.bool_]


@dataclass
class Answers:
    """All answers of some frames."""

    stored: list[StoredAcks] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class AckReader:
    """Reads answers that came to ``<inbox>.<number>``; remembers how the answers of each stream begin."""

    def __init__(self, inbox: str) -> None:
        self._before = len(inbox) + 1
        self._streams: list[
            tuple[bytes, str, str]
        ] = []  # how answers begin, stream, domain: learned from each first

    def read(self, frames: Frames) -> Answers:
        """Return the answers, in no particular order. Raises `ProtocolError` when one has none of the known forms."""
        numbers, good = parse_unsigned(
            frames.lines, frames.subject_start + self._before, frames.subject_end
        )
        if not good.all():
            raise ProtocolError(
                "an acknowledgement came on a subject that nothing was published with"
            )
        begin = frames.line_end + frames.head
        end = frames.line_end + frames.size
        answers = Answers()
        left = np.flatnonzero(frames.size)
        for known in self._streams:
            left = self._plain(frames, known, numbers, begin, end, left, answers)
            if not len(left):
                return answers
        while len(left):
            at = int(left[0])
            if self._one(frames, at, int(numbers[at]), int(begin[at]), int(end[at]), answers):
                # A stream not met before: the others may be of it as well.
                left = self._plain(frames, self._streams[-1], numbers, begin, end, left, answers)
            else:
                left = left[1:]
        return answers

    def _plain(
        self,
        frames: Frames,
        known: tuple[bytes, str, str],
        numbers: IntArray,
        begin: IntArray,
        end: IntArray,
        left: IntArray,
        answers: Answers,
    ) -> IntArray:
        """Read those of ``left`` that are plain answers of a stream; return the others."""
        prefix, stream, domain = known
        start, stop = begin[left], end[left]
        fits = stop - start > len(prefix) + 1
        fits[fits] = begins_with(frames.data, start[fits], prefix)
        start, stop, chosen = start[fits], stop[fits], left[fits]
        octets = np.frombuffer(frames.data, np.uint8)
        duplicate = begins_with(frames.data, stop - len(_DUPLICATE), _DUPLICATE)
        number_end = stop - np.where(duplicate, len(_DUPLICATE), 1)
        counted = np.flatnonzero(octets[stop - 2] == _QUOTE)
        if len(counted):
            # Between the last two quotes are digits, perhaps with a sign: what stands before them must be their name.
            first = int(start[counted[0]])
            answered = octets[first : int(stop[-1])]
            others = np.flatnonzero((answered < _ZERO) | (answered > _NINE)) + first
            before = others[others.searchsorted(stop[counted] - 2) - 1]
            name = before - (octets[before] == _MINUS) - (len(_COUNTER) - 1)
            named = begins_with(frames.data, name, _COUNTER)
            number_end[counted[named]] = name[named]
        sequences, good = parse_unsigned(frames.data, start + len(prefix), number_end)
        good &= (octets[stop - 1] == _BRACE) & (octets[start + len(prefix)] != _ZERO)
        if good.any():
            rows = chosen[good]
            answers.stored.append(
                StoredAcks(stream, domain, numbers[rows], sequences[good], duplicate[good])
            )
        fits[np.flatnonzero(fits)] = good
        rest: IntArray = left[~fits]
        return rest

    def _one(
        self, frames: Frames, index: int, number: int, begin: int, end: int, answers: Answers
    ) -> bool:
        """Read one answer; whether it taught how the answers of a stream begin (it is not taken then)."""
        payload = bytes(frames.data[begin:end])
        if not payload and (
            status := parse_status(bytes(frames.data[int(frames.line_end[index]) : begin]))
        ):
            answers.refused.append(Refusal(number, status.code, 0, status.description))
            return False
        try:
            body = json_object(payload)
            error = body.get("error")
            if error is not None:
                answers.refused.append(_refusal(number, error))
                return False
            stream, domain, sequence = body["stream"], body.get("domain", ""), _integer(body["seq"])
            texts = (
                isinstance(stream, str) and isinstance(domain, str) and len(domain) <= LONGEST_NAME
            )
            if not (texts and 0 < len(stream) <= LONGEST_NAME and sequence):
                raise ValueError("no stream, no domain, or no sequence")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProtocolError(f"an acknowledgement cannot be read: {payload[:120]!r}") from None
        plain = _PLAIN_ANSWER.fullmatch(payload)
        if plain is not None and all(plain[1] != prefix for prefix, _, _ in self._streams):
            self._streams.append((plain[1], stream, domain))
            return True
        numbers, sequences = np.array([number], np.int64), np.array([sequence], np.int64)
        answers.stored.append(
            StoredAcks(
                stream, domain, numbers, sequences, np.array([body.get("duplicate") is True])
            )
        )
        return False


def _refusal(number: int, error: Any) -> Refusal:
    description = error.get("description", "")
    if not isinstance(description, str):
        raise ValueError("a description that is no text")
    return Refusal(
        number, _integer(error["code"]), _integer(error.get("err_code", 0)), brief(description)
    )


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError("no number of 63 bits")
    return value


class Outcome(enum.Enum):
    """What to do about a row that was not stored."""

    RETRY = "the same frame may be stored later: an election, a full queue, a full stream"
    LOOK = "it may be stored already, by an earlier try: look at what is in its place"
    REFUSED = "this row can never be stored; the others can"
    FAIL = "no row can be stored as things are"


class RefusalCode(enum.IntEnum):
    """Error codes with which a server refuses a message (nats-server: server/errors.json)."""

    ACCOUNT_FULL = 10002
    RESOURCES_USED = 10023
    MEMORY_USED = 10028
    STORAGE_USED = 10047
    MESSAGE_TOO_LARGE = 10054
    OTHER_STREAM = 10060
    WRONG_LAST_ID = 10070
    WRONG_LAST_SEQUENCE = 10071
    STORE_FAILED = 10077
    HEADERS_TOO_LARGE = 10097
    STREAM_SEALED = 10109
    ROLLUP_DISABLED = 10111
    TTL_INVALID = 10165
    TTL_DISABLED = 10166
    # An increment of a counter:
    COUNTERS_DISABLED = 10168
    INCREMENT_MISSING = 10169
    INCREMENT_HAS_PAYLOAD = 10170
    INCREMENT_INVALID = 10171
    COUNTER_BROKEN = 10172
    # An atomic batch:
    BATCHES_DISABLED = 10174
    BATCH_INCOMPLETE = 10176
    BATCH_TOO_LARGE = 10199
    BATCH_HAS_KNOWN_ID = 10201
    # A schedule:
    SCHEDULES_DISABLED = 10188
    SCHEDULE_INVALID = 10189
    SCHEDULE_TARGET_INVALID = 10190
    SCHEDULE_TTL_INVALID = 10191
    SCHEDULE_ROLLUP_INVALID = 10192


ACCOUNT_IS_FULL = RefusalCode.ACCOUNT_FULL.value
"""Error code: the account has no room for a message."""


class StoreFault(enum.Enum):
    """Why a store takes no message (`RefusalCode.STORE_FAILED`); only the server's words say it."""

    STREAM_FULL = "the stream discards what is new, and has no room"
    SUBJECT_FULL = "the subject has no room"
    RECORD_TOO_LARGE = "the store keeps no message of this size"


Cause = int | StoreFault
"""Why a message is not stored: the error code, or the fault of the store where it is known."""

#: How the server's words about a store begin (nats-server: server/store.go). Older servers send
#: others, for errors that pass.
_STORE_FAULTS: Mapping[str, StoreFault] = {
    "maximum messages per subject exceeded": StoreFault.SUBJECT_FULL,
    "maximum messages exceeded": StoreFault.STREAM_FULL,
    "maximum bytes exceeded": StoreFault.STREAM_FULL,
    "message too large": StoreFault.RECORD_TOO_LARGE,
}
#: What each cause means for the row. A code that is missing here is worth a retry, or fails.
_OUTCOMES: Mapping[Cause, Outcome] = {
    StoreFault.STREAM_FULL: Outcome.RETRY,
    StoreFault.SUBJECT_FULL: Outcome.LOOK,
    StoreFault.RECORD_TOO_LARGE: Outcome.REFUSED,
    RefusalCode.STORE_FAILED: Outcome.RETRY,  # in words that are not known
    RefusalCode.MESSAGE_TOO_LARGE: Outcome.REFUSED,
    RefusalCode.OTHER_STREAM: Outcome.REFUSED,
    RefusalCode.WRONG_LAST_ID: Outcome.REFUSED,
    RefusalCode.WRONG_LAST_SEQUENCE: Outcome.LOOK,
    RefusalCode.HEADERS_TOO_LARGE: Outcome.REFUSED,
    RefusalCode.STREAM_SEALED: Outcome.FAIL,
    RefusalCode.ROLLUP_DISABLED: Outcome.REFUSED,
    RefusalCode.TTL_INVALID: Outcome.REFUSED,
    RefusalCode.TTL_DISABLED: Outcome.REFUSED,
    RefusalCode.COUNTERS_DISABLED: Outcome.REFUSED,
    RefusalCode.INCREMENT_MISSING: Outcome.REFUSED,
    RefusalCode.INCREMENT_HAS_PAYLOAD: Outcome.REFUSED,
    RefusalCode.INCREMENT_INVALID: Outcome.REFUSED,
    RefusalCode.COUNTER_BROKEN: Outcome.REFUSED,
    RefusalCode.BATCHES_DISABLED: Outcome.REFUSED,
    RefusalCode.BATCH_INCOMPLETE: Outcome.RETRY,  # also after a cut or an election
    RefusalCode.BATCH_TOO_LARGE: Outcome.REFUSED,
    RefusalCode.BATCH_HAS_KNOWN_ID: Outcome.REFUSED,
    RefusalCode.SCHEDULES_DISABLED: Outcome.REFUSED,
    RefusalCode.SCHEDULE_INVALID: Outcome.REFUSED,
    RefusalCode.SCHEDULE_TARGET_INVALID: Outcome.REFUSED,
    RefusalCode.SCHEDULE_TTL_INVALID: Outcome.REFUSED,
    RefusalCode.SCHEDULE_ROLLUP_INVALID: Outcome.REFUSED,
    # Headers that this release does not write, and that newer servers know:
    **dict.fromkeys((10177, 10193, 10203, 10212, 10223, 10227), Outcome.REFUSED),
}


def is_undecided(refusal: Refusal) -> bool:
    """Whether the server has not decided about this row, which will have its turn.

    Its queue is full, or too many atomic batches are open. Or a leader that cannot reach a majority of the replicas
    still holds an earlier message of the same id or subject, which may be this very row (nats-server:
    server/jetstream_batching.go, `checkMsgHeadersPreClusteredProposal`).
    """
    busy = issubclass(API_ERRORS.get(refusal.err_code, object), ServerBusy)
    return busy or (refusal.err_code == 0 and refusal.code == 429)


def cause(err_code: int, description: str) -> Cause:
    """Return why a server stores no message, by the error code and the server's words."""
    if err_code != RefusalCode.STORE_FAILED:
        return err_code
    for words, fault in _STORE_FAULTS.items():
        if description.startswith(words):
            return fault
    return err_code


def is_full(err_code: int, description: str) -> bool:
    """Whether an error says that a stream which discards what is new has no room for a message."""
    return cause(err_code, description) is StoreFault.STREAM_FULL


def outcome(refusal: Refusal) -> Outcome:
    """Return what a refusal means for its row."""
    if refusal.err_code == 0:
        return Outcome.RETRY if refusal.code in (NO_STREAM, 429) else Outcome.FAIL
    known = _OUTCOMES.get(cause(refusal.err_code, refusal.description))
    if known is not None:
        return known
    kind = API_ERRORS.get(refusal.err_code)
    passes = kind is not None and issubclass(kind, (ServerBusy, InsufficientResources))
    return Outcome.RETRY if passes else Outcome.FAIL


def reason(refusal: Refusal, advice: Mapping[Cause, str]) -> str:
    """Return why the row is not stored: the server's text, and what to change.

    ``advice`` says for the causes that callers know what to change.
    """
    if refusal.err_code == 0 and refusal.code == NO_STREAM:
        return "no stream captures this subject, or its stream has no leader (status 503)"
    if refusal.err_code == 0:
        return f"the server answered with status {refusal.code} {refusal.description}".rstrip()
    text = f"{refusal.description} (error {refusal.err_code})"
    change = advice.get(cause(refusal.err_code, refusal.description))
    return f"{text}: {change}" if change else text
