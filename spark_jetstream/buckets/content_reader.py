"""Reads the content of objects chunk by chunk, and checks it (ADR-20).

Content is right when the number of its chunks, its size and its SHA-256 are those of the meta
message. If they are not, `ContentReader` asks for the version that the object has now:

| the object | the reader |
|---|---|
| was replaced | reads the new version |
| is gone | reads no more of it |
| is the same, and its meta message comes from a replica that may lag | asks again, a few times |
| is the same | reports it as damaged |

No content mixes two versions: each one has chunks of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from spark_jetstream.buckets.object_content import ContentCheck, chunk_views
from spark_jetstream.buckets.objects import StoredObject, chunk_subject
from spark_jetstream.client.deadline import Backoff
from spark_jetstream.errors import DataLossError, JetStreamError
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""How often an object is looked at again because its content was not right."""
_DOUBTS = 3  # attempts that find the same meta message on a stream whose replicas may lag

Read = Callable[[SequenceRange], Iterator[MessageRun]]
"""Yields the messages of a range, as `read_range` does."""


class BucketStream(NamedTuple):
    """The stream of a bucket; ``created`` is its creation time as the server prints it."""

    name: str
    created: str


class ObjectVersion(NamedTuple):
    """A version of an object as its bucket lists it, and the one that has its content.

    ``holder`` is ``listed`` itself, or the object that a link leads to; ``stream`` has its chunks.
    """

    listed: StoredObject
    holder: StoredObject
    stream: BucketStream

    def has_content_of(self, other: ObjectVersion) -> bool:
        """Whether both have the same content: that of one meta message."""
        return (self.stream, self.holder.sequence) == (other.stream, other.holder.sequence)


class Reading:
    """One read of the content of some versions, all of one stream."""

    def __init__(self, versions: Sequence[ObjectVersion], read: Read, together: int = 1) -> None:
        self.versions = versions
        self._read = read
        self._together = together
        self._checks = [ContentCheck(version.holder.meta) for version in versions]

    def chunks(self) -> Iterator[tuple[int, memoryview]]:
        """Yield each chunk with the index of its version; those of one version are in order.

        Raises what ``read`` raises, but no `DataLossError`: `faults` says what is missing.
        """
        indices = self._indices()
        for part in self._parts(indices):
            try:
                for messages in self._read(part):
                    subjects = messages.subjects().to_pylist()
                    for subject, chunk in zip(subjects, chunk_views(messages), strict=True):
                        for index in indices.get(subject, ()):
                            self._checks[index].add(chunk)
                            yield index, chunk
            # The version may have been replaced,
            # which removes its chunks: `ContentReader` finds out.
            except DataLossError as error:
                log.info("reading objects of stream %s: %s", part.stream, error)

    def faults(self) -> list[str | None]:
        """Return, after `chunks`, what is wrong with the content of each version; None: nothing."""
        return [check.fault() for check in self._checks]

    def _indices(self) -> dict[str, list[int]]:
        """Return the subjects of all chunks, each with the versions that they belong to."""
        indices: dict[str, list[int]] = {}
        for index, (_, holder, _) in enumerate(self.versions):
            meta = holder.meta
            if meta.nuid and (meta.size or meta.chunks):
                # Two names may share their chunks, for a moment, while an object gets a new name.
                indices.setdefault(chunk_subject(holder.origin, meta.nuid), []).append(index)
        return indices

    def _parts(self, indices: dict[str, list[int]]) -> Iterator[SequenceRange]:
        """Yield the ranges that have the chunks, each with up to `together` filters."""
        counts = {
            subject: max(self.versions[index].holder.meta.chunks for index in found)
            for subject, found in indices.items()
        }
        subjects = list(counts)
        stream = self.versions[0].stream
        # The meta message of a version is stored after its last chunk.
        end = max(version.holder.sequence for version in self.versions)
        for at in range(0, len(subjects), self._together):
            filters = tuple(subjects[at : at + self._together])
            count = sum(counts[subject] for subject in filters)
            yield SequenceRange(stream.name, 1, end, count, stream.created, filters)


class ContentReader:
    """Reads versions of objects, and those that have replaced them, until each is right or damaged.

    ``newest`` returns the version that an object has now, None if it has none that is to be read.
    ``lost`` is called with a sentence about each damaged object, and may raise it as an error;
    ``named`` returns how errors name the object. ``may_lag``: whether ``newest`` may have returned
    this version although a newer one is stored. ``together`` versions have one read in common.
    """

    def __init__(
        self,
        read: Read,
        newest: Callable[[ObjectVersion], ObjectVersion | None],
        *,
        named: Callable[[ObjectVersion], str],
        lost: Callable[[str], None],
        may_lag: Callable[[ObjectVersion], bool] = lambda _: False,
        together: int = 1,
        attempts: int = ATTEMPTS,
    ) -> None:
        self._read = read
        self._newest = newest
        self._named = named
        self._lost = lost
        self._may_lag = may_lag
        self._together = together
        self._attempts = attempts

    def readings(self, versions: Sequence[ObjectVersion]) -> Iterator[Reading]:
        """Yield a read of these versions of one stream, then reads of objects with wrong content.

        The caller exhausts `Reading.chunks` of each. Raises `JetStreamError` for an object that is
        replaced each time it is read, and what ``read``, ``newest`` and ``lost`` raise.
        """
        reading = Reading(versions, self._read, self._together)
        yield reading
        for version, fault in zip(versions, reading.faults(), strict=True):
            if fault is not None:
                yield from self._again(version, fault)

    def _again(self, version: ObjectVersion, fault: str) -> Iterator[Reading]:
        """Yield reads of an object whose content was not right, until it is."""
        doubts = _DOUBTS
        backoff = Backoff(0.1)
        for _ in range(self._attempts):
            newer = self._newest(version)
            if newer is None:
                return
            if newer.has_content_of(version):
                # The same meta message with wrong content is damage,
                # unless a replica that lags has given it.
                if not doubts or not self._may_lag(newer):
                    self._lost(f"{self._named(version)} is damaged: {fault}")
                    return
                doubts -= 1
                backoff.pause()
            version = newer
            reading = Reading([version], self._read)
            yield reading
            (found,) = reading.faults()
            if found is None:
                return
            fault = found
        raise JetStreamError(
            f"{self._named(version)} was replaced again each time it was read, "
            f"{self._attempts} times"
        )
