"""Where rows go: names and error texts of subjects of a stream, and of keys of a bucket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spark_jetstream.buckets.kv import Origin, last_revision
from spark_jetstream.options import advice
from spark_jetstream.protocol.pub_ack import (
    NO_STREAM,
    Cause,
    Refusal,
    RefusalCode,
    StoredAcks,
    StoreFault,
    reason,
)

_TTL_FORMAT = "column ttl takes a duration of at least one second, such as 90s or 5m, or never"
#: What to change in a row, or in the stream, when the server refuses the row.
_ADVICE: Mapping[Cause, str] = {
    **advice.REFUSED_MESSAGES,
    RefusalCode.OTHER_STREAM: "another stream than the one in option stream captures this subject",
    RefusalCode.WRONG_LAST_SEQUENCE: (
        "column expected_last_subject_sequence names another message than the last one on its "
        "subject"
    ),
    RefusalCode.HEADERS_TOO_LARGE: "make column headers smaller: a server keeps 64 KiB of them",
    RefusalCode.ROLLUP_DISABLED: "set allow_rollup_hdrs on the stream, or drop column rollup",
    RefusalCode.TTL_INVALID: _TTL_FORMAT,
    RefusalCode.TTL_DISABLED: (
        "set allow_msg_ttl on the stream, or drop column ttl or schedule_ttl"
    ),
    RefusalCode.COUNTERS_DISABLED: (
        "counters need a stream made with allow_msg_counter; for another one, drop column incr"
    ),
    RefusalCode.INCREMENT_MISSING: (
        "the stream holds counters (allow_msg_counter): give each row a value in column incr"
    ),
    RefusalCode.INCREMENT_HAS_PAYLOAD: (
        "a row with column incr has no payload: leave column data null"
    ),
    RefusalCode.INCREMENT_INVALID: (
        "column incr takes an integer, and allows no other demand on the server"
    ),
    RefusalCode.COUNTER_BROKEN: (
        "the last message on this subject is broken: delete it, whose increment is then lost"
    ),
    RefusalCode.BATCHES_DISABLED: (
        "a subject of the group belongs to a stream without allow_atomic: a group is for one stream"
    ),
    RefusalCode.BATCH_INCOMPLETE: "does the stream capture the subjects of all rows?",
    RefusalCode.BATCH_TOO_LARGE: (
        "make the group smaller, or raise the server's limit (jetstream, max_batch_size)"
    ),
    RefusalCode.BATCH_HAS_KNOWN_ID: (
        "some of its rows are stored, and others are not: is column msg_id right?"
    ),
    RefusalCode.SCHEDULES_DISABLED: (
        "set allow_msg_schedules on the stream, or drop column schedule"
    ),
    RefusalCode.SCHEDULE_INVALID: (
        "column schedule takes a time with its zone, as 2030-01-31T08:00:00Z or after @at; "
        "since nats-server 2.14 also @every with one second or more, cron with six fields, @hourly, "
        "@daily, @weekly, @monthly and @yearly; a row with schedule_time_zone takes neither @at "
        "nor @every"
    ),
    RefusalCode.SCHEDULE_TARGET_INVALID: (
        "column schedule_target must be another subject of the same stream, without wildcards"
    ),
    RefusalCode.SCHEDULE_TTL_INVALID: (
        "column schedule_ttl takes at least one second, such as 90s or 5m, or never"
    ),
    RefusalCode.SCHEDULE_ROLLUP_INVALID: (
        "column rollup must be sub or null in a row with a schedule"
    ),
    RefusalCode.SCHEDULE_SOURCE_INVALID: (
        "column schedule_source must be a subject of the same stream, without wildcards, and "
        "neither that of the row nor schedule_target"
    ),
    RefusalCode.SCHEDULE_TIME_ZONE_INVALID: (
        "column schedule_time_zone takes a name of the IANA time zone database that the server's "
        "machine has, such as Europe/Berlin"
    ),
}


@dataclass(frozen=True)
class Target:
    """The stream or streams that rows go to, addressed by subject.

    `KeyBucket` addresses keys instead.

    `stream` and `domain` are those that must store the rows, or None. `api_prefix` is the API
    prefix of the account that has the stream, None for the prefix of the connection. `noun` is what
    errors call a row.
    """

    stream: str | None = None
    domain: str | None = None
    api_prefix: str | None = None
    noun: str = field(default="row", kw_only=True)

    option: ClassVar[str] = "stream"
    """The option that names the stream, or the bucket."""

    def at(self, subject: str) -> Target:
        """Return the target of a subject: dead letters of a bucket go to a plain subject."""
        return self

    def misplaced(self, stored: StoredAcks, *, any_stream: bool) -> str | None:
        """Return why an acknowledgement counts for nothing: another stream, or another domain.

        With `any_stream` any stream of the domain may have stored the row.
        """
        if self.domain is not None and stored.domain != self.domain:
            # A subject does not name a domain: the nearest stream that captures it stores the row.
            where = f"of domain {stored.domain}" if stored.domain else "without a domain"
            said = f"stream {stored.stream} {where} stored it"
            return f"{said}, not domain {self.domain} (option domain)"
        # Increments, and rows on servers before 2.11.6, do not name the stream:
        # only the acknowledgement tells it.
        if self.stream is not None and stored.stream != self.stream and not any_stream:
            return f"stream {stored.stream} stored it, not {self.stream} (option {self.option})"
        return None

    def stored_at(self, subject: str) -> str:
        """Return the subject under which the stream stores what is published to `subject`."""
        return subject

    def place(self, subject: str) -> str:
        """Return where a row cannot be stored, as the end of "row 7 cannot be stored"."""
        return f"at subject {subject!r}"

    @property
    def no_stream(self) -> str:
        """Why a row cannot be stored when no stream captures its subject."""
        return "no stream captures this subject"

    def reason(self, refusal: Refusal, expected: int | None) -> str:
        """Return why the server refused a row, and what to change.

        `expected` is the last sequence that the row demanded of its subject.
        """
        if self.noun == "row":
            return reason(refusal, _ADVICE)
        # A message that the sink makes itself has no columns that the user could change.
        return reason(refusal, advice.SINGLE_MESSAGES)


@dataclass(frozen=True)
class KeyBucket(Target):
    """A bucket to write to.

    `origin` is the bucket that stores the rows: the one that it mirrors, or itself.

    `history`: it keeps more than one revision of a key; False also where the account cannot see
    that.
    """

    option: ClassVar[str] = "bucket"

    name: str = ""
    origin: Origin = field(default_factory=lambda: Origin("", None, ""))
    history: bool = False

    @classmethod
    def of(cls, name: str, prefix: str, mirror: Mapping[str, Any] | None = None) -> KeyBucket:
        """Return the bucket `name` behind an API prefix.

        `mirror` is that of its configuration, if any.

        Raises `OptionError` for a mirror of a stream that is no bucket.
        """
        # Nobody can publish to a mirror, so its rows go to the bucket that it copies.
        origin = Origin.of(name, prefix, mirror)
        return cls(origin.stream, None, origin.api_prefix, name, origin)

    @property
    def no_stream(self) -> str:
        return f"there is no Key-Value bucket {self.origin.bucket} any more"

    def at(self, subject: str) -> Target:
        """Return this bucket for the subject of a key, and a plain target for a dead letter."""
        if subject.startswith(self.origin.write_prefix):
            return self
        return Target()

    def stored_at(self, subject: str) -> str:
        # Behind a domain or an account import, a row is published under another subject
        # than the one that the stream keeps.
        return self.origin.subject(subject.removeprefix(self.origin.write_prefix))

    def place(self, subject: str) -> str:
        return f"under key {subject.removeprefix(self.origin.write_prefix)!r} of bucket {self.name}"

    def reason(self, refusal: Refusal, expected: int | None) -> str:
        if refusal.err_code == 0 and refusal.code == NO_STREAM:
            return (
                f"nobody answers at {self.origin.write_prefix}> (status 503): the bucket has no "
                "leader, or what is published there does not reach it"
            )
        return reason(refusal, self._advice(refusal, expected))

    def _advice(self, refusal: Refusal, expected: int | None) -> Mapping[Cause, str]:
        """Return what to change in a row with this expected revision, or in the bucket."""
        stream = f"stream {self.stream}"
        wrong = "column expected_revision"
        if expected is not None:
            wrong = f"{wrong} {_revisions(expected, last_revision(refusal.description))}"
        return {
            **advice.SINGLE_MESSAGES,
            StoreFault.STREAM_FULL: f"the bucket is full: raise its size (max_bytes of {stream})",
            RefusalCode.MESSAGE_TOO_LARGE: (
                f"raise the bucket's largest value size (max_msg_size of {stream})"
            ),
            RefusalCode.STREAM_SEALED: (
                f"nothing can be written to a sealed bucket any more ({stream})"
            ),
            RefusalCode.ROLLUP_DISABLED: f"operation PURGE needs allow_rollup_hdrs on {stream}",
            RefusalCode.TTL_INVALID: _TTL_FORMAT,
            RefusalCode.TTL_DISABLED: (
                f"set allow_msg_ttl on {stream} (limit markers do so), or drop column ttl"
            ),
            RefusalCode.WRONG_LAST_SEQUENCE: wrong,
        }


def _revisions(expected: int, latest: int | None) -> str:
    """Return how the expected revision of a key differs from its latest one, None if unknown.

    Revision 0 is that of a key that does not exist.
    """
    if latest is None:
        key = "has another one"
    elif latest:
        key = f"has revision {latest}"
    else:
        key = "does not exist"
    comparison = f"is {expected}, and the key {key}" if expected else f"is 0, but the key {key}"
    return f"{comparison}: read it again before changing it"
