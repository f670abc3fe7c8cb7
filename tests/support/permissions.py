"""A purpose tried out by accounts that have all of its permissions, and by accounts that lack one of them.

Each such user has a JetStream account of its own, so that what one does, or leaves undone, is nothing to the others.
All of them are in one configuration, of one server.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.errors import JetStreamError, OutageError, PermissionDenied, RequestTimeout, RowRefused
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.permissions import Permission, user_config
from spark_jetstream.testing import NatsServer
from tests.support.client import Raw
from tests.support.publish import Message, Publisher
from tests.support.reading import api, create

INBOX = "_INBOX_spark"
PASSWORD = "pw"
_QUICK = {"connectTimeout": "2s", "requestTimeout": "2s", "retryTimeout": "4s", "inboxPrefix": INBOX}

#: What changes something, for each stream; what a purpose may do of it is said where it is tried out.
_HARM = (
    *(f"STREAM.{verb}.{{0}}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.DELETE")),
    *(f"STREAM.{verb}.{{0}}" for verb in ("LEADER.STEPDOWN", "PEER.REMOVE")),
    *("CONSUMER.CREATE.{0}", "CONSUMER.CREATE.{0}.other", "CONSUMER.CREATE.{0}.other.a"),
    *(
        f"CONSUMER.{verb}.{{0}}.other"
        for verb in ("DURABLE.CREATE", "DELETE", "RESET", "PAUSE", "UNPIN", "LEADER.STEPDOWN", "MSG.NEXT")
    ),
)
_DATA = ("s.a", "$KV.b.k", "$O.b.C.n", "$O.b.M.n", "$KV.spark_jetstream_ledger.a.0")
#: What shows something of another stream.
_LOOKS = ("STREAM.INFO.{0}", "STREAM.MSG.GET.{0}", "DIRECT.GET.{0}", "CONSUMER.LIST.{0}", "CONSUMER.INFO.{0}.other")


class Account:
    """An account of a server, with an admin who may do everything and a user who may do what the lines say."""

    def __init__(self, number: int, given: Mapping[str, str]) -> None:
        self._number = number
        self._given = given
        self._url = ""

    def config(self, lines: Sequence[Permission]) -> str:
        admin = f"{{ user: admin{self._number}, password: {PASSWORD} }}"
        return f"""A{self._number} {{ jetstream: enabled, users: [ {admin}
{user_config(f"spark{self._number}", PASSWORD, lines)} ] }}"""

    def settle(self, url: str) -> None:
        self._url = url

    @property
    def admin(self) -> str:
        return self._url.replace("//", f"//admin{self._number}:{PASSWORD}@")

    @property
    def login(self) -> dict[str, str]:
        """The connection options of the user."""
        return {**_QUICK, "servers": self._url, "user": f"spark{self._number}", "password": PASSWORD, **self._given}

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


Work = Callable[[Account], None]


@dataclass(frozen=True)
class Case:
    """A purpose with the names it is tried out with.

    ``prepare`` makes what is there before, as the admin. ``work`` does all that the purpose is about, as the user.
    ``fallbacks`` are for lines whose absence is no error: a part of their subject -> what is seen then, if not work.
    ``may`` are the changes that come with the permissions, without prefix. ``given`` are more options of the user.
    """

    name: str
    lines: tuple[Permission, ...]
    prepare: Work
    work: Work
    fallbacks: Mapping[str, Work] = field(default_factory=dict)
    may: tuple[str, ...] = ()
    stream: str = "S"
    given: Mapping[str, str] = field(default_factory=dict)

    def accounts(self) -> Iterator[tuple[Permission | None, Account]]:
        """One for all of it (None), and one without each line."""
        for missing in (None, *self.lines):
            yield missing, Account(next(_numbers), self.given)

    def without(self, missing: Permission | None) -> list[Permission]:
        return [line for line in self.lines if line is not missing]


_numbers = itertools.count(1)


class Trial:
    """The cases of a module, on one server; ``config`` is more of its configuration."""

    def __init__(self, cases: Sequence[Case], config: str = "") -> None:
        self.cases = {case.name: (case, list(case.accounts())) for case in cases}
        accounts = [
            account.config(case.without(missing))
            for case, accounts in self.cases.values()
            for missing, account in accounts
        ]
        self.config = config + "\naccounts {{ {} }}".format("\n".join(accounts))

    @contextmanager
    def running(self) -> Iterator[Trial]:
        with NatsServer(config=self.config) as server:
            for _, accounts in self.cases.values():
                for _, account in accounts:
                    account.settle(server.url)
            yield self
            close_all()
            server.kill()  # it would wait five seconds for the rest of a restore

    def run(self, name: str) -> None:
        """Check that the permissions are enough, and not more than enough."""
        case, ((_, account), *_) = self.cases[name]
        case.prepare(account)
        refused_elsewhere(case, account)
        case.work(account)
        close_all()

    def run_without_each(self, name: str) -> None:
        """Check that each permission is needed."""
        case, (_, *accounts) = self.cases[name]
        with ThreadPoolExecutor(8) as threads:
            problems = list(filter(None, threads.map(lambda pair: problem_without(case, *pair), accounts)))
        close_all()
        assert not problems, "\n".join(problems)


def sampled(cases: Sequence[Case], *quick: str) -> list[Any]:
    """The names of cases as parameters of a test; all but ``quick`` run only with all tests."""
    return [pytest.param(case.name, marks=[] if case.name in quick else [pytest.mark.full]) for case in cases]


def problem_without(case: Case, missing: Permission | None, account: Account) -> str:
    """What is wrong when this permission is missing; "" if the error names it, or the fallback works."""
    assert missing is not None
    case.prepare(account)
    if missing.without:
        fallback = next((work for part, work in case.fallbacks.items() if part in missing.subject), case.work)
        fallback(account)
        return ""
    what = f"{case.name} without {missing.kind} {missing.subject}"
    try:
        case.work(account)
    except (PermissionDenied, RowRefused) as error:
        # A row's subject stands there as it was published, with the domain that the server took out.
        subject = (error.subject or "").removeprefix("$JS.hub.API.")
        denied = "may not" in str(error) and missing.covers(Permission(subject, "", kind=missing.kind))
        return "" if denied else f"{what}: names {error.subject}: {error!r}"
    except (RequestTimeout, OutageError) as error:
        return f"{what}: takes its time: {error!r}"
    except JetStreamError as error:
        words = [word.strip(",;:()'") for word in str(error).split()]
        named_in_text = any(missing.covers(Permission(word, "", kind=missing.kind)) for word in words)
        return "" if named_in_text else f"{what}: does not name the subject: {error!r}"
    return f"{what}: nothing fails"


def refused_elsewhere(case: Case, account: Account) -> None:
    """Whatever else would change or show something is refused, and what others hear is not heard."""
    harm = {each.format(case.stream) for each in _HARM} | {each.format("T") for each in (*_HARM, *_LOOKS)}
    data = {*_DATA, "t.a", "$JS.ACK.T.c.1.1.1.1.0", "$SYS.REQ.SERVER.PING"} - set(case.may)
    publish = {f"$JS.API.{each}" for each in harm - set(case.may)} | data
    subscribe = {">", "_INBOX.>", "s.a", "$JS.>", "$SYS.>"}
    refused = violations(account, sorted(publish), sorted(subscribe))
    assert refused == {("Publish", each) for each in publish} | {("Subscription", each) for each in subscribe}


def violations(account: Account, publish: Sequence[str], subscribe: Sequence[str]) -> set[tuple[str, str]]:
    """What the server says to somebody who does all of this in the user's name, each as (what, subject)."""
    hello = {"user": account.login["user"], "pass": account.login["password"]}
    frames = [f"CONNECT {json.dumps(hello)}", *(f"PUB {subject} 0\r\n" for subject in publish)]
    frames += [*(f"SUB {subject} {number}" for number, subject in enumerate(subscribe)), "PING", ""]
    found = set()
    with closing(Raw(account.login["servers"])) as raw:
        raw.send("\r\n".join(frames).encode())
        for line in iter(raw.file.readline, b"PONG\r\n"):
            said = re.fullmatch(r"""-ERR 'Permissions Violation for (\w+) to "(.*)"'\r\n""", line.decode())
            if said:
                found.add((said[1], said[2]))
    return found
