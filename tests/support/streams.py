"""A stream of a test's own, and what was stored in it, by what was published and what the server
says of it.
"""

from __future__ import annotations

import calendar
import itertools
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from spark_jetstream.testing.process import poll
from tests.support.publish import Message, Publisher


class Stored(NamedTuple):
    """A message as a row of the source should show it; `micros` are microseconds since the epoch."""

    stream: str
    subject: str
    sequence: int
    micros: int
    headers: dict[str, list[str]] | None
    data: bytes


class Stream:
    """A stream on a server, made at once.

    Its subjects begin with `subject`, unless `config` says otherwise.
    """

    def __init__(
        self, url: str, name: str, publisher: Publisher | None = None, **config: Any
    ) -> None:
        self.url = url
        self.name = name
        self.subject = name.lower()
        self.publisher = Publisher(url) if publisher is None else publisher
        self.messages: dict[int, Message] = {}
        self._config = {
            "name": name,
            "subjects": [f"{self.subject}.>"],
            "storage": "file",
            **config,
        }
        self.create()

    def create(self) -> None:
        """Make the stream, and seal it afterwards if its configuration says so: no server makes a
        sealed one.
        """
        self.messages.clear()
        self.publisher.api(f"STREAM.CREATE.{self.name}", {**self._config, "sealed": False})
        if self._config.get("sealed"):
            self.update()

    def update(self, **config: Any) -> None:
        """Give the stream its first configuration again, with these changes."""
        self.publisher.api(f"STREAM.UPDATE.{self.name}", {**self._config, **config})

    def delete(self) -> None:
        self.publisher.api(f"STREAM.DELETE.{self.name}")

    def reconnect(self) -> None:
        """A new connection, after the server was restarted."""
        self.publisher = Publisher(self.url)

    def send(self, *messages: Message) -> list[int]:
        """Store messages as they are; their sequences."""
        sequences = self.publisher.publish(messages)
        self.messages.update(zip(sequences, messages, strict=True))
        return sequences

    def fill(self, count: int, suffix: str = "a", size: int = 0) -> list[int]:
        """Store `count` small messages that all differ, at `subject.suffix`; their sequences."""
        return self.fill_in_turn(count, [suffix], size)

    def fill_in_turn(self, count: int, suffixes: Iterable[str], size: int = 0) -> list[int]:
        """The same, at the subjects in turn."""
        first = max(self.messages, default=0) + 1
        numbered = zip(range(first, first + count), itertools.cycle(suffixes), strict=False)
        texts = ((suffix, f"{self.name} {suffix} {number}".encode()) for number, suffix in numbered)
        return self.send(
            *(Message(f"{self.subject}.{suffix}", text.ljust(size, b".")) for suffix, text in texts)
        )

    def remove(self, *sequences: int) -> None:
        for sequence in sequences:
            self.publisher.api(
                f"STREAM.MSG.DELETE.{self.name}", {"seq": sequence, "no_erase": True}
            )
            self.messages.pop(sequence, None)

    def purge(self, **which: Any) -> None:
        """Purge everything, or what `seq`, `filter`, `keep` say."""
        self.publisher.api(f"STREAM.PURGE.{self.name}", which)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.publisher.api(f"STREAM.INFO.{self.name}")["state"]
        return state

    def last_age(self) -> int:
        """The nanoseconds since the server stored the last message, by its clock."""
        info = self.publisher.api(f"STREAM.INFO.{self.name}")
        return nanoseconds(info["ts"]) - nanoseconds(info["state"]["last_ts"])

    def stored_time(self, sequence: int) -> int:
        """When the server stored a message, in nanoseconds since the epoch, by STREAM.MSG.GET."""
        reply = self.publisher.api(f"STREAM.MSG.GET.{self.name}", {"seq": sequence})
        return nanoseconds(reply["message"]["time"])

    def rows(self, *sequences: int) -> list[Stored]:
        """The rows of these messages; of all that were published through this object if none is
        named.
        """
        rows = []
        for sequence in sequences or sorted(self.messages):
            message, micros = self.messages[sequence], self.stored_time(sequence) // 1000
            rows.append(
                Stored(
                    self.name,
                    message.subject,
                    sequence,
                    micros,
                    message.expected_headers,
                    message.data,
                )
            )
        return rows

    def wait_for(self, messages: int, timeout: float = 60.0) -> None:
        """Wait until the stream holds exactly `messages` messages."""
        poll(
            lambda: True if self.state()["messages"] == messages else None,
            timeout,
            lambda: TimeoutError(
                f"not seen within {timeout:g} s: {messages} messages in {self.name}: {self.state()}"
            ),
        )


def iso(nanoseconds: int) -> str:
    """A time as an option takes it, to the nanosecond, in another zone than UTC."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds + 7200)) + f".{fraction:09d}+02:00"
    )


def nanoseconds(text: str) -> int:
    """A time as the server prints it, in nanoseconds since the epoch, by integer arithmetic."""
    parts = re.fullmatch(r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)(?:\.(\d+))?Z", text)
    assert parts is not None, text
    seconds = calendar.timegm(tuple(int(part) for part in parts.groups()[:6]))
    return seconds * 1_000_000_000 + int((parts[7] or "0").ljust(9, "0"))


#: The fixture `stream`, which makes streams.
MakeStream = Callable[..., Stream]
