"""A connection of the package whose requests are noted, delayed, changed or refused by a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.options import ConnectionOptions


class WatchedConnection:
    """The process's connection, which notes what is asked for.

    `before` and `after` a request anything may happen. `change` may return another body for it.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.subjects: list[str] = []
        self.before: Callable[[str], None] = lambda subject: None
        self.after: Callable[[str], None] = lambda subject: None
        self.change: Callable[[str, bytes], bytes | None] = lambda subject, body: None

    def __call__(self, seconds: float) -> Connection:
        return cast(Connection, self)

    @property
    def real(self) -> Connection:
        return connect(self.options, patience=10.0)

    def api(self, subject: str, body: bytes, *, context: str, **_: Any) -> dict[str, Any]:
        self.subjects.append(subject.removeprefix("$JS.API."))
        self.before(self.subjects[-1])
        body = self.change(self.subjects[-1], body) or body
        reply = self.real.api(subject, body, context=context)
        self.after(self.subjects[-1])
        return reply

    ask = api

    def ask_all(self, questions: Sequence[Question], **given: Any) -> Any:
        asked = [question.subject.removeprefix("$JS.API.") for question in questions]
        for subject in asked:
            self.subjects.append(subject)
            self.before(subject)
        replies = self.real.ask_all(questions, **given)
        for subject in asked:
            self.after(subject)
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def deny(self, request: str) -> None:
        """Refuse requests whose subjects begin so, as for an account that may not publish there."""

        def refuse(subject: str) -> None:
            if subject.startswith(request):
                raise PermissionDenied("not allowed", subject=subject)

        self.before = refuse

    def asked(self, work: Callable[[], None]) -> list[str]:
        """Return the first two words of each request that `work` makes."""
        before = len(self.subjects)
        work()
        return [".".join(subject.split(".")[:2]) for subject in self.subjects[before:]]
