"""The table of the API in docs/admin.md: each method and each command sends a request at the
subject of its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.stream import subject_pattern
from spark_jetstream.testing import NatsServer
from tests.admin.test_page import ROWS
from tests.support.command import run_command
from tests.support.publish import Tap
from tests.support.reading import wait_until

Call = Callable[[JetStreamAdmin, Path], object]


def sent(*calls: Callable[[], object]) -> None:
    """Send requests that a single server, or one without a system account, refuses or does not
    answer.
    """
    for call in calls:
        with suppress(JetStreamError):
            call()


#: How each method of the table is called, by its name there.
METHODS: dict[str, Call] = {
    "account.backup": lambda admin, to: admin.account.backup(to / "all"),
    "account.info": lambda admin, _: admin.account.info(),
    "account.restore": lambda admin, to: admin.account.restore(to / "made"),
    "account.server": lambda admin, _: admin.account.server(),
    "account.tiers": lambda admin, _: admin.account.tiers(),
    "apply": lambda admin, _: admin.apply(admin.plan({"name": "NEW", "subjects": ["new"]})),
    "cluster.cancel_move": lambda admin, _: admin.cluster.cancel_move("A", "S"),
    "cluster.evacuate_server": lambda admin, _: admin.cluster.evacuate_server("n2"),
    "cluster.move_stream": lambda admin, _: admin.cluster.move_stream("A", "S", server="n2"),
    "cluster.purge_account": lambda admin, _: admin.cluster.purge_account("A"),
    "cluster.remove_server": lambda admin, _: admin.cluster.remove_server("n2"),
    "cluster.rescue": lambda admin, _: admin.cluster.rescue(1, timeout=0.2),
    "cluster.step_down": lambda admin, _: admin.cluster.step_down(),
    "counters.get": lambda admin, _: admin.counters.get("count.a"),
    "counters.list": lambda admin, _: list(admin.counters.list("count.>")),
    "consumers.copy": lambda admin, _: admin.consumers.copy("S", "c", "d"),
    "consumers.create": lambda admin, _: sent(
        partial(admin.consumers.create, "S"),
        partial(admin.consumers.create, "S", name="d"),
        partial(admin.consumers.create, "S", name="e", filter_subject="s.a"),
        partial(admin.consumers.create, "S", durable_name="f", durable_form=True),
    ),
    "consumers.delete": lambda admin, _: admin.consumers.delete("S", "c"),
    "consumers.find": lambda admin, _: list(admin.consumers.find("S")),
    "consumers.infos": lambda admin, _: list(admin.consumers.infos("S")),
    "consumers.load": lambda admin, _: admin.consumers.load("S", "c"),
    "consumers.handover": lambda admin, _: admin.consumers.handover("S", "c"),
    "consumers.load_or_create": lambda admin, _: admin.consumers.load_or_create("S", name="d"),
    "consumers.names": lambda admin, _: list(admin.consumers.names("S")),
    "consumers.next": lambda admin, _: admin.consumers.next("S", "c"),
    "consumers.pause": lambda admin, _: admin.consumers.pause("S", "c", "2100-01-01T00:00:00Z"),
    "consumers.plan": lambda admin, _: admin.consumers.plan("S", "c", description="x"),
    "consumers.remove_peer": lambda admin, _: sent(
        *(
            partial(admin.consumers.remove_peer, "S", "c", "n2", evacuate=evacuate)
            for evacuate in (False, True)
        )
    ),
    "consumers.replicas": lambda admin, _: admin.consumers.replicas("S", "c"),
    "consumers.reset": lambda admin, _: admin.consumers.reset("S", "c"),
    "consumers.resume": lambda admin, _: admin.consumers.resume("S", "c"),
    "consumers.step_down": lambda admin, _: admin.consumers.step_down("S", "c"),
    "consumers.unpin": lambda admin, _: admin.consumers.unpin("S", "c", "g"),
    "consumers.update": lambda admin, _: admin.consumers.update("S", "c", description="x"),
    "describe": lambda admin, _: admin.describe("S"),
    "lag": lambda admin, _: list(admin.lag()),
    "messages.delete": lambda admin, _: admin.messages.delete("S", 1),
    "messages.erase": lambda admin, _: admin.messages.erase("S", 1),
    "messages.get": lambda admin, _: [
        admin.messages.get("S", 1, direct=direct) for direct in (False, True)
    ],
    "messages.last": lambda admin, _: [
        admin.messages.last("S", "s.a", direct=direct) for direct in (False, True)
    ],
    "messages.last_of_each": lambda admin, _: list(admin.messages.last_of_each("S")),
    "messages.next": lambda admin, _: [
        admin.messages.next("S", "s.>", direct=direct) for direct in (False, True)
    ],
    "messages.read": lambda admin, _: [list(admin.messages.read(name)) for name in ("S", "PLAIN")],
    "messages.since": lambda admin, _: [
        admin.messages.since("S", "2020-01-01T00:00:00Z", direct=direct) for direct in (False, True)
    ],
    "origin_lag": lambda admin, _: list(admin.origin_lag()),
    "plan": lambda admin, _: admin.plan({"name": "S", "subjects": ["s.>"]}),
    "publish": lambda admin, _: admin.publish("nowhere", "x"),
    "schedules.get": lambda admin, _: admin.schedules.get("LATER", "later.a"),
    "schedules.list": lambda admin, _: admin.schedules.list("LATER", "later.a"),
    "schedules.remove": lambda admin, _: admin.schedules.remove("LATER", "later.a"),
    "streams.backup": lambda admin, to: admin.streams.backup("S", to / "one"),
    "streams.cancel_move": lambda admin, _: admin.streams.cancel_move("S"),
    "streams.copy": lambda admin, _: admin.streams.copy("S", "T", subjects=["t"]),
    "streams.create": lambda admin, _: admin.streams.create("NEW", subjects="new"),
    "streams.delete": lambda admin, _: admin.streams.delete("S"),
    "streams.find": lambda admin, _: list(admin.streams.find()),
    "streams.infos": lambda admin, _: list(admin.streams.infos()),
    "streams.keep_dead_letters": lambda admin, _: admin.streams.keep_dead_letters("PLAIN"),
    "streams.load": lambda admin, _: admin.streams.load("S"),
    "streams.load_or_create": lambda admin, _: admin.streams.load_or_create("NEW", subjects="new"),
    "streams.names": lambda admin, _: list(admin.streams.names()),
    "streams.origins": lambda admin, _: admin.streams.origins("S"),
    "streams.plan": lambda admin, _: admin.streams.plan("S", max_msgs=5),
    "streams.purge": lambda admin, _: admin.streams.purge("S"),
    "streams.remove_peer": lambda admin, _: sent(
        *(
            partial(admin.streams.remove_peer, "S", "n2", evacuate=evacuate)
            for evacuate in (False, True)
        )
    ),
    "streams.replicas": lambda admin, _: admin.streams.replicas("S"),
    "streams.restore": lambda admin, to: admin.streams.restore(
        to / "made" / "S", "T", subjects=["t"]
    ),
    "streams.seal": lambda admin, _: admin.streams.seal("S"),
    "streams.step_down": lambda admin, _: admin.streams.step_down("S"),
    "streams.subjects": lambda admin, _: list(admin.streams.subjects("S")),
    "streams.update": lambda admin, _: admin.streams.update("S", max_msgs=5),
}

#: The same for commands; `{to}` is an empty folder.
COMMANDS = {
    "account backup": "account backup {to}/all",
    "account info": "account info",
    "account restore": "account restore {to}/made",
    "cluster cancel-move": "cluster cancel-move A S --force",
    "cluster evacuate": "cluster evacuate n2 --force",
    "cluster move-stream": "cluster move-stream A S --off n2 --force",
    "cluster rescue": "cluster rescue 1 --force",
    "cluster purge-account": "cluster purge-account A --force",
    "cluster remove": "cluster remove n2 --force",
    "cluster step-down": "cluster step-down --force",
    "consumer add": "consumer add S d",
    "counter get": "counter get count.a",
    "counter ls": "counter ls count.>",
    "consumer add --filter-subject": "consumer add S d --filter-subject s.a",
    "consumer add --durable-form": "consumer add S d --durable-form",
    "consumer add STREAM": "consumer add S",
    "consumer copy": "consumer copy S c d",
    "consumer edit": "consumer edit S c --description x --force",
    "consumer edit --dry-run": "consumer edit S c --description x --dry-run",
    "consumer find": "consumer find S",
    "consumer info": "consumer info S c",
    "consumer handover": "consumer handover S c",
    "consumer ls": "consumer ls S",
    "consumer names": "consumer names S",
    "consumer next": "consumer next S c",
    "consumer peer-remove": "consumer peer-remove S c n2 --force",
    "consumer peer-remove --evacuate": "consumer peer-remove S c n2 --evacuate --force",
    "consumer pause": "consumer pause S c 1h",
    "consumer reset": "consumer reset S c --force",
    "consumer resume": "consumer resume S c",
    "consumer rm": "consumer rm S c --force",
    "consumer step-down": "consumer step-down S c",
    "consumer unpin": "consumer unpin S c g",
    "dead-letters keep": "dead-letters keep PLAIN",
    "dead-letters ls": "dead-letters ls S",
    "dead-letters replay": "dead-letters replay S 1",
    "doctor": "doctor",
    "find": "find",
    "lag": "lag",
    "lag --origins": "lag --origins",
    "schedule ls": "schedule ls LATER later.a",
    "schedule rm": "schedule rm LATER later.a --force",
    "stream add": "stream add NEW --subjects new",
    "stream apply": "stream apply {to}/../new.json --force",
    "stream apply --check": "stream apply {to}/../old.json --check",
    "stream backup": "stream backup S {to}/one",
    "stream cancel-move": "stream cancel-move S --force",
    "stream copy": "stream copy S T --subjects t",
    "stream delete-msg": "stream delete-msg S 1 --force",
    "stream edit": "stream edit S --max-msgs 5 --force",
    "stream edit --dry-run": "stream edit S --max-msgs 5 --dry-run",
    "stream export": "stream export S",
    "stream find": "stream find",
    "stream gaps": "stream gaps S",
    "stream get": "stream get S 1",
    "stream get --direct": "stream get S 1 --direct",
    "stream get --last SUBJECT --direct": "stream get S --last s.a --direct",
    "stream info": "stream info S",
    "stream ls": "stream ls",
    "stream names": "stream names",
    "stream peer-remove": "stream peer-remove S n2 --force",
    "stream peer-remove --evacuate": "stream peer-remove S n2 --evacuate --force",
    "stream purge": "stream purge S --force",
    "stream restore": "stream restore {to}/made/S --name T --subjects t",
    "stream rm": "stream rm S --force",
    "stream seal": "stream seal S --force",
    "stream state": "stream state S",
    "stream step-down": "stream step-down S",
    "stream subjects": "stream subjects S",
    "stream view": "stream view S",
}

#: What asks for nothing where there is one server; `tests/admin/test_cluster.py` has it.
IN_A_CLUSTER = {"streams.balance", "consumers.balance", "stream balance", "consumer balance"}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        # The server removes the folder of all streams with the last one, a moment later, unless it
        # holds something.
        (stores_of(running) / "kept").mkdir(parents=True)
        yield running


def stores_of(server: NatsServer) -> Path:
    return server.store_dir / "jetstream" / "$G" / "streams"


def clear(admin: JetStreamAdmin, server: NatsServer) -> None:
    for name in list(admin.streams.names()):
        admin.streams.delete(name)
    # The server may remove files after it has answered, and meets them when it makes the stream
    # again (error 10049).
    wait_until(lambda: len(list(stores_of(server).iterdir())) == 1, "the end of the streams' files")


def prepare(admin: JetStreamAdmin, server: NatsServer) -> None:
    """A stream S with two messages and the consumer c, one that answers no Direct Gets, one with a
    counter, one with a schedule, one of S's dead letters."""
    clear(admin, server)
    admin.streams.create("S", subjects="s.>", storage="memory")
    admin.streams.create("PLAIN", subjects="plain", storage="memory", allow_direct=False)
    admin.streams.create("COUNT", subjects="count.>", storage="memory", allow_msg_counter=True)
    admin.counters.increment("count.a", 1)
    admin.streams.create("LATER", subjects="later.>", storage="memory", allow_msg_schedules=True)
    every = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "later.due"}
    admin.publish("later.a", "x", every)
    admin.consumers.create("S", durable_name="c")
    for subject in ("s.a", "s.b", "plain"):
        admin.publish(subject, "x")
    admin.streams.keep_dead_letters("S")
    given_up = {
        "type": "max_deliver",
        "stream": "S",
        "consumer": "c",
        "stream_seq": 1,
        "deliveries": 1,
    }
    letter = {**given_up, "id": "x", "timestamp": "2100-01-01T00:00:00Z"}
    admin.request("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", json.dumps(letter))


