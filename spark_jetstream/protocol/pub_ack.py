"""Reads the acknowledgements of published rows, in bulk, and says what a refusal means for its row.

No socket, no clock, no logging. The layers above know columns and options, and add what to change.

A server answers a publish with JSON: ``{"stream":"ORDERS","seq":17}``. It adds

- ``,"duplicate": true`` when it knows the message id;
- ``,"val":"5"``, the new value of a counter;
- ``,"batch":"b","count":3`` for the last message of an atomic batch; the others have empty answers.

A refused publish gets an error object. A publish to a subject that no stream listens on gets a
status line, ``NATS/1.0 503``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """An answer that a row is not stored: the status or the error code, and the server's words."""

    number: int
    code: int
    err_code: int
    description: str


@dataclass(frozen=True)
class StoredAcks:
    """Answers of one stream that say that rows are stored.

    ``numbers`` are those of the publishes and ``sequences`` those in the stream (int64);
    ``duplicate`` says which of the rows had been stored before under the same message id.
    ``domain`` is that of the stream, empty for a server without one.
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


class _PlainStart(NamedTuple):
    """How plain answers of a stream begin, up to the sequence."""

    text: bytes
    stream: str
    domain: str


class _AckPayloads(NamedTuple):
    """Where the payloads of some answers are, and the numbers of the publishes that they answer."""

    frames: Frames
    numbers: IntArray
    begin: IntArray
    end: IntArray


class AckReader:
    """Reads answers to ``<inbox>.<number>``; remembers how the answers of each stream begin."""

    def __init__(self, inbox: str) -> None:
        self._before = len(inbox) + 1
        # Learned from the first answer of each stream.
        self._beginnings: list[_PlainStart] = []

    def read(self, frames: Frames) -> Answers:
        """Return the answers, in no particular order.

        Raises `ProtocolError` when one has none of the known forms.
        """
        numbers, good = parse_unsigned(
            frames.lines, frames.subject_start + self._before, frames.subject_end
        )
        if not good.all():
            raise ProtocolError(
                "an acknowledgement arrived at a subject that belongs to no published message"
            )
        payloads = _AckPayloads(
            frames, numbers, frames.line_end + frames.head, frames.line_end + frames.size
        )
        answers = Answers()
        # All messages of an atomic batch but the last have empty answers.
        left = np.flatnonzero(frames.size)
        # The fast path: all answers of a known stream differ in the numbers alone.
        for beginning in self._beginnings:
            left = _read_plain(payloads, beginning, left, answers)
            if not len(left):
                return answers
        while len(left):
            learned = self._learn(payloads, int(left[0]), answers)
            if learned is None:
                left = left[1:]
            else:
                # A stream not met before: the others may be of it as well.
                self._beginnings.append(learned)
                left = _read_plain(payloads, learned, left, answers)
        return answers

    def _learn(self, payloads: _AckPayloads, index: int, answers: Answers) -> _PlainStart | None:
        """Return how answers of a new stream begin; else add this one answer and return None."""
        frames = payloads.frames
        number = int(payloads.numbers[index])
        begin = int(payloads.begin[index])
        payload = bytes(frames.data[begin : int(payloads.end[index])])
        if not payload:
            status = parse_status(bytes(frames.data[int(frames.line_end[index]) : begin]))
            if status is not None:
                refusal = Refusal(number, status.code, 0, status.description)
                answers.refused.append(refusal)
                return None
        try:
            answer = _read_answer(payload, number)
        # `_read_answer` raises these for JSON of an unknown form, and for bytes that are no JSON.
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProtocolError(f"an acknowledgement cannot be read: {payload[:120]!r}") from None
        if isinstance(answer, Refusal):
            answers.refused.append(answer)
            return None
        plain = _PLAIN_ANSWER.fullmatch(payload)
        if plain is not None and all(plain[1] != known.text for known in self._beginnings):
            return _PlainStart(plain[1], answer.stream, answer.domain)
        answers.stored.append(answer)
        return None


def _read_answer(payload: bytes, number: int) -> StoredAcks | Refusal:
    """Return what the JSON of one answer says. Other JSON, and no JSON, raise various errors."""
    body = json_object(payload)
    error = body.get("error")
    if error is not None:
        return _refusal(number, error)
    stream = body["stream"]
    domain = body.get("domain", "")
    sequence = _integer(body["seq"])
    has_stream = isinstance(stream, str) and 0 < len(stream) <= LONGEST_NAME
    has_domain = isinstance(domain, str) and len(domain) <= LONGEST_NAME
    if not (has_stream and has_domain and sequence):
        raise ValueError("no stream, no domain, or no sequence")
    return StoredAcks(
        stream,
        domain,
        np.array([number], np.int64),
        np.array([sequence], np.int64),
        np.array([body.get("duplicate") is True]),
    )


def _read_plain(
    payloads: _AckPayloads, beginning: _PlainStart, left: IntArray, answers: Answers
) -> IntArray:
    """Read those of ``left`` that are plain answers of a stream; return the others."""
    text, stream, domain = beginning
    data = payloads.frames.data
    start, stop = payloads.begin[left], payloads.end[left]
    # Room for a digit and a brace, at least.
    fits = stop - start > len(text) + 1
    fits[fits] = begins_with(data, start[fits], text)
    start, stop, chosen = start[fits], stop[fits], left[fits]
    octets = np.frombuffer(data, np.uint8)
    # The sequence ends at the brace, at the name of the flag, or at that of a counter's value.
    duplicate = begins_with(data, stop - len(_DUPLICATE), _DUPLICATE)
    number_end = stop - np.where(duplicate, len(_DUPLICATE), 1)
    counted = np.flatnonzero(octets[stop - 2] == _QUOTE)
    if len(counted):
        # Between the last two quotes are digits, perhaps with a sign. Their name must stand before.
        first = int(start[counted[0]])
        answered = octets[first : int(stop[-1])]
        others = np.flatnonzero((answered < _ZERO) | (answered > _NINE)) + first
        before = others[others.searchsorted(stop[counted] - 2) - 1]
        name = before - (octets[before] == _MINUS) - (len(_COUNTER) - 1)
        named = begins_with(data, name, _COUNTER)
        number_end[counted[named]] = name[named]
    sequences, good = parse_unsigned(data, start + len(text), number_end)
    # JSON has no number with a zero in front. Anything else at the end is not plain.
    good &= (octets[stop - 1] == _BRACE) & (octets[start + len(text)] != _ZERO)
    if good.any():
        numbers = payloads.numbers[chosen[good]]
        answers.stored.append(StoredAcks(stream, domain, numbers, sequences[good], duplicate[good]))
    fits[np.flatnonzero(fits)] = good
    rest: IntArray = left[~fits]
    return rest


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
    """The way to deal with a row that was not stored."""

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
    SCHEDULE_SOURCE_INVALID = 10203
    SCHEDULE_TIME_ZONE_INVALID = 10223


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
    RefusalCode.SCHEDULE_SOURCE_INVALID: Outcome.REFUSED,
    RefusalCode.SCHEDULE_TIME_ZONE_INVALID: Outcome.REFUSED,
    # Headers that this release does not write, and that newer servers know:
    **dict.fromkeys((10177, 10193, 10212, 10227), Outcome.REFUSED),
}


def is_undecided(refusal: Refusal) -> bool:
    """Whether the server has not decided about this row, which will have its turn.

    Its queue is full, or too many atomic batches are open. Or the leader cannot reach a majority of
    the replicas, and still holds an earlier message of the same id or subject. That message may be
    this very row (nats-server: server/jetstream_batching.go,
    `checkMsgHeadersPreClusteredProposal`).
    """
    busy = issubclass(API_ERRORS.get(refusal.err_code, object), ServerBusy)
    return busy or (refusal.err_code == 0 and refusal.code == 429)


def cause(err_code: int, description: str) -> Cause:
    """Return why a server stores no message, by the error code and the server's words."""
    if err_code != RefusalCode.STORE_FAILED:
        return err_code
    # The code 10077 stands for four faults, and only the words tell them apart.
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
        # 503: an election, or no stream. 429: the stream's queue for new messages is full.
        if refusal.code in (NO_STREAM, 429):
            return Outcome.RETRY
        return Outcome.FAIL
    known = _OUTCOMES.get(cause(refusal.err_code, refusal.description))
    if known is not None:
        return known
    kind = API_ERRORS.get(refusal.err_code)
    # An unknown code fails the task. Only errors of a busy or a full server pass.
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
