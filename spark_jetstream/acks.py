"""What comes back for published rows, read in bulk. Pure: frames in, vectors out.

A server answers a publish with JSON: ``{"stream":"ORDERS","seq":17}``, with ``,"duplicate": true`` when it knows the
message id, or with an error object; a subject that no stream listens on gives a status line, ``NATS/1.0 503``. The
plain answers are compared as bytes with what the stream's answers begin with and read as vectors; whatever looks
different is read one by one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_jetstream.digits import load8, parse_unsigned
from spark_jetstream.errors import ProtocolError, printable
from spark_jetstream.wire import Frames, IntArray

NO_STREAM = 503
"""Status of an answer that says that nobody listens on the subject (``err_code`` 0)."""

_DUPLICATE = b',"duplicate": true}'
_DUPLICATE_WORDS = [
    (at, np.frombuffer(_DUPLICATE, "<u8", 1, len(_DUPLICATE) - at)[0]) for at in (8, 16, len(_DUPLICATE))
]
_ZERO, _BRACE = ord("0"), ord("}")
# The forms that the fast path reads; one with anything else in it is read one by one.
_STRING = rb'"(?:[^"\\]|\\.)*"'
_PLAIN_ANSWER = re.compile(
    rb'(\{"stream":%b,(?:"domain":%b,)?"seq":)\d+(?:\}|%b)' % (_STRING, _STRING, re.escape(_DUPLICATE))
)
_STATUS = re.compile(rb"NATS/1\.0 (\d{3})(?: ([^\r\n]*))?\r\n")
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Refusal:
    """An answer that says that a row is not stored: the status or the error code, and the server's words."""

    number: int
    code: int
    err_code: int
    description: str


@dataclass(frozen=True)
class Stored:
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

    stored: list[Stored] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class AckReader:
    """Reads answers that came to ``<inbox>.<number>``; remembers how the answers of each stream begin."""

    def __init__(self, inbox: str) -> None:
        self._before = len(inbox) + 1
        self._streams: list[tuple[bytes, str, str]] = []

    def read(self, frames: Frames) -> Answers:
        """The answers, in no particular order. Raises `ProtocolError` when one is neither of the known forms."""
        numbers, good = parse_unsigned(frames.lines, frames.subject_start + self._before, frames.subject_end)
        if not good.all():
            raise ProtocolError("an acknowledgement came on a subject that nothing was published with")
        begin = frames.line_end + frames.head
        end = frames.line_end + frames.size
        answers = Answers()
        left = np.arange(len(frames))
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
        at = [*range(0, len(prefix) - 8, 8), len(prefix) - 8]
        for offset in at:
            word = np.frombuffer(prefix, "<u8", 1, offset)[0]
            fits[fits] = load8(frames.data, start[fits] + offset) == word
        start, stop, chosen = start[fits], stop[fits], left[fits]
        octets = np.frombuffer(frames.data, np.uint8)
        duplicate = np.ones(len(stop), np.bool_)
        for before, word in _DUPLICATE_WORDS:
            duplicate &= load8(frames.data, stop - before) == word
        number_end = stop - np.where(duplicate, len(_DUPLICATE), 1)
        sequences, good = parse_unsigned(frames.data, start + len(prefix), number_end)
        good &= (octets[stop - 1] == _BRACE) & (octets[start + len(prefix)] != _ZERO)
        if good.any():
            rows = chosen[good]
            answers.stored.append(Stored(stream, domain, numbers[rows], sequences[good], duplicate[good]))
        fits[np.flatnonzero(fits)] = good
        rest: IntArray = left[~fits]
        return rest

    def _one(self, frames: Frames, index: int, number: int, begin: int, end: int, answers: Answers) -> bool:
        """Read one answer; whether it taught how the answers of a stream begin (it is not taken then)."""
        payload = bytes(frames.data[begin:end])
        status = _STATUS.match(frames.data, int(frames.line_end[index]), begin)
        if status is not None and not payload:
            words = (status[2] or b"").decode("utf-8", "replace")
            answers.refused.append(Refusal(number, int(status[1]), 0, words))
            return False
        try:
            body = json.loads(payload)
            error = body.get("error")
            if error is not None:
                answers.refused.append(_refusal(number, error))
                return False
            stream, domain, sequence = body["stream"], body.get("domain", ""), _integer(body["seq"])
            if not (isinstance(stream, str) and stream and isinstance(domain, str) and sequence):
                raise ValueError("no stream, no domain, or no sequence")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ProtocolError(f"an acknowledgement cannot be read: {payload[:120]!r}") from None
        plain = _PLAIN_ANSWER.fullmatch(payload)
        if plain is not None and all(plain[1] != prefix for prefix, _, _ in self._streams):
            self._streams.append((plain[1], stream, domain))
            return True
        numbers, sequences = np.array([number], np.int64), np.array([sequence], np.int64)
        answers.stored.append(Stored(stream, domain, numbers, sequences, np.array([body.get("duplicate") is True])))
        return False


def _refusal(number: int, error: Any) -> Refusal:
    description = error.get("description", "")
    if not isinstance(description, str):
        raise ValueError("a description that is no text")
    return Refusal(number, _integer(error["code"]), _integer(error.get("err_code", 0)), printable(description))


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _INT64_MAX:
        raise ValueError("no number of 63 bits")
    return value
