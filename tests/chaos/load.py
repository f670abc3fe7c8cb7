"""Load for the fault suite: messages, revisions of keys, objects, lines of files, each with a text
of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_jetstream.buckets.objects import chunk_subject, meta_subject
from tests.chaos.scenario import FILES
from tests.support.objects import ROLLUP, meta_of
from tests.support.publish import Message, Publisher, Refused

_PAUSE = 0.1  # seconds between two portions of load
_PORTION = 5  # messages for each stream
SUBJECTS = 3
_KEPT = 30  # portions; a key gets 60 revisions, of the 64 that its bucket keeps
_REPLACED = 10  # portions; then objects get other names
_CHUNK = 8  # bytes


class Portion(NamedTuple):
    """Messages to publish to a stream, in steps that wait for each other, and each text's subject."""

    subjects: dict[str, str]
    steps: list[list[Message]]


def portion_of(stream: str, number: int) -> Portion:
    """Return a portion of load for a stream, or for the bucket that it belongs to."""
    texts = [f"{stream} {number} {n}" for n in range(_PORTION)]
    kind, _, bucket = stream.rpartition("_")
    if kind == "OBJ":
        names = [f"o{n}.{number // _REPLACED}" for n in range(_PORTION)]
        made = [_object(bucket, name, text) for name, text in zip(names, texts, strict=True)]
        # One message after the other: chunks that are stored in another order are another object.
        return Portion(
            dict(zip(texts, names, strict=True)), [[message] for steps in made for message in steps]
        )
    subjects = [f"{stream}.{n % SUBJECTS}" for n in range(_PORTION)]
    if kind == "KV":
        subjects = [f"$KV.{bucket}.k{n % SUBJECTS}.{number // _KEPT}" for n in range(_PORTION)]
    messages = [
        _message(subject, text, text) for subject, text in zip(subjects, texts, strict=True)
    ]
    return Portion(dict(zip(texts, subjects, strict=True)), [messages])


def _object(bucket: str, name: str, text: str) -> list[Message]:
    """The chunks and the meta message of an object with this content.

    The text of no other one is its ``nuid``.
    """
    nuid = text.replace(" ", "-")
    chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    meta = meta_of(bucket, name, nuid, [chunk.encode() for chunk in chunks])
    messages = [
        _message(chunk_subject(bucket, nuid), chunk, f"{nuid}.{n}")
        for n, chunk in enumerate(chunks)
    ]
    return [*messages, _message(meta_subject(bucket, name), meta.to_json().decode(), nuid, *ROLLUP)]


def _message(subject: str, data: str, name: str, *headers: tuple[str, str]) -> Message:
    return Message(subject, data.encode(), [("Nats-Msg-Id", name), *headers])


class Load:
    """Publishes to streams until it is ended. A portion without an answer is sent again under the
    same message ids.

    Those whose names begin with `FILES` are folders in `folder`, which get a file with each
    portion.

    `sent` and `stored` have the subject of each text, by stream: `stored` those that the server has
    acknowledged. `sequences` has those of messages; who goes through it while messages are
    published needs a copy. `refused` counts the error codes with which the server refused portions.
    """

    def __init__(self, urls: Sequence[str], streams: Sequence[str], folder: Path) -> None:
        self._urls = itertools.cycle(urls)
        self._folder = folder
        self.streams = list(streams)
        """Those that it publishes to: change it while the load is `held`."""
        self._last = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._number = 0
        self._pending: dict[str, Portion] = {}
        self._turn = threading.RLock()
        self.sequences: dict[str, dict[str, int]] = {name: {} for name in streams}
        self.refused: Counter[int] = Counter()
        self.sent: dict[str, dict[str, str]] = {name: {} for name in streams}
        self.stored: dict[str, dict[str, str]] = {name: {} for name in streams}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts nothing is published, and the server has acknowledged all that was."""
        with self._turn:
            yield

    @property
    def _ended(self) -> bool:
        return self._end.is_set() or (self._last.is_set() and not self._pending)

    def _run(self) -> None:
        while not self._ended:
            try:
                with contextlib.suppress(OSError), Publisher(next(self._urls)) as publisher:
                    while not self._ended:
                        self._publish(publisher)
                        time.sleep(_PAUSE)
            except Refused as error:
                self.refused[error.err_code] += 1
            time.sleep(_PAUSE)

    def _publish(self, publisher: Publisher) -> None:
        if not self._pending:
            self._turn.acquire()
            self._number += 1
            self._pending = {name: portion_of(name, self._number) for name in self.streams}
            for name, portion in self._pending.items():
                self.sent[name] |= portion.subjects
        for name, portion in list(self._pending.items()):
            if name.startswith(FILES):
                self._write(name, portion)
                sequences = []
            else:
                sequences = [
                    sequence
                    for messages in portion.steps
                    for sequence in publisher.publish(messages)
                ]
            self.stored[name] |= portion.subjects
            if len(sequences) == len(portion.subjects):
                self.sequences[name] |= zip(portion.subjects, sequences, strict=True)
            del self._pending[name]
        self._turn.release()

    def _write(self, name: str, portion: Portion) -> None:
        hidden = self._folder / name / f".{self._number}"
        hidden.write_text("".join(f"{text}\n" for text in portion.subjects))
        hidden.rename(hidden.with_name(f"{self._number}.txt"))

    def finish(self) -> None:
        """End when the portion that is under way is stored."""
        self._last.set()
        self._thread.join()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()
