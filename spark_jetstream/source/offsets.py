"""The offset of a streaming query: a file format, kept in the checkpoint.

docs/architecture.md shows it. Spark compares the text, so it is canonical: sorted streams, the
fields of `StreamPosition` in order, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

from spark_jetstream.errors import JetStreamError
from spark_jetstream.source.shared.held import FIELDS as HELD_FIELDS
from spark_jetstream.source.shared.held import Held

#: The newest format that `Offset.from_json` reads: that of an offset with `Offset.held`. One with
#: `Offset.cuts` has format 2, and one with neither has format 1.
VERSION = 3

Cuts = tuple[int, ...]
"""The tasks of a range: ``(first, tasks, end)``, or ``(first, tasks, end, tasks, end, ...)``.

The latter has several parts, and `ranges.cut_at` cuts each evenly by its sequences. ``first`` is
where the first task may begin; it reads the messages before as well. The last ``end`` is the
range's.
"""

T = TypeVar("T")

_MOST_TASKS = 10**6  # of one stream; option minPartitions allows a tenth

# What the server's own types hold: sequences are uint64, timestamps int64.
_LAST_SEQUENCE = 2**64 - 1
_LAST_NANOSECOND = 2**63 - 1

_FIELDS = ("next", "created", "last_timestamp")
# Each format has "version", "streams", and these.
_MORE_FIELDS = {1: (), 2: ("cuts",), 3: ("held",)}

#: What to do about an offset that cannot be used: the end of each `OffsetError` of a checkpoint.
REMEDY = "restore the checkpoint from a backup, or start the query with a new one"


class OffsetError(JetStreamError, ValueError):
    """An offset is malformed, or was written by a newer release."""


@dataclass(frozen=True)
class StreamPosition:
    """How far one stream was read.

    ``next`` is the next sequence to read (>= 1). ``created`` is the stream's creation time as the
    server prints it (RFC3339Nano); it is compared as text. ``last_timestamp`` is the server's
    timestamp, in nanoseconds since the epoch, of the message at sequence ``next - 1``, or 0 when
    there is none or it is not known. Raises `OffsetError` for a value of another type or out of
    range.
    """

    next: int
    created: str
    last_timestamp: int = 0

    def __post_init__(self) -> None:
        if not _is_whole(self.next, 1, _LAST_SEQUENCE):
            raise OffsetError(
                f"'next' of an offset must be an integer from 1 to 2**64-1, not {_shown(self.next)}"
            )
        if type(self.created) is not str or not self.created:
            raise OffsetError(
                f"'created' of an offset must be a time as text, not {_shown(self.created)}"
            )
        if not _is_whole(self.last_timestamp, 0, _LAST_NANOSECOND):
            shown = _shown(self.last_timestamp)
            raise OffsetError(
                f"'last_timestamp' of an offset must be an integer from 0 to 2**63-1, not {shown}"
            )


def _is_whole(value: object, least: int, most: int) -> bool:
    """Whether a value is an integer within limits, and one that JSON can hold."""
    # bool is a subclass of int, and JSON would write it as true; numpy integers cannot be written
    # at all.
    return type(value) is int and least <= value <= most


@dataclass(frozen=True)
class Offset:
    """How far each stream was read, and how the micro-batch that ends here is cut into tasks.

    ``streams`` and ``cuts`` are read-only and sorted by name. ``cuts`` has each stream that the
    micro-batch reads; it is empty if that is not decided yet. Offsets with the same positions are
    equal, whatever their cuts.

    ``held`` has the messages that the micro-batch has reserved, for the one stream of a query with
    option share. It has no cuts then, and the position names the last of these messages.
    """

    streams: Mapping[str, StreamPosition]
    cuts: Mapping[str, Cuts] = field(default_factory=dict, compare=False)
    held: Mapping[str, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The only way to set an attribute of a frozen class.
        object.__setattr__(self, "streams", _sorted(self.streams))
        object.__setattr__(self, "cuts", _sorted(self.cuts))
        object.__setattr__(self, "held", _sorted(self.held))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy does not pickle.
        return Offset, (dict(self.streams), dict(self.cuts), dict(self.held))

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark takes it: dictionaries, integers and strings.

        The keys are in canonical order.
        """
        streams = {name: _fields_of(position) for name, position in self.streams.items()}
        if self.held:
            held = {name: some.to_json() for name, some in self.held.items()}
            return {"version": 3, "streams": streams, "held": held}
        if not self.cuts:
            return {"version": 1, "streams": streams}
        cuts = {name: list(some) for name, some in self.cuts.items()}
        return {"version": 2, "streams": streams, "cuts": cuts}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Offset:
        """Read what `to_json` wrote. Raises `OffsetError` for anything else."""
        try:
            positions = _positions(content)
            if "held" in content:
                return cls(positions, held=_held(content["held"], positions))
            if "cuts" not in content:
                return cls(positions)
            return cls(positions, _cuts(content["cuts"], positions))
        except OffsetError as error:
            raise OffsetError(f"{error}; {REMEDY}") from None
        except RecursionError:  # of `repr`, where the JSON was just not too deep for its parser
            raise OffsetError(f"the offset is nested too deeply; {REMEDY}") from None


