"""Streams that store what the connector itself sends and receives. Pure.

Reading or writing makes them grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jetstream.protocol.jsapi import DEFAULT_PREFIX
from spark_jetstream.protocol.subjects import subjects_overlap

AUDITS = (
    "$JS.EVENT.ADVISORY.API",
    "$JS.EVENT.ADVISORY.CONSUMER.CREATED.>",
    "$JS.EVENT.ADVISORY.CONSUMER.DELETED.>",
)
"""Subjects at which a server tells of requests of the API, and of consumers, such as of tasks."""
_ANY_INBOX = "_INBOX_OF_A_READER.>"


def in_other_account(api_prefix: str | None) -> bool:
    """Whether streams are those of another account.

    It gets requests, and sends replies, at other subjects.
    """
    return api_prefix not in (None, DEFAULT_PREFIX)


def stored_replies(
    subjects: Sequence[str], api_prefix: str | None, inbox_prefix: str
) -> tuple[str, ...]:
    """Return the subjects of a stream that match inboxes.

    The stream stores replies, and messages on their way to a reader. A stream of another account
    gets none of these.
    """
    if in_other_account(api_prefix):
        return ()
    return _matching(subjects, f"{inbox_prefix}.>")


def stores_any_inbox(subjects: Sequence[str]) -> bool:
    """Whether subjects match inboxes whatever their prefix is, as ``>`` does."""
    return bool(_matching(subjects, _ANY_INBOX))


def stored_requests(
    subjects: Sequence[str], filters: Sequence[str], api_prefix: str
) -> tuple[str, ...]:
    """Return subjects of messages that a read both causes and gets.

    ``subjects`` are those of the stream, ``filters`` those of the read. If the result is not empty,
    the read never reaches the end of the stream: its requests, and the server's events about them,
    are stored after it.
    """
    # A server turns the prefix of a domain into its own one, so both subjects count.
    causes = (f"{DEFAULT_PREFIX}.>", f"{api_prefix}.>", *AUDITS)
    found = []
    for cause in dict.fromkeys(causes):
        stored = _matching(subjects, cause)
        if stored and (not filters or _matching(filters, cause)):
            found.append(cause)
    return tuple(found)


def _matching(subjects: Sequence[str], other: str) -> tuple[str, ...]:
    """Return the subjects, with wildcards, that have a subject in common with another one."""
    return tuple(each for each in subjects if subjects_overlap(each, other))
