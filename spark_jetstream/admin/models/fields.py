"""Types of fields that several models have, made of the kinds in `options.values` and `options.names`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from spark_jetstream.options.names import Subject
from spark_jetstream.options.values import UINT64_MAX, Flag, Octets, Size, Span, Text, When, Whole, closest
from spark_jetstream.protocol.units import Bytes, Nanoseconds, Timestamp

Boolean = Annotated[bool, Flag()]
String = Annotated[str, Text()]
Count = Annotated[int, Whole()]
Sequence64 = Annotated[int, Whole(0, UINT64_MAX)]
Time = Annotated[Timestamp, When()]
Duration = Annotated[Nanoseconds, Span()]
Content = Annotated[bytes, Octets()]
Volume = Annotated[Bytes, Size()]
OptionalSubject = Annotated[str, Subject(optional=True)]


def hint(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)`` when a name looks like a mistyped one of these, else ""."""
    match = closest(name, known)
    return f" (did you mean {match}?)" if match else ""
