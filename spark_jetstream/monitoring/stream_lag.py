"""`lag` and `ranges`: how far a query is behind each stream, and what it read, by its progress.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.source.offsets import Offset, StreamPosition

#: Class name of a source whose end Spark 4.0 and 4.1 repeat as the end of the stream.
_REPEATS_END = "PythonMicroBatchStream"


@dataclass(frozen=True)
class StreamLag:
    """How far a query was behind the end of one stream when it reported its progress.

    ``next`` is the next sequence that the query reads, ``latest`` one past the last message of the
    stream, with a subject filter one past the last message that matches.

    ``messages`` is the number of sequences from ``next`` up to ``latest``. It is 0 exactly when
    nothing is left to read. Otherwise it is an upper bound: it includes deleted messages, and those
    that a subject filter leaves out.

    ``seconds`` is the time at which the server stored the last message before ``latest`` minus the
    time at which it stored the last message that the query read. It is 0.0 when nothing is left to
    read, and None when one of the two times is not known, as before the first message.

    ``latest``, ``messages`` and ``seconds`` are None when Spark does not report the end of the
    stream (4.0 and 4.1). ``messages`` and ``seconds`` are also None when the stream was deleted and
    created again.
    """

    stream: str
    next: int
    latest: int | None
    messages: int | None
    seconds: float | None


def lag(progress: Any) -> dict[str, StreamLag]:
    """Return how far a query is behind each stream, by stream name. Sends no request.

    If several sources of the query read a stream, the one that is furthest behind counts.
    Sources of other formats are left out.

    Args:
        progress: ``query.lastProgress``, an element of ``query.recentProgress``, the event that a
            listener's ``onQueryProgress`` gets, or the JSON text of a progress; classic or from
            Spark Connect. With None, the progress of a query that has not finished a micro-batch,
            the result is empty.

    Raises:
        OffsetError: An offset was written by a newer release of spark-jetstream.
    """
    lags: dict[str, StreamLag] = {}
    for source in _sources(progress):
        end = _offset(source.get("endOffset"))
        if end is None:
            continue
        latest = _latest_positions(source, end)
        for name, position in end.streams.items():
            found = _lag(name, position, latest.get(name))
            # Several sources may read one stream; an alert needs the one that is furthest behind.
            if name not in lags or _behind(found) > _behind(lags[name]):
                lags[name] = found
    return lags


def _latest_positions(source: Mapping[str, Any], end: Offset) -> Mapping[str, StreamPosition]:
    """Return the ends of the streams by name, empty if Spark does not report them."""
    latest = _offset(source.get("latestOffset"))
    if latest is None:
        return {}
    # The description is the text of a Java object: its class, an at sign, its hash code.
    class_name = source.get("description", "").partition("@")[0]
    if latest == end and _REPEATS_END in class_name.split("."):
        return {}
    return latest.streams


def ranges(progress: Any) -> dict[str, list[dict[str, int]]]:
    """Return the ``first`` and ``last`` sequence of each stream that each source read.

    ``first`` is missing in the first micro-batch on Spark 4.0 and 4.1, which do not say where it
    began. The list is empty for a stream of which nothing was read. Argument and errors are those
    of `lag`.
    """
    found: dict[str, list[dict[str, int]]] = {}
    for source in _sources(progress):
        start = _offset(source.get("startOffset"))
        end = _offset(source.get("endOffset"))
        if end is None:
            continue
        for name, position in end.streams.items():
            last = position.next - 1
            first = _first_read(source, name, start, end)
            parts = found.setdefault(name, [])
            if first is None:
                # Spark 4.0 and 4.1 do not say where the first micro-batch began. The stream was
                # empty if its next sequence is 1.
                if last > 0:
                    parts.append({"last": last})
            elif first <= last:
                parts.append({"last": last, "first": first})
    return found


def _first_read(
    source: Mapping[str, Any],
    name: str,
    start: Offset | None,
    end: Offset,
) -> int | None:
    """Return the sequence at which a source began to read a stream; None if it is not known.

    It is one past the last sequence if the source read nothing of the stream.
    """
    position = end.streams[name]
    before = None if start is None else start.streams.get(name)
    if before is not None and before.created == position.created:
        return before.next
    # The query reads the stream for the first time, so the cuts of its tasks say where. A stream
    # without cuts was not read.
    if start is not None or end.cuts or not source["numInputRows"]:
        return end.cuts[name][0] if name in end.cuts else position.next
    return None


def _sources(progress: Any) -> Iterator[Mapping[str, Any]]:
    """Return the sources of a progress, whatever form it has."""
    progress = getattr(progress, "progress", progress)  # of a listener's event
    # The items of a progress of Spark 4.0 and 4.1 have offsets as text that is not JSON.
    progress = getattr(progress, "json", progress)
    if isinstance(progress, str):
        progress = json.loads(progress)
    if progress is None:
        return iter(())
    return iter(progress["sources"])


def _offset(value: Any) -> Offset | None:
    """Return an offset of this package, from an object or JSON text; None for any other."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):  # "None" before the first micro-batch
            return None
    # Sources of other formats have other offsets, such as a number.
    if not isinstance(value, Mapping) or not {"version", "streams"} <= value.keys():
        return None
    # An offset has no streams if none of them exists.
    return None if value["streams"] == {} else Offset.from_json(value)


def _behind(lag: StreamLag) -> tuple[int, int]:
    """Return how far behind a source is, to compare: by messages, and then by position."""
    # With other filters a source with nothing left to read may be at an earlier sequence.
    messages = -1 if lag.messages is None else lag.messages
    return messages, -lag.next


def _lag(name: str, position: StreamPosition, latest: StreamPosition | None) -> StreamLag:
    if latest is None:
        return StreamLag(name, position.next, None, None, None)
    # The stream was deleted and created again: its sequences began anew, so they cannot be
    # compared.
    if latest.created != position.created:
        return StreamLag(name, position.next, latest.next, None, None)
    # With a filter the query may have come past the last message that matches.
    messages = max(0, latest.next - position.next)
    seconds = None
    if not messages:
        seconds = 0.0
    elif latest.last_timestamp and position.last_timestamp:
        # The server has nanoseconds. Its clock may have been set back between the two messages.
        seconds = max(0, latest.last_timestamp - position.last_timestamp) / 1e9
    return StreamLag(name, position.next, latest.next, messages, seconds)
