"""Reads the acknowledgements of published rows, in bulk, and says what a refusal means for its row. Pure.

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


STORE_FAILED = 10077
"""Error code of a store that takes no message; only the server's words say why (`_STORE`)."""
ACCOUNT_IS_FULL = 10002
"""Error code: the account has no room for a message."""

_FULL = "the stream is full and discards what is new: raise its limits or set discard to old"
_LARGEST_RECORD = (
    "a stream with file storage keeps no message of more than 32 MiB: make the row smaller, or "
    "write to a stream with memory storage"
)
#: What the words of a store mean that begin so (nats-server: server/store.go). Older servers send
#: others, for errors that pass.
_STORE: Mapping[str, tuple[Outcome, str]] = {
    "maximum messages per subject exceeded": (
        Outcome.LOOK,
        "raise the stream's max_msgs_per_subject",
    ),
    "maximum messages exceeded": (Outcome.RETRY, _FULL),
    "maximum bytes exceeded": (Outcome.RETRY, _FULL),
    "message too large": (Outcome.REFUSED, _LARGEST_RECORD),
}
#: err_code -> what it means, and what to change (nats-server: server/errors.json); what is missing is worth a retry or
#: fails.
_MEANING: Mapping[int, tuple[Outcome, str]] = {
    10054: (Outcome.REFUSED, "raise the stream's max_msg_size"),
    10060: (Outcome.REFUSED, ""),  # another stream than the expected one
    10070: (Outcome.REFUSED, ""),  # wrong last message id
    10071: (
        Outcome.LOOK,
        "column expected_last_subject_sequence names another message than the last one on its subject",
    ),
    10097: (Outcome.REFUSED, "make column headers smaller: a server keeps 64 KiB of them"),
    10109: (
        Outcome.FAIL,
        "nothing can be written to a sealed stream any more: write to another one",
    ),
    10111: (Outcome.REFUSED, "set allow_rollup_hdrs on the stream, or drop column rollup"),
    10165: (
        Outcome.REFUSED,
        "column ttl takes a duration of at least one second, such as 90s or 5m, or never",
    ),
    10166: (Outcome.REFUSED, "set allow_msg_ttl on the stream, or drop column ttl or schedule_ttl"),
    # An increment of a counter:
    10168: (
        Outcome.REFUSED,
        "counters need a stream made with allow_msg_counter; for another one, drop column incr",
    ),
    10169: (
        Outcome.REFUSED,
        "the stream holds counters (allow_msg_counter): give each row a value in column incr",
    ),
    10170: (Outcome.REFUSED, "a row with column incr has no payload: leave column data null"),
    10171: (
        Outcome.REFUSED,
        "column incr takes an integer, and allows no other demand on the server",
    ),
    10172: (
        Outcome.REFUSED,
        "the last message on this subject is broken: delete it, whose increment is then lost",
    ),
    # An atomic batch:
    10174: (
        Outcome.REFUSED,
        "a subject of the group belongs to a stream without allow_atomic: a group is for one stream",
    ),
    10176: (
        Outcome.RETRY,
        "does the stream capture the subjects of all rows?",
    ),  # also after a cut or an election
    10199: (
        Outcome.REFUSED,
        "make the group smaller, or raise the server's limit (jetstream, max_batch_size)",
    ),
    10201: (
        Outcome.REFUSED,
        "some of its rows are stored, and others are not: is column msg_id right?",
    ),
    10188: (Outcome.REFUSED, "set allow_msg_schedules on the stream, or drop column schedule"),
    10189: (
        Outcome.REFUSED,
        "column schedule takes a time with its zone, as 2030-01-31T08:00:00Z or after @at, and since nats-server 2.14 "
        "@every with one second or more, cron with six fields, @hourly, @daily, @weekly, @monthly and @yearly",
    ),
    10190: (
        Outcome.REFUSED,
        "column schedule_target must be another subject of the same stream, without wildcards",
    ),
    10191: (
        Outcome.REFUSED,
        "column schedule_ttl takes at least one second, such as 90s or 5m, or never",
    ),
    10192: (Outcome.REFUSED, "column rollup must be sub or null in a row with a schedule"),
    # Headers of a row that no column makes, and that servers know which this release does not:
    **dict.fromkeys((10177, 10193, 10203, 10212, 10223, 10227), (Outcome.REFUSED, "")),
}
ADVICE: Mapping[int, str] = {
    **{err_code: advice for err_code, (_, advice) in _MEANING.items()},
    **dict.fromkeys(
        (ACCOUNT_IS_FULL, 10023, 10028, 10047),
        "make room, or raise the limits of the server or the account",
    ),
    STORE_FAILED: _FULL,  # where `is_full`
}


def is_undecided(refusal: Refusal) -> bool:
    """Whether the server has not decided about this row, which will have its turn.

    Its queue is full, or too many atomic batches are open. Or a leader that cannot reach a majority of the replicas
    still holds an earlier message of the same id or subject, which may be this very row (nats-server:
    server/jetstream_batching.go, `checkMsgHeadersPreClusteredProposal`).
    """
    busy = issubclass(API_ERRORS.get(refusal.err_code, object), ServerBusy)
    return busy or (refusal.err_code == 0 and refusal.code == 429)


def is_full(err_code: int, description: str) -> bool:
    """Whether an error says that a stream which discards what is new has no room for a message."""
    return err_code == STORE_FAILED and _of_store(description)[1] == _FULL


def _of_store(description: str) -> tuple[Outcome, str]:
    for words, meaning in _STORE.items():
        if description.startswith(words):
            return meaning
    return Outcome.RETRY, ""


def outcome(refusal: Refusal) -> Outcome:
    """Return what a refusal means for its row."""
    if refusal.err_code == 0:
        return Outcome.RETRY if refusal.code in (NO_STREAM, 429) else Outcome.FAIL
    if refusal.err_code == STORE_FAILED:
        return _of_store(refusal.description)[0]
    if refusal.err_code in _MEANING:
        return _MEANING[refusal.err_code][0]
    kind = API_ERRORS.get(refusal.err_code)
    return (
        Outcome.RETRY
        if kind is not None and issubclass(kind, (ServerBusy, InsufficientResources))
        else Outcome.FAIL
    )


def reason(refusal: Refusal, advice: Mapping[int, str] = ADVICE) -> str:
    """Return why the row is not stored: the server's text, and what to change (``advice``, by error code)."""
    if refusal.err_code == 0 and refusal.code == NO_STREAM:
        return "no stream captures this subject, or its stream has no leader (status 503)"
    if refusal.err_code == 0:
        return f"the server answered with status {refusal.code} {refusal.description}".rstrip()
    change = advice.get(refusal.err_code)
    if refusal.err_code == STORE_FAILED and not is_full(refusal.err_code, refusal.description):
        change = _of_store(refusal.description)[1]
    text = f"{refusal.description} (error {refusal.err_code})"
    return f"{text}: {change}" if change else text
