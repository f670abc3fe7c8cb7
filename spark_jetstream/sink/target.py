"""Where rows go: the names and error texts of the subjects of a stream, and of the keys of a bucket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spark_jetstream.buckets.kv import WRONG_REVISION, Origin, last_revision
from spark_jetstream.protocol.pub_ack import ADVICE, NO_STREAM, Refusal, StoredAcks, reason
from spark_jetstream.sink.kv import expected_revision

_ADVICE = {**ADVICE, 10060: "another stream than the one in option stream captures this subject"}


@dataclass(frozen=True)
class Target:
    """The stream or streams that rows go to, addressed by subject. `KeyBucket` addresses keys instead.

    `stream` and `domain` are those that must store the rows, or None. `api_prefix` is the API prefix of the account
    that has the stream, None for the prefix of the connection. `noun` is what errors call a row.
    """

    stream: str | None = None
    domain: str | None = None
    api_prefix: str | None = None
    noun: str = field(default="row", kw_only=True)

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

    def reason(self, refusal: Refusal, lines: bytes) -> str:
        """Return why the server refused a row with these header lines, and what to change."""
        return (
            reason(refusal, _ADVICE) if self.noun == "row" else reason(refusal, {})
        )  # the advice names columns


@dataclass(frozen=True)
class KeyBucket(Target):
    """A bucket to write to. `origin` is the bucket that stores the rows: the one that it mirrors, or itself.

    `history`: it keeps more than one revision of a key; False also where the account cannot see that.
    """

    option: ClassVar[str] = "bucket"

    name: str = ""
    origin: Origin = field(default_factory=lambda: Origin("", None, ""))
    history: bool = False

    @classmethod
    def of(cls, name: str, prefix: str, mirror: Mapping[str, Any] | None = None) -> KeyBucket:
        """Return the bucket `name` behind an API prefix; `mirror` is that of its stream's configuration, if any.

        Raises `OptionError` for a mirror of a stream that is no bucket.
        """
        origin = Origin.of(name, prefix, mirror)
        return cls(origin.stream, None, origin.api_prefix, name, origin)

    @property
    def no_stream(self) -> str:
        return f"there is no Key-Value bucket {self.origin.bucket} any more"

    def at(self, subject: str) -> Target:
        """Return this bucket for the subject of a key, and a plain target for that of a dead letter."""
        return self if subject.startswith(self.origin.write_prefix) else Target()

    def stored_at(self, subject: str) -> str:
        return self.origin.subject(subject.removeprefix(self.origin.write_prefix))

    def place(self, subject: str) -> str:
        return f"under key {subject.removeprefix(self.origin.write_prefix)!r} of bucket {self.name}"

    def reason(self, refusal: Refusal, lines: bytes) -> str:
        if refusal.err_code == 0 and refusal.code == NO_STREAM:
            return (
                f"nobody answers at {self.origin.write_prefix}> (status 503): the bucket has no leader, or what is "
                "published there does not reach it"
            )
        wrong = "column expected_revision"
        expected = expected_revision(lines)
        if refusal.err_code == WRONG_REVISION and expected is not None:
            latest = last_revision(refusal.description)
            there = (
                "has another one"
                if latest is None
                else f"has revision {latest}"
                if latest
                else "does not exist"
            )
            wanted = (
                f"is {expected}, and the key {there}" if expected else f"is 0, but the key {there}"
            )
            wrong = f"column expected_revision {wanted}: read it again before changing it"
        advice = {
            10054: f"raise the bucket's largest value size (max_msg_size of stream {self.stream})",
            10077: f"the bucket is full: raise its size (max_bytes of stream {self.stream})",
            10109: f"nothing can be written to a sealed bucket any more (stream {self.stream})",
            10111: f"operation PURGE needs allow_rollup_hdrs on stream {self.stream}",
            10165: "column ttl takes a duration of at least one second, such as 90s or 5m, or never",
            10166: f"set allow_msg_ttl on stream {self.stream} (limit markers do so), or drop column ttl",
            WRONG_REVISION: wrong,
        }
        return reason(refusal, advice)
