"""Where rows go: the names and error texts that differ between the subjects of a stream and the keys of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_jetstream.protocol.pub_ack import Refusal, StoredAcks, reason


@dataclass(frozen=True)
class Target:
    """The stream or streams that rows go to, addressed by subject. `kv.KeyBucket` addresses keys instead.

    `stream` and `domain` are those that must store the rows, or None. `api_prefix` is the API prefix of the account
    that has the stream, None for the prefix of the connection.
    """

    stream: str | None = None
    domain: str | None = None
    api_prefix: str | None = None

    option: ClassVar[str] = "stream"
    """The option that names the stream, or the bucket."""

    def at(self, subject: str) -> Target:
        """Return the target that a subject belongs to: dead letters of a bucket go to a plain subject."""
        return self

    def misplaced(self, stored: StoredAcks, *, any_stream: bool) -> str | None:
        """Return why an acknowledgement does not count: it is of another stream (unless `any_stream`) or domain."""
        if self.domain is not None and stored.domain != self.domain:
            # A subject does not name a domain: the nearest stream that captures it stores the row.
            where = f"of domain {stored.domain}" if stored.domain else "without a domain"
            return f"stream {stored.stream} {where} stored it, not domain {self.domain} (option domain)"
        if self.stream is not None and stored.stream != self.stream and not any_stream:
            return f"stream {stored.stream} stored it, not {self.stream} (option {self.option})"
        return None

    def stored_at(self, subject: str) -> str:
        """Return the subject under which the stream stores what is published to `subject`."""
        return subject

    def place(self, subject: str) -> str:
        """Return where a row cannot be stored, as the end of the sentence "row 7 cannot be stored"."""
        return f"at subject {subject!r}"

    @property
    def no_stream(self) -> str:
        """Why a row cannot be stored when no stream captures its subject."""
        return "no stream captures this subject"

    @property
    def no_ack(self) -> str:
        """The likely reason why an acknowledgement never arrives."""
        return "a stream with no_ack gives none"

    def reason(self, refusal: Refusal, lines: bytes) -> str:
        """Return why the server refused a row with these header lines, and what to change."""
        return reason(refusal)
