"""What one line of an account's permissions is, and the names that the subjects of such lines are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_jetstream import jsapi
from spark_jetstream.subjects import common_subjects

Kind = Literal["publish", "subscribe"]


@dataclass(frozen=True)
class Permission:
    """One line of what an account is allowed: to publish to, or to subscribe to, the subjects that a filter matches.

    ``why`` says what it is for. ``when`` says in which case it is needed, "" for always. ``without`` says what happens
    where it is missing, for lines that things go on without; "" for a line whose absence is an error.
    """

    subject: str
    why: str
    when: str = ""
    without: str = ""
    kind: Kind = "publish"

    def covers(self, other: Permission) -> bool:
        """Whether it allows all that the other one does."""
        return self.kind == other.kind and common_subjects(self.subject, other.subject) == other.subject


@dataclass(frozen=True)
class Names:
    """What the lines are about. ``subjects``: None for whatever filters there may be."""

    stream: str
    bucket: str
    subjects: tuple[str, ...] | None
    durable: str
    dead_letter: str
    prefix: str

    def api(self, api_subject: str, **names: str) -> str:
        """One of `api_subjects`, as a filter: what has no name is any."""
        known = {"stream": self.stream, "consumer": "*", "filter": ">", "subject": ">"}
        return f"{self.prefix}.{api_subject.format(**{**known, **names})}"

    def data(self, subject: str) -> str:
        """Where to publish what a Key-Value bucket stores on a subject: behind a domain or an API prefix, below it."""
        return subject if self.prefix == jsapi.DEFAULT_PREFIX else f"{self.prefix}.{subject}"

    def of(self, stream: str, subjects: Sequence[str] | None) -> Names:
        """The same about another stream."""
        return replace(self, stream=stream, subjects=None if subjects is None else tuple(subjects))


Lines = Iterator[Permission]