def _sorted(by_name: Mapping[str, T]) -> Mapping[str, T]:
    """Return a read-only copy, sorted by name."""
    return MappingProxyType(dict(sorted(by_name.items())))


def _fields_of(position: StreamPosition) -> dict[str, Any]:
    """Return the fields of a position, in canonical order."""
    return {name: getattr(position, name) for name in _FIELDS}


def _positions(content: Mapping[str, Any]) -> dict[str, StreamPosition]:
    """Return the positions of an offset's JSON, of which all but cuts and held is checked."""
    if not isinstance(content, Mapping):
        raise OffsetError(f"an offset must be a JSON object, not {_shown(content)}")
    _check_version(content)
    expected = ("version", "streams", *_MORE_FIELDS[content["version"]])
    _check_fields(content, expected, "the offset")
    streams = content["streams"]
    if not isinstance(streams, Mapping):
        raise OffsetError(f"'streams' of an offset must be a JSON object, not {_shown(streams)}")
    return {name: _position(name, fields) for name, fields in streams.items()}


def _check_version(content: Mapping[str, Any]) -> None:
    if "version" not in content:
        raise OffsetError(
            "the offset has no field 'version': it was not written by spark-jetstream"
        )
    version = content["version"]
    if type(version) is not int or version < 1:
        raise OffsetError(
            f"'version' of an offset must be an integer of at least 1, not {_shown(version)}"
        )
    if version > VERSION:
        raise OffsetError(
            f"the offset was written by a newer release of spark-jetstream"
            f" (format {version}; this one reads formats up to {VERSION}): use that one"
        )


def _check_fields(content: Mapping[str, Any], expected: tuple[str, ...], where: str) -> None:
    missing = [name for name in expected if name not in content]
    if missing:
        raise OffsetError(f"{where} lacks the field {missing[0]!r}")
    unknown = [name for name in content if name not in expected]
    if unknown:
        raise OffsetError(f"{where} has the unknown field {unknown[0]!r}")


def _position(name: str, fields: Any) -> StreamPosition:
    if not name:
        raise OffsetError("an offset names its streams with text, not with ''")
    if not isinstance(fields, Mapping):
        raise OffsetError(
            f"the offset of stream {name} must be a JSON object, not {_shown(fields)}"
        )
    _check_fields(fields, _FIELDS, f"the offset of stream {name}")
    try:
        return StreamPosition(**{each: fields[each] for each in _FIELDS})
    except OffsetError as error:
        raise OffsetError(f"stream {name}: {error}") from None


def _cuts(content: Any, positions: Mapping[str, StreamPosition]) -> dict[str, Cuts]:
    if not isinstance(content, Mapping) or not content:
        raise OffsetError(
            "'cuts' of an offset must be a JSON object of at least one stream, "
            f"not {_shown(content)}"
        )
    for name, cuts in content.items():
        if name not in positions:
            raise OffsetError(
                f"'cuts' of an offset names {_shown(name)}, which is none of its streams"
            )
        end = positions[name].next
        if not isinstance(cuts, list) or not _are_cuts(cuts, end):
            raise OffsetError(
                f"stream {name}: 'cuts' of an offset must be rising sequences up to {end}, with "
                f"the number of tasks between each two, not {_shown(cuts)}"
            )
    return {name: tuple(cuts) for name, cuts in content.items()}


def _are_cuts(cuts: list[Any], end: int) -> bool:
    """Whether a list has the form of `Cuts`, for a range that ends there."""
    # The sequences, and the numbers of tasks between each two.
    if len(cuts) < 3 or len(cuts) % 2 == 0:
        return False
    if not all(_is_whole(each, 1, _LAST_SEQUENCE) for each in cuts):
        return False
    sequences: list[int] = cuts[::2]
    tasks: list[int] = cuts[1::2]
    for (first, following), count in zip(pairwise(sequences), tasks, strict=True):
        # Each task has a sequence of its own.
        if count > following - first:
            return False
    return sequences[-1] == end and sum(tasks) <= _MOST_TASKS


def _held(content: Any, positions: Mapping[str, StreamPosition]) -> dict[str, Held]:
    if not isinstance(content, Mapping) or not content or set(content) != set(positions):
        raise OffsetError(
            f"'held' of an offset must be a JSON object of all of its streams, not {_shown(content)}"
        )
    return {name: _held_of(name, fields, positions[name]) for name, fields in content.items()}


def _held_of(name: str, fields: Any, position: StreamPosition) -> Held:
    where = f"'held' of stream {name}"
    if not isinstance(fields, Mapping):
        raise OffsetError(f"{where} must be a JSON object, not {_shown(fields)}")
    _check_fields(fields, HELD_FIELDS, where)
    try:
        held = Held.from_json(fields)
    except ValueError as error:
        raise OffsetError(f"{where}: {error}") from None
    if held.sequences and position.next != held.sequences[-1] + 1:
        raise OffsetError(f"{where} must end before 'next', which is {position.next}")
    return held


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
