"""Frames as a server sends them, what the scanner makes of them, and messages without frames."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import IntArray, gather
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.headers import HEADERS_TYPE
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.wire import Event, Frames, Scanner

#: Subject, header, payload, and whether there is a reply subject.
Answer = tuple[bytes, bytes, bytes, bool]


def frame(
    subject: str | bytes, sid: object, payload: bytes, head: bytes = b"", reply: bytes = b""
) -> bytes:
    """An HMSG frame, or a MSG frame where there is no header block."""
    name = subject.encode() if isinstance(subject, str) else subject
    line = b" ".join(filter(None, (name, str(sid).encode(), reply)))
    if head:
        return b"HMSG %s %d %d\r\n%s%s\r\n" % (
            line,
            len(head),
            len(head) + len(payload),
            head,
            payload,
        )
    return b"MSG %s %d\r\n%s\r\n" % (line, len(payload), payload)


def scanned(
    chunks: Iterable[bytes], collect: Collection[int], whole: Collection[int] = ()
) -> Iterator[Event]:
    """Yield the events of a new scanner for these bytes, which it gets in small pieces of memory."""
    scanner, incoming = Scanner(), Incoming(100)
    scanner.collect, scanner.whole = set(collect), set(whole)
    for chunk in chunks:
        incoming.add(chunk)
        yield from scanner.read(incoming)


def frames_in(
    chunks: Iterable[bytes], collect: Collection[int], whole: Collection[int] = ()
) -> list[Frames]:
    """The messages among what a new scanner finds in these bytes."""
    return [event for event in scanned(chunks, collect, whole) if isinstance(event, Frames)]


def by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def answers(frames: Frames) -> list[Answer]:
    """Each frame by itself."""
    subjects = gather(frames.lines, frames.subject_start, frames.subject_end).to_pylist()
    replied = (frames.reply_dots >= 0).tolist()
    return [
        (name, *part, reply)
        for name, part, reply in zip(subjects, frames.parts(), replied, strict=True)
    ]


def columns(run: MessageRun) -> list[list[object]]:
    """Sequences, times, subjects, payloads."""
    assert len(run) == len(run.sequences)
    texts = (run.subjects().to_pylist(), run.payloads().to_pylist())
    return [run.sequences.tolist(), run.timestamps().tolist(), *texts]


@dataclass(frozen=True)
class Made:
    """Messages with sequences from `first` on, stored a microsecond apart; implements
    `columns.MessageRun`.
    """

    rows: Sequence[tuple[str, bytes, Mapping[str, Sequence[str]] | None]]
    first: int = 1

    @property
    def sequences(self) -> IntArray:
        return np.arange(self.first, self.first + len(self), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def timestamps(self) -> IntArray:
        return np.asarray(self.sequences * 1000)

    def subjects(self) -> pa.StringArray:
        return pa.array([subject for subject, _, _ in self.rows], pa.string())

    def raw_subjects(self) -> pa.BinaryArray:
        return self.subjects().cast(pa.binary())

    def headers(self) -> pa.MapArray:
        return pa.array(
            [given if given is None else list(given.items()) for _, _, given in self.rows],
            HEADERS_TYPE,
        )

    def payloads(self) -> pa.BinaryArray:
        return pa.array([data for _, data, _ in self.rows], pa.binary())
