"""Streams of a test's own whose messages are known: what was stored in each life, and what the
server has of it now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jetstream.admin.streams import Streams
from tests.model.filters import contains, matches
from tests.model.query import Position
from tests.support.client import take
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import wait_until
from tests.support.streams import Stored, nanoseconds

HOUR = 3600 * 10**9
LAST = 2**62


def present_in(info: Mapping[str, Any]) -> set[int]:
    """The sequences of the messages in a stream, from its STREAM.INFO with `deleted_details`."""
    state = info["state"]
    # An empty stream may have a first sequence that a purge was to take, and not list it as
    # deleted.
    if not state["messages"]:
        return set()
    whole = range(max(1, state["first_seq"]), state["last_seq"] + 1)
    return set(whole) - set(state.get("deleted") or ())


def look_at(ask: Callable[[str, dict[str, Any]], dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the STREAM.INFO of a stream that `present_in` needs; `ask` asks the JetStream API."""
    return ask(f"STREAM.INFO.{name}", {"deleted_details": True})


@dataclass
class Life:
    """A stream from its creation to its deletion.

    `info` is the server's last word, and `present` are the sequences.
    """

    created: str
    info: dict[str, Any] = field(default_factory=dict)
    stored: dict[int, Stored] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)
    purged_to: int = 0
    """Up to where the stream was emptied by purges that move the query's durable consumer, so that
    the reader knows.
    """
    maybe_purged_to: int = 0
    """Up to where they may have moved the consumer."""
    deleted_to: int = 0
    """Up to where messages were deleted one by one; a commit to there moves the consumer of a work
    queue on.
    """

    @property
    def first(self) -> int:
        return max(1, int(self.info["state"]["first_seq"]))

    @property
    def last(self) -> int:
        return int(self.info["state"]["last_seq"])

    def setting(self, name: str) -> Any:
        return self.info["config"].get(name) or 0

    def matching(self, filters: str, first: int = 1, end: int = LAST) -> set[int]:
        """The sequences of a range whose messages the stream has now, and that match."""
        return {
            n for n in self.present if first <= n < end and matches(self.stored[n].subject, filters)
        }

    def last_match(self, filters: str) -> int:
        """The last sequence that a query without limits reads up to."""
        return max(self.matching(filters), default=0) if filters else self.last

    def dense(self, filters: str) -> bool:
        return not filters and not self.info["state"].get("num_deleted")

    def limits_reach(self, position: Position) -> str:
        """Whether a limit can have removed a message from the position on: "no", "unknown" or
        "yes".

        docs/data-loss.md, "Limits"; no history lasts as long as `max_age`.
        """
        state, doubt = self.info["state"], bool(self.setting("allow_msg_ttl"))
        if self.setting("discard") != "new":
            if 0 < self.setting("max_msgs") < self.last + 1 - position.next:
                if state["messages"] >= self.setting("max_msgs"):
                    return "yes"
                doubt = True
            if self.setting("max_bytes") > 0:
                if state["bytes"] * 10 >= self.setting("max_bytes") * 9:
                    return "yes"
                doubt = True
        return "unknown" if doubt else "no"

    def purged(self, purge: str, filters: str, end: int = 0) -> None:
        """Note a purge: it moves a durable consumer if one of their filters contains the other."""
        pairs = [(own, purge or ">") for own in (filters or ">").split(",")]
        if any(contains(a, b) or contains(b, a) for a, b in pairs):
            self.purged_to = max(self.purged_to, self.first)
            self.maybe_purged_to = max(self.maybe_purged_to, self.first, end or self.last + 1)


class Kept:
    """A stream, and all of its lives; `life` is None while it does not exist.

    Its subjects begin with `subject`.
    """

    def __init__(
        self, url: str, publisher: Publisher, name: str, subject: str, config: dict[str, Any]
    ) -> None:
        self.url = url
        self.publisher = publisher
        self.name = name
        self.subject = subject
        self.config = config
        self.life: Life | None = None
        self.lives: dict[str, Life] = {}
        self._saved: tuple[Path, dict[str, Any], Life] | None = None

    def create(self) -> None:
        self._configure("CREATE")

    def update(self, changes: dict[str, Any]) -> None:
        self.config = {**self.config, **changes}
        self._configure("UPDATE")

    def _configure(self, kind: str) -> None:
        config = {"name": self.name, "subjects": [f"{self.subject}.>"], **self.config}
        self.publisher.api(f"STREAM.{kind}.{self.name}", config)
        self.look()

    def delete(self) -> None:
        self.publisher.api(f"STREAM.DELETE.{self.name}")
        self.life = None

    def look(self) -> Life:
        """Ask the server which messages the stream has now."""
        info = look_at(self.publisher.api, self.name)
        life = self.life = self.lives.setdefault(info["created"], Life(info["created"]))
        life.info = info
        life.present = present_in(info)
        return life

    def publish(self, message: Message) -> str:
        """Store a message, if the server takes it; return what the server said."""
        assert self.life is not None
        try:
            (sequence,) = self.publisher.publish([message])
        except Refused as refusal:
            return str(refusal)
        try:
            time = self.publisher.api(f"STREAM.MSG.GET.{self.name}", {"seq": sequence})["message"][
                "time"
            ]
        except Refused:  # nobody wants it, or a limit has taken it
            return f"{sequence}, gone"
        self.life.times[sequence] = at = nanoseconds(time)
        self.life.stored[sequence] = Stored(
            self.name, message.subject, sequence, at // 1000, message.expected_headers, message.data
        )
        return str(sequence)

    def acknowledge(self, consumer: str, most: int, filters: str) -> list[int]:
        """Let a consumer take messages; wait until those are gone that the query does not read."""
        acknowledged = take(self.url, self.name, consumer, most)
        life = self.look()
        others = {n for n in acknowledged if not matches(life.stored[n].subject, filters)}
        wait_until(lambda: not others & self.look().present, f"{self.name} without {others}")
        return acknowledged

    def back_up(self, streams: Streams, folder: Path) -> None:
        if self._saved is None and self.life is not None:
            streams.backup(self.name, folder, consumers=False)
            self._saved = folder, self.config, self.life

    def restore(self, streams: Streams) -> bool:
        """Make the stream from its backup, if there is one: another stream for a query, with
        messages of before.
        """
        if self._saved is None:
            return False
        folder, self.config, before = self._saved
        streams.restore(folder)
        life = self.look()
        life.stored, life.times = before.stored.copy(), before.times.copy()
        return True
