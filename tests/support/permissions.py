"""Purposes tried out by users who have all permissions of them, and by users who lack one.

Each of the users has a JetStream account of its own on a server. So nothing that one does, or
leaves undone, reaches the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.errors import (
    JetStreamError,
    OutageError,
    PermissionDenied,
    RequestTimeout,
    RowRefused,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.permissions import Permission, user_config
from spark_jetstream.testing import NatsServer
from tests.support.publish import Message, Publisher
from tests.support.reading import api, create

INBOX = "_INBOX_spark"
PASSWORD = "pw"
_QUICK = {
    "connectTimeout": "2s",
    "requestTimeout": "2s",
    "retryTimeout": "4s",
    "inboxPrefix": INBOX,
}
_numbers = itertools.count(1)


class Account:
    """An account of a server, with an admin who may do everything and a user who may do what the
    lines say.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.number = next(_numbers)
        self._given = given or {}
        self._url = ""

    def config(self, lines: Sequence[Permission]) -> str:
        admin = f"{{ user: admin{self.number}, password: {PASSWORD} }}"
        return f"""A{self.number} {{ jetstream: enabled, users: [ {admin}
{user_config(f"spark{self.number}", PASSWORD, lines)} ] }}"""

    def settle(self, url: str) -> None:
        self._url = url

    @property
    def admin(self) -> str:
        return self._url.replace("//", f"//admin{self.number}:{PASSWORD}@")

    @property
    def login(self) -> dict[str, str]:
        """The connection options of the user."""
        return {
            **_QUICK,
            "servers": self._url,
            "user": f"spark{self.number}",
            "password": PASSWORD,
            **self._given,
        }

    def connect(self, patience: float = 2.0) -> Connection:
        return connect(ConnectionOptions.from_spark(self.login), patience=patience)

    def make(self, stream: str, **config: Any) -> None:
        """A stream with the subjects `<stream in lower case>.>`, in memory."""
        create(self.admin, stream, **{"subjects": [f"{stream.lower()}.>"], **config})

    def fill(self, *subjects: str, data: bytes = b"data") -> None:
        """One message at each of these subjects."""
        with Publisher(self.admin) as publisher:
            publisher.publish(Message(subject, data) for subject in subjects)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return api(self.admin, path, body)


@contextmanager
def served(accounts: Mapping[Account, Sequence[Permission]], config: str = "") -> Iterator[None]:
    """Run a server with these accounts, whose users have these permissions; ``config`` is more of
    its configuration.
    """
    texts = "\n".join(account.config(lines) for account, lines in accounts.items())
    with NatsServer(config=f"{config}\naccounts {{ {texts} }}") as server:
        for account in accounts:
            account.settle(server.url)
        try:
            yield
        finally:
            close_all()
            server.kill()  # it would wait five seconds for the rest of a restore


Work = Callable[[Account], None]


@dataclass(frozen=True)
class Case:
    """A purpose with the permissions it is tried out with.

    ``prepare`` makes what is there before, as the admin. ``work`` does all that the purpose is
    about, as the user. ``fallbacks`` are for lines whose absence is no error: a part of their
    subject -> what happens then, if not work. ``given`` are more options of the user, ``config`` is
    more of the server's configuration. ``account`` says how the user's account is set up.
    """

    name: str
    lines: tuple[Permission, ...]
    prepare: Work
    work: Work
    fallbacks: Mapping[str, Work] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    account: type[Account] = Account

    def run(self) -> None:
        """Check that the permissions are enough."""
        account = self.account(self.given)
        with served({account: self.lines}, self.config):
            self.prepare(account)
            self.work(account)

    def run_without_each(self) -> None:
        """Check that each permission is needed."""
        users = {Account(self.given): line for line in self.lines}
        rest = {
            user: [line for line in self.lines if line is not missing]
            for user, missing in users.items()
        }
        with served(rest, self.config), ThreadPoolExecutor(8) as threads:
            problems = [*filter(None, threads.map(self._problem_without, users, users.values()))]
        assert not problems, "\n".join(problems)

    def _problem_without(self, account: Account, missing: Permission) -> str:
        """Return the fault when this permission is missing; "" if the error names it, or the
        fallback works.
        """
        self.prepare(account)
        if missing.without:
            next(
                (work for part, work in self.fallbacks.items() if part in missing.subject),
                self.work,
            )(account)
            return ""
        what = f"{self.name} without {missing.kind} {missing.subject}"
        try:
            self.work(account)
        except (PermissionDenied, RowRefused) as error:
            # A row's subject stands there as it was published, with the domain that the server took
            # out.
            subject = (error.subject or "").removeprefix("$JS.hub.API.")
            denied = "may not" in str(error) and missing.covers(
                Permission(subject, "", kind=missing.kind)
            )
            return "" if denied else f"{what}: names {error.subject}: {error!r}"
        except (RequestTimeout, OutageError) as error:
            return f"{what}: takes its time: {error!r}"
        except JetStreamError as error:
            words = [word.strip(",;:()'") for word in str(error).split()]
            named = any(missing.covers(Permission(word, "", kind=missing.kind)) for word in words)
            return "" if named else f"{what}: does not name the subject: {error!r}"
        return f"{what}: nothing fails"


def parameters(cases: Sequence[Case], *quick: str) -> list[Any]:
    """Cases as parameters of a test; all but ``quick``, if any are named, run only with all tests."""
    marks = {
        case.name: [] if not quick or case.name in quick else [pytest.mark.full] for case in cases
    }
    return [pytest.param(case, marks=marks[case.name], id=case.name) for case in cases]
