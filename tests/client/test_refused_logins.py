"""Servers that refuse a client: for its certificate, for credentials that were withdrawn, and for a moment only."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

from spark_jetstream.client import connection as connection_module
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import AuthenticationFailed
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.testing import NatsServer
from tests.support.client import tls_config
from tests.support.identities import Operator, user
from tests.support.reading import SETTINGS, options, pulls, wait_until
from tests.support.sinking import Sink, rows

USERS = "authorization {{ users: [ {{ user: admin, password: p }}, {{ user: ann, password: {password} }} ] }}"
WITHDRAWN = "authorization { users: [ { user: admin, password: p } ] }"
RETRY = 90.0  # seconds of retryTimeout: far longer than a refusal may take to be reported


pytestmark = pytest.mark.usefixtures("no_connection_left")


# Certificates of clients


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "handshake first"])
@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (None, r"^the NATS server at \S+ demands a client certificate \(options tlsCertFile and tlsKeyFile\)"),
        ("foreign", r"refused the client certificate \(options tlsCertFile and tlsKeyFile\): unknown ca"),
        ("expired", r"refused the client certificate \(options tlsCertFile and tlsKeyFile\): certificate expired"),
    ],
)
def test_a_client_certificate_that_the_server_demands(
    certificate: str | None, words: str, first: bool, tmp_path: Path
) -> None:
    authority = trustme.CA()
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    made = {
        "foreign": trustme.CA().issue_cert("client@example.org"),
        "expired": authority.issue_cert(
            "client@example.org", not_before=past - datetime.timedelta(days=9), not_after=past
        ),
    }
    for name, leaf in made.items():
        leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    tls = tls_config(tmp_path, f"verify: true, handshake_first: {str(first).lower()}", authority=authority)
    given = {"tlsCaFile": str(tmp_path / "ca.pem"), "tlsHandshakeFirst": str(first)}
    if certificate is not None:
        given |= dict.fromkeys(("tlsCertFile", "tlsKeyFile"), str(tmp_path / f"{certificate}.pem"))
    with NatsServer(config=tls) as server, pytest.raises(AuthenticationFailed, match=words):
        connect(options(server.url, **given))


# Credentials that are withdrawn


class Login:
    """A server that `given` lets in, until `withdraw` is called."""

    def __init__(self, how: str, folder: Path, leaving: ExitStack) -> None:
        self._how = how
        self._users = folder / "users.conf"
        self.given = {"user": "ann", "password": "secret-4711"}
        if how == "expired":
            operator = Operator()
            self._users.write_text(operator.config)
            self.given = {"credentialsSecret": operator.credentials(user(), lifetime=4)}
        else:
            self.let_in()
        # The server looks for it below the folder of its configuration.
        self.server = leaving.enter_context(NatsServer(config=f'include "{"../" * 30}{self._users}"'))
        self.where = options(self.server.url, retryTimeout=f"{RETRY:g}s", **self.given)

    def let_in(self) -> None:
        self._users.write_text(USERS.format(password=self.given["password"]))

    def withdraw(self) -> None:
        """Take the login away; returns when the server refuses it."""
        if self._how == "expired":
            self.server.wait_for_log("authentication error", timeout=60)
            return
        changed = self._how == "password changed"
        self._users.write_text(USERS.format(password="another") if changed else WITHDRAWN)
        if self._how == "restarted":
            self.server.restart()
        else:
            self.reload()

    def reload(self) -> None:
        told = self.server.log.count("Reloaded server configuration")
        os.kill(self.server.pid, signal.SIGHUP)
        wait_until(lambda: self.server.log.count("Reloaded server configuration") > told, "a reload")


def ask(where: ConnectionOptions, path: str, **body: Any) -> dict[str, Any]:
    sent = json.dumps(body).encode() if body else b""
    requests = Requests(lambda patience: connect(where, patience=patience), RETRY)
    return requests.call(lambda connection: connection.api(f"$JS.API.{path}", sent, context="ask"))


def asking(login: Login) -> Iterator[object]:
    while True:
        yield ask(login.where, "INFO")


def reading(login: Login) -> Iterator[object]:
    for _ in range(300):
        connect(login.where).request("S.a", b"", context="publish")
    info = ask(login.where, "STREAM.INFO.S")
    part = SequenceRange(stream="S", first=1, end=301, count=300, created=info["created"])
    yield from pulls(login.where, part, replace(SETTINGS, batch=10, retry_timeout=RETRY))


def writing(login: Login) -> Iterator[object]:
    """The batches of a task, each once the task asks for it."""
    events: queue.Queue[object] = queue.Queue()
    go_on = threading.Semaphore(0)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            go_on.acquire()
            yield rows("S.a", number, 1)
            events.put(None)

    with ThreadPoolExecutor(1) as one:
        task = one.submit(
            Sink(login.server.url, maxInFlight=1, retryTimeout=f"{RETRY:g}s", **login.given).write, batches()
        )
        task.add_done_callback(lambda _: events.put(None))
        for _ in range(2):
            go_on.release()
            event = events.get()
            if task.done():
                break
            yield event
        task.result()


@pytest.mark.parametrize(
    ("how", "use"),
    [
        *(quick := [("removed", asking), ("removed", writing), ("restarted", asking)]),
        pytest.param("expired", asking, marks=pytest.mark.full),
        *(
            pytest.param(how, use, marks=pytest.mark.full)
            for how, use in itertools.product(["removed", "password changed", "restarted"], [asking, reading, writing])
            if (how, use) not in quick
        ),
    ],
)
def test_credentials_that_are_withdrawn_are_no_outage(
    how: str, use: Callable[[Login], Iterator[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_REFUSED_FOR", 1.0)
    with ExitStack() as leaving:
        login = Login(how, tmp_path, leaving)
        ask(login.where, "STREAM.CREATE.S", name="S", subjects=["S.>"], storage="file")
        events = use(login)
        next(events)
        login.withdraw()
        refused = pytest.raises(AuthenticationFailed, match=r"refused the credentials \(option")
        with refused as caught:
            for _ in events:
                pass
        assert all(name in str(caught.value) for name in login.given)
        assert "4711" not in str(caught.value)


def test_a_server_that_refuses_for_a_moment_stops_nobody(tmp_path: Path) -> None:
    with ExitStack() as leaving:
        login = Login("restarted", tmp_path, leaving)
        first = connect(login.where)
        login.withdraw()
        login.server.wait_for_log("authentication error", timeout=60)
        login.let_in()
        login.reload()
        assert ask(login.where, "INFO")
        assert connect(login.where) is first


def test_one_of_two_servers_that_refuses_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with ExitStack() as leaving:
        logins = [Login("removed", folder, leaving) for folder in (tmp_path, tmp_path / "other")]
        both = ",".join(login.server.url for login in logins)
        where = options(both, **logins[0].given)
        for login, other in (logins, logins[::-1]):
            login.withdraw()
            assert ask(where, "INFO")
            close_all()  # and for a connection that is new
            assert ask(where, "INFO")
            login.let_in()
            login.reload()
            assert other.server.running
