"""What it means for a row that the server did not store it: one table from answers to outcomes. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jetstream.acks import NO_STREAM, Refusal
from spark_jetstream.errors import API_ERRORS, InsufficientResources, ServerBusy


class Outcome(enum.Enum):
    """What to do about a row that was not stored."""

    RETRY = "the same frame may be stored later: an election, a full queue, a full stream"
    LOOK = "it may be stored already, by an earlier try: look at what is in its place"
    REFUSED = "this row can never be stored; the others can"
    FAIL = "no row can be stored as things are"


#: err_code -> what it means (nats-server: server/errors.json); what is missing is worth a retry or fails.
_MEANING: Mapping[int, Outcome] = {
    10054: Outcome.REFUSED,  # message larger than the stream's max_msg_size
    10060: Outcome.REFUSED,  # another stream than option `stream` captures the subject
    10070: Outcome.REFUSED,  # wrong last message id
    10071: Outcome.LOOK,  # wrong last sequence: N
    10077: Outcome.RETRY,  # the store says no: a full stream with discard=new, most of all
    10097: Outcome.REFUSED,  # headers of more than 64 KiB
    10109: Outcome.FAIL,  # sealed stream
    10111: Outcome.REFUSED,  # rollup not permitted
    10164: Outcome.LOOK,  # wrong last sequence
    10165: Outcome.REFUSED,  # a TTL that cannot be read
    10166: Outcome.REFUSED,  # a TTL on a stream without allow_msg_ttl
}
_SUBJECT_IS_FULL = "maximum messages per subject"

_WRONG_SEQUENCE = "column expected_last_subject_sequence names another message than the last one on its subject"
_LIMITS = "raise the limits of the server or the account"

_ADVICE: Mapping[int, str] = {
    10002: _LIMITS,
    10023: _LIMITS,
    10028: _LIMITS,
    10047: _LIMITS,
    10054: "raise the stream's max_msg_size",
    10060: "another stream than the one in option stream captures this subject",
    10071: _WRONG_SEQUENCE,
    10077: "the stream is full and discards what is new: raise its limits or set discard to old",
    10097: "make column headers smaller: a server keeps 64 KiB of them",
    10109: "nothing can be written to a sealed stream any more: write to another one",
    10164: _WRONG_SEQUENCE,
    10165: "column ttl takes a duration of at least one second, such as 90s or 5m, or never",
    10166: "set allow_msg_ttl on the stream, or drop column ttl",
}


def queue_is_full(refusal: Refusal) -> bool:
    """Whether the stream has more waiting than it can hold: it stores rows all the same, so this one has its turn."""
    return refusal.err_code == 10167 or (refusal.err_code == 0 and refusal.code == 429)


def outcome(refusal: Refusal) -> Outcome:
    """What an answer means for its row."""
    if refusal.err_code == 0:
        return Outcome.RETRY if refusal.code in (NO_STREAM, 429) else Outcome.FAIL
    if refusal.err_code == 10077 and refusal.description.startswith(_SUBJECT_IS_FULL):
        return Outcome.REFUSED
    known = _MEANING.get(refusal.err_code)
    if known is not None:
        return known
    kind = API_ERRORS.get(refusal.err_code)
    return Outcome.RETRY if kind is not None and issubclass(kind, (ServerBusy, InsufficientResources)) else Outcome.FAIL


def reason(refusal: Refusal, advice: Mapping[int, str] = _ADVICE) -> str:
    """Why the row is not stored, in the server's words and with what to change where that is known.

    ``advice`` is what to change, by error code.
    """
    if refusal.err_code == 0 and refusal.code == NO_STREAM:
        return "no stream captures this subject, or its stream has no leader (status 503)"
    if refusal.err_code == 0:
        return f"the server answered with status {refusal.code} {refusal.description}".rstrip()
    full = refusal.description.startswith(_SUBJECT_IS_FULL)
    change = "raise the stream's max_msgs_per_subject" if full else advice.get(refusal.err_code)
    said = f"{refusal.description} (error {refusal.err_code})"
    return f"{said}: {change}" if change else said


@dataclass(frozen=True)
class Target:
    """Where rows go, and how errors speak of it: subjects, here; `kv.Bucket` has keys.

    ``api_prefix`` is where the API of the stream that stores them answers, None for the connection's own.
    """

    api_prefix: str | None = None

    @property
    def option(self) -> str:
        """The option that names the stream."""
        return "stream"

    def at(self, subject: str) -> Target:
        """What holds for this subject, which may be that of a dead letter."""
        return self

    def stored_at(self, subject: str) -> str:
        """The subject under which the stream keeps what is published to ``subject``."""
        return subject

    def place(self, subject: str) -> str:
        """Where a row cannot be stored, to be read after "cannot be stored"."""
        return f"at subject {subject!r}"

    @property
    def nobody(self) -> str:
        """Why a row cannot be stored that nobody listens for."""
        return "no stream captures this subject"

    @property
    def silence(self) -> str:
        """What it may mean that an acknowledgement never comes."""
        return "a stream with no_ack gives none"

    def reason(self, refusal: Refusal, lines: bytes) -> str:
        """Why a row with these header lines is not stored, and what to change."""
        return reason(refusal)
