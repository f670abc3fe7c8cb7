"""The messages that a micro-batch has reserved on a shared consumer, as an offset holds them. Pure.

Spark compares the text of offsets. Another zlib may compress the same sequences to other bytes, so
`Held` keeps the text that it was read from.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from spark_jetstream.protocol import ack_subject

FIELDS = ("consumer", "ack", "first", "count", "gaps")
MOST = 1_000_000
"""How many messages one offset holds at most."""

_LAST_SEQUENCE = 2**63 - 1
_VARINT_BYTES = 9  # of the largest distance


@dataclass(frozen=True)
class Held:
    """Reserved messages of one stream: ``sequences`` rise, and are empty before the first batch.

    ``consumer`` is the creation time of the consumer as the server prints it. ``ack`` begins the
    reply subjects of its messages, up to the name of the consumer. ``gaps`` is the text of the
    distances between the sequences. Raises `ValueError` for sequences that do not rise, or are too
    many.
    """

    consumer: str
    ack: str
    sequences: tuple[int, ...] = ()
    gaps: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _check(self.sequences)
        if not self.gaps:
            # The only way to set an attribute of a frozen class.
            object.__setattr__(self, "gaps", _encoded(self.sequences))

    @property
    def name(self) -> str:
        """The name of the consumer."""
        return self.ack.rpartition(".")[2]

    def ack_subjects(self, sequences: Iterable[int]) -> list[str]:
        """Return the subjects at which these messages are acknowledged.

        The server uses only the stream's sequence of the numbers in a reply subject
        (server/consumer.go, `processAckMsgLocked`).
        """
        return [f"{self.ack}.1.{sequence}.1.1.0" for sequence in sequences]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of an offset, in canonical order."""
        return {
            "consumer": self.consumer,
            "ack": self.ack,
            "first": self.sequences[0] if self.sequences else 0,
            "count": len(self.sequences),
            "gaps": self.gaps,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Held:
        """Read what `to_json` wrote, which has just `FIELDS`. Raises `ValueError` for other values."""
        for name in ("consumer", "ack", "gaps"):
            if type(content[name]) is not str:
                raise ValueError(f"{name!r} must be text")
        for name in ("first", "count"):
            if type(content[name]) is not int:
                raise ValueError(f"{name!r} must be an integer")
        if not content["consumer"]:
            raise ValueError("'consumer' must be a time as text")
        if not _is_prefix(content["ack"]):
            raise ValueError("'ack' must be the beginning of a reply subject")
        sequences = _decoded(content["first"], content["count"], content["gaps"])
        return cls(content["consumer"], content["ack"], sequences, content["gaps"])


def ack_prefix(reply: str) -> str:
    """Return the beginning of a reply subject, up to the name of the consumer.

    Raises what `parse_ack` raises.
    """
    ack_subject.parse_ack(reply)
    tokens = reply.split(".")
    # The second form has the domain and the account before the stream.
    length = 4 if len(tokens) == ack_subject.V1_DOTS + 1 else 6
    return ".".join(tokens[:length])


def plain_prefix(stream: str, consumer: str) -> str:
    """Return how the reply subjects of a consumer begin in the form of nine tokens."""
    return f"{ack_subject.PREFIX}{stream}.{consumer}"


def _is_prefix(text: str) -> bool:
    """Whether a text begins reply subjects, in one of the two forms."""
    tokens = text.split(".")
    if not text.startswith(ack_subject.PREFIX) or len(tokens) not in (4, 6):
        return False
    return all(token and token.isprintable() and not set(token) & set(" *>") for token in tokens)


def _check(sequences: tuple[int, ...]) -> None:
    if len(sequences) > MOST:
        raise ValueError(f"it holds more than {MOST:,} sequences")
    if not sequences:
        return
    rises = all(one < following for one, following in pairwise(sequences))
    if not rises or sequences[0] < 1 or sequences[-1] > _LAST_SEQUENCE:
        raise ValueError("its sequences must rise, from 1 to 2**63-1")


def _encoded(sequences: tuple[int, ...]) -> str:
    """Return the distances between sequences as varints, compressed, as base64."""
    varints = bytearray()
    for one, following in pairwise(sequences):
        distance = following - one
        while distance > 0x7F:
            varints.append(distance & 0x7F | 0x80)
            distance >>= 7
        varints.append(distance)
    if not varints:
        return ""
    return base64.b64encode(zlib.compress(bytes(varints), 9)).decode()


def _decoded(first: int, count: int, gaps: str) -> tuple[int, ...]:
    """Return the sequences that `_encoded` wrote. Raises `ValueError`."""
    if not 0 <= count <= MOST:
        raise ValueError(f"'count' must be an integer from 0 to {MOST}")
    if count == 0:
        if first or gaps:
            raise ValueError("'first' must be 0 and 'gaps' empty where 'count' is 0")
        return ()
    distances = _distances(gaps, count - 1)
    if len(distances) != count - 1:
        raise ValueError(f"'gaps' must have {count - 1} distances, and has another number")
    return tuple(accumulate(distances, initial=first))


def _distances(gaps: str, most: int) -> list[int]:
    if not gaps:
        return []
    try:
        packed = base64.b64decode(gaps, validate=True)
        # A short text could be unpacked to any length.
        reader = zlib.decompressobj()
        varints = reader.decompress(packed, _VARINT_BYTES * most + 1)
    except (ValueError, zlib.error):
        raise ValueError("'gaps' must be compressed distances as base64") from None
    if not reader.eof or reader.unused_data:
        raise ValueError("'gaps' must be compressed distances as base64")
    distances: list[int] = []
    distance = shift = 0
    for byte in varints:
        distance |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        distances.append(distance)
        distance = shift = 0
    if shift:
        raise ValueError("'gaps' ends within a distance")
    return distances