def rows() -> list[Any]:
    """Subject, methods and commands of each row; a row with "the same" has those of the one before
    it, and a filter.
    """
    cases = []
    for subject, *cells in ROWS:
        methods, commands = (re.findall(r"`([^`]+)`", cell) for cell in cells)
        if cells[0].startswith("the same"):
            methods, commands = ["consumers.create"], ["consumer add --filter-subject"]
        calls = [
            name for name in (*methods, *commands) if name not in IN_A_CLUSTER and "=" not in name
        ]
        cases.append(pytest.param(subject, calls, id=subject))
    return cases


@pytest.mark.parametrize(("subject", "calls"), rows())
def test_each_method_and_each_command_sends_the_request_of_its_row(
    server: NatsServer, tmp_path: Path, subject: str, calls: list[str]
) -> None:
    tokens = re.sub(
        r"<(filter|subject)>", ">", re.sub(r"<(stream|consumer|account)>", "*", subject)
    )
    pattern = subject_pattern([f"$JS.API.{tokens}"])
    (tmp_path / "old.json").write_text('{"name": "S", "subjects": ["s.>"]}')
    (tmp_path / "new.json").write_text('{"name": "NEW", "subjects": ["new"]}')
    # Only the system account has an answer.
    timeout = "200ms" if subject.startswith(("META", "SERVER", "ACCOUNT")) else "10s"
    with (
        JetStreamAdmin(servers=server.url) as admin,
        JetStreamAdmin(servers=server.url, requestTimeout=timeout) as caller,
        Tap(server.url) as tap,
    ):
        prepare(admin, server)
        admin.account.backup(tmp_path / "made")
        for number, name in enumerate(calls):
            prepare(admin, server)
            to = tmp_path / str(number)
            to.mkdir()
            (tmp_path / "made").rename(to / "made")
            if name in ("account restore", "account.restore"):
                clear(admin, server)
            tap.heard()
            if name in METHODS:
                sent(partial(METHODS[name], caller, to))
            else:
                run_command(
                    *COMMANDS[name].format(to=to).split(), "--timeout", timeout, url=server.url
                )
            heard = [message.subject for message in tap.heard()]
            assert any(map(pattern.fullmatch, heard)), (name, heard)
            (to / "made").rename(tmp_path / "made")
