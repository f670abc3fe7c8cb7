"""`JetStreamAdmin.trace`: the way of a message on real servers, and that none of them stores it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jetstream.admin import (
    CoreMessage,
    JetStreamAdmin,
    MessageTrace,
    TraceCapture,
    TraceEgress,
    TraceMapping,
    TraceServiceImport,
    TraceStreamExport,
)
from spark_jetstream.admin import trace as tracing
from spark_jetstream.admin.models.trace import TraceReport, trace_report
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import (
    ConnectionFailed,
    JetStreamError,
    OptionError,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
)
from spark_jetstream.protocol.features import MESSAGE_TRACES
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.support.features import for_none
from tests.support.leaf import Linked
from tests.support.proxy import WireProxy
from tests.support.reading import wait_until

Start = Callable[..., NatsServer]


def names(traced: MessageTrace) -> list[tuple[str, str]]:
    """Return the streams that would store the message, each with its subject there."""
    assert traced.complete
    return [(stream.name, stream.subject) for stream in traced.streams]


def events(traced: MessageTrace, kind: type[Any]) -> list[Any]:
    return [event for report in traced.walk() for event in report.events if isinstance(event, kind)]


# -- one server --


def test_a_stream_is_named_and_stores_nothing(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name, subjects=[f"{name}.>"], storage="memory")
    admin.consumers.create(name, durable_name="c", ack_policy="explicit")
    with admin.subscribe(f"{name}.>", timeout=60) as messages:
        headers = {"Nats-Msg-Id": "1", "Region": ["eu", "us"]}
        traced = admin.trace(f"{name}.a", "data", headers)
        assert (names(traced), traced.missing, traced.blind_spots) == (
            [(name, f"{name}.a")],
            (),
            (),
        )
        assert [(each.sub, each.error) for each in traced.subscribers] == [(f"{name}.>", "")]
        assert traced.accounts == ("$G",)
        # The id of the traced message is free: nothing remembers it.
        ack = admin.publish(f"{name}.a", "stored", {"Nats-Msg-Id": "1"})
        first = next(messages)
        assert isinstance(first, CoreMessage)
        assert (ack.seq, ack.duplicate, first.data) == (1, False, b"stored")
    assert admin.streams.load(name).state.messages == 1


def test_a_subject_without_a_stream(admin: JetStreamAdmin, name: str) -> None:
    traced = admin.trace(f"{name}.a")
    assert (names(traced), traced.subscribers, traced.blind_spots) == ([], (), ())


def test_a_stream_that_keeps_nothing_without_consumers(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name, subjects=[name], storage="memory", retention="interest")
    (stream,) = admin.trace(name).streams
    assert (stream.stream, stream.dropped) == (name, True)


def test_the_reason_of_a_refusal_is_reported(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name, subjects=[name], storage="memory")
    (stream,) = admin.trace(name, headers={"Nats-Expected-Stream": "OTHER"}).streams
    assert stream.error == "expected stream does not match"


MAPPED = """
mappings: { "in.*": "out.$1" }
jetstream: enabled
"""


def test_mappings_and_transforms_rename_it(nats_server_factory: Start) -> None:
    with JetStreamAdmin(servers=nats_server_factory(config=MAPPED).url) as admin:
        transform = {"src": "out.*", "dest": "stored.{{wildcard(1)}}"}
        admin.streams.create("S", subjects=["out.*"], storage="memory", subject_transform=transform)
        traced = admin.trace("in.a")
        assert names(traced) == [("S", "stored.a")]
        assert [event.to for event in events(traced, TraceMapping)] == ["out.a"]
        assert admin.streams.load("S").state.messages == 0


@pytest.mark.parametrize(
    "subject", ["$JS.ACK.S.c.1.1.1.1.0", "$JS.API.STREAM.DELETE.S", "$SYS.REQ.SERVER.PING"]
)
def test_a_request_of_the_server_is_not_traced(admin: JetStreamAdmin, subject: str) -> None:
    with pytest.raises(OptionError, match=r"everything below \$\w+ belongs to the server"):
        admin.trace(subject)


@pytest.mark.parametrize("header", ["Nats-Batch-Id", "nats-trace-only", "Accept-Encoding"])
def test_a_header_that_the_server_would_act_on_is_refused(
    admin: JetStreamAdmin, header: str
) -> None:
    with pytest.raises(OptionError, match=f"header {header} is not possible in a trace"):
        admin.trace("a", headers={header: "1"})


def test_an_older_server_gets_nothing(
    admin: JetStreamAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MESSAGE_TRACES", for_none(MESSAGE_TRACES))
    with admin.subscribe("old.a", timeout=60) as messages:
        with pytest.raises(JetStreamError, match=r"cannot trace old\.a: this needs nats-server"):
            admin.trace("old.a")
        # Sent over the same connection, so after a trace that was sent.
        admin._api.connection.post("old.a")
        first = next(messages)
        assert isinstance(first, CoreMessage)
        assert first.hdrs == b""


def test_it_is_not_sent_over_a_later_connection(
    admin: JetStreamAdmin,
    nats_server: NatsServer,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server of a later connection may be an older one, which would store the message."""
    admin.streams.create(name, subjects=[name], storage="memory")
    look = tracing._need_traces
    with WireProxy(nats_server.url) as proxy, JetStreamAdmin(servers=proxy.url) as far:

        def look_and_cut(connection: Connection, context: str) -> None:
            look(connection, context)
            before = connection.reconnects
            proxy.cut()
            wait_until(lambda: connection.reconnects > before, "the connection is made again")
            connection.wait(10)

        monkeypatch.setattr(tracing, "_need_traces", look_and_cut)
        with admin.subscribe(name, timeout=60) as messages:
            with pytest.raises(ConnectionFailed, match="was cut"):
                far.trace(name)
            far._api.connection.check()
            admin.publish(name, "after")
            first = next(messages)
            assert isinstance(first, CoreMessage)
            assert first.data == b"after"


USERS = """
accounts { A { jetstream: enabled, users: [
  { user: all, password: p }
  { user: few, password: p, permissions: { publish: { deny: ["closed.a", "_INBOX.>"] } } }
  { user: some, password: p, permissions: { publish: { deny: ["closed.a"] } } }
  { user: deaf, password: p, permissions: { subscribe: { deny: ["_INBOX.>"] } } }
] } }
"""


@pytest.mark.parametrize(
    ("user", "subject", "denied", "text"),
    [
        (
            "some",
            "closed.a",
            "closed.a",
            "cannot trace closed.a: the account may not publish to it",
        ),
        ("few", "open.a", "_INBOX.>", "may not publish to _INBOX.> (option inboxPrefix), where"),
        ("deaf", "open.a", "_INBOX.>", "may not subscribe to _INBOX.>"),
    ],
)
def test_a_missing_permission_is_named(
    nats_server_factory: Start, user: str, subject: str, denied: str, text: str
) -> None:
    url = nats_server_factory(config=USERS).url
    with JetStreamAdmin(servers=url, user=user, password="p") as admin:
        with pytest.raises(PermissionDenied) as error:
            admin.trace(subject, timeout=20)
        assert (error.value.subject, text in str(error.value)) == (denied, True), error.value


# -- accounts --

ACCOUNTS = """
accounts {
  SHOP {
    jetstream: enabled, users: [{ user: shop, password: p }]
    exports: [{ stream: "orders.>" }, { stream: "quiet.>" }]
    imports: [
      { service: { account: AUDIT, subject: "audit.in" }, to: "check.a" }
      { service: { account: AUDIT, subject: "audit.closed" }, to: "check.closed" }
    ]
  }
  AUDIT {
    jetstream: enabled, users: [{ user: audit, password: p }]
    imports: [
      { stream: { account: SHOP, subject: "orders.>" }, prefix: "from.shop", allow_trace: true }
      { stream: { account: SHOP, subject: "quiet.>" } }
    ]
    exports: [{ service: "audit.in", allow_trace: true }, { service: "audit.closed" }]
  }
}
"""


@pytest.fixture
def accounts(nats_server_factory: Start) -> Iterator[tuple[JetStreamAdmin, JetStreamAdmin]]:
    """The administrators of SHOP and AUDIT."""
    url = nats_server_factory(config=ACCOUNTS).url
    with (
        JetStreamAdmin(servers=url, user="shop", password="p") as shop,
        JetStreamAdmin(servers=url, user="audit", password="p") as audit,
    ):
        yield shop, audit


def test_a_stream_export_leads_to_another_account(
    accounts: tuple[JetStreamAdmin, JetStreamAdmin],
) -> None:
    shop, audit = accounts
    shop.streams.create("ORDERS", subjects=["orders.>"], storage="memory")
    audit.streams.create("COPY", subjects=["from.shop.>"], storage="memory")
    traced = shop.trace("orders.a")
    # A server does not tell the fields of two streams apart.
    assert sorted(names(traced)) == [("COPY", ""), ("ORDERS", "")]
    (unknown,) = traced.blind_spots
    assert unknown.endswith(" refuse or drop it")
    assert sorted(traced.accounts) == ["AUDIT", "SHOP"]
    (export,) = events(traced, TraceStreamExport)
    assert (export.acc, export.to) == ("AUDIT", "from.shop.orders.a")
    assert shop.streams.load("ORDERS").state.messages == 0
    assert audit.streams.load("COPY").state.messages == 0


def test_a_service_import_leads_to_another_account(
    accounts: tuple[JetStreamAdmin, JetStreamAdmin],
) -> None:
    shop, audit = accounts
    audit.streams.create("CHECKS", subjects=["audit.in"], storage="memory")
    traced = shop.trace("check.a")
    assert (names(traced), traced.blind_spots) == ([("CHECKS", "audit.in")], ())
    (imported,) = events(traced, TraceServiceImport)
    assert (imported.acc, imported.source, imported.to) == ("AUDIT", "check.a", "audit.in")
    assert audit.streams.load("CHECKS").state.messages == 0


@pytest.mark.parametrize("subject", ["quiet.a", "check.closed"])
def test_an_account_that_may_not_be_traced_is_a_blind_spot(
    accounts: tuple[JetStreamAdmin, JetStreamAdmin], subject: str
) -> None:
    shop, audit = accounts
    audit.streams.create("HIDDEN", subjects=["quiet.>", "audit.closed"], storage="memory")
    traced = shop.trace(subject)
    (place,) = traced.blind_spots
    assert (names(traced), place.startswith("account AUDIT may do more with it")) == ([], True)
    assert audit.streams.load("HIDDEN").state.messages == 0


# -- several servers --


def test_a_leaf_node_leads_to_the_streams_of_both_domains() -> None:
    with Linked() as linked:
        with (
            JetStreamAdmin(servers=linked.hub.url) as hub,
            JetStreamAdmin(servers=linked.leaf.url) as leaf,
        ):
            hub.streams.create("ORDERS", subjects=["orders.>"], storage="memory")
            traced = _when(leaf, "orders.a", 1)
            assert names(traced) == [("ORDERS (domain hub)", "orders.a")]
            (link,) = events(traced, TraceEgress)
            assert (link.to_server, link.kind, link.hop, link.name) == (True, 4, "1", "hub")
            leaf.streams.create("LOCAL", subjects=["orders.>"], storage="memory")
            assert sorted(names(_when(leaf, "orders.a", 2))) == [
                ("LOCAL (domain leaf)", "orders.a"),
                ("ORDERS (domain hub)", "orders.a"),
            ]
            for admin, stream in ((hub, "ORDERS"), (leaf, "LOCAL")):
                assert admin.streams.load(stream).state.messages == 0
        close_all()


def _when(admin: JetStreamAdmin, subject: str, streams: int) -> MessageTrace:
    """Return a trace, once servers at both ends know of this many streams."""
    found: list[MessageTrace] = []

    def look() -> bool:
        found.append(admin.trace(subject))
        return len(found[-1].streams) == streams

    wait_until(look, f"{streams} streams are known")
    return found[-1]


LEAF_USER = """
leafnodes {{ listen: "{address}", no_advertise: true }}
accounts {{ A {{ jetstream: enabled, users: [
  {{ user: root, password: p }}
  {{ user: link, password: p, permissions: {{ publish: {{ deny: ["_INBOX.>"] }} }} }}
] }} }}
"""
LEAF = """
leafnodes {{ remotes: [{{ url: "nats://link:p@{address}" }}] }}
"""


def test_a_server_that_cannot_report_is_missing() -> None:
    """The user of a leaf node may not publish to inboxes, so the hub must not report in its name."""
    lease = PortLease()
    address = f"{LOOPBACK}:{lease.port}"
    with (
        NatsServer(config=LEAF_USER.format(address=address)) as hub,
        NatsServer(config=LEAF.format(address=address), jetstream=False) as leaf,
    ):
        try:
            with (
                JetStreamAdmin(servers=hub.url, user="root", password="p") as root,
                JetStreamAdmin(servers=leaf.url) as admin,
            ):
                root.streams.create("S", subjects=["s.a"], storage="memory")
                wait_until(
                    lambda: bool(events(admin.trace("s.a", timeout=0.5), TraceEgress)),
                    "the leaf node knows of the stream",
                )
                traced = admin.trace("s.a", timeout=0.5)
                assert (traced.complete, traced.missing, traced.streams) == (False, ("1",), ())
                assert traced.blind_spots == ("the server of hop 1 has not reported",)
                assert root.streams.load("S").state.messages == 0
        finally:
            close_all()
            lease.release()


def test_a_route_leads_to_the_leader_of_a_cluster() -> None:
    with NatsCluster() as cluster:
        try:
            with JetStreamAdmin(servers=cluster.url) as admin:
                admin.streams.create("S", subjects=["s.>"], num_replicas=3)
            leader = cluster.leader_of("S")
            other = (leader + 1) % 3
            with JetStreamAdmin(servers=cluster.urls[other]) as admin:
                traced = _when(admin, "s.a", 1)
                assert names(traced) == [("S", "s.a")]
                assert traced.streams[0].server.name == cluster.servers[leader].name
                hops = [link.hop for link in events(traced, TraceEgress)]
                assert "1" in hops
                assert admin.streams.load("S").state.messages == 0
        finally:
            close_all()


def test_without_any_report_it_times_out(admin: JetStreamAdmin, nats_server: NatsServer) -> None:
    with WireProxy(nats_server.url) as proxy, JetStreamAdmin(servers=proxy.url) as far:
        far.account.info()
        proxy.drop_frames(b"Nats-Trace-Dest")
        with pytest.raises(RequestTimeout, match=r"cannot trace a: no reply within 0\.5 s"):
            far.trace("a", timeout=0.5)


# -- reports as data --

TIME = "2026-03-01T12:00:00Z"


def report(hop: str, *happened: dict[str, Any]) -> TraceReport:
    body = {
        "server": {"name": f"n{hop}"},
        "request": {"header": {"Nats-Trace-Hop": [hop]} if hop else {}},
        "events": [{"ts": TIME, **each} for each in happened],
    }
    return trace_report(json.dumps(body).encode(), "trace a")


def way(*reports: TraceReport) -> MessageTrace:
    return MessageTrace("a", {each.hop: each for each in reports})


def link(**fields: str) -> dict[str, Any]:
    return {"type": "eg", "kind": 1, "cid": 1, **fields}


def test_unknown_events_and_fields_are_kept() -> None:
    traced = way(report("", {"type": "zz", "more": 5}, {"type": "js", "stream": "S", "new": True}))
    first, capture = traced.reports[""].events
    assert (first.type, first.model_extra) == ("zz", {"more": 5})
    assert isinstance(capture, TraceCapture)
    assert capture.model_extra == {"new": True}
    assert traced.data()["events"][0]["more"] == 5


def test_reports_that_lead_in_a_circle_end() -> None:
    """Any client that guesses the inbox can publish reports like these."""
    traced = way(report("", link(hop="1")), report("1", link(hop="1"), link(hop="2"), link(hop="")))
    assert [each.hop for each in traced.walk()] == ["", "1"]
    assert traced.complete
    assert traced.data()["events"][0]["link"]["events"][0] == {"ts": TIME, **link(hop="1")}


def test_links_that_were_not_used_are_not_waited_for() -> None:
    traced = way(report("", link(hop="1", error="too old", name="n1"), link(hop="2")))
    assert traced.missing == ("2",)
    assert traced.blind_spots == ("the server of hop 2 has not reported", "route n1: too old")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"5",
        b'{"server": {"name": "n"}, "events": 5}',
        b'{"server": 5, "events": []}',
        b'{"server": {"name": "n"}, "events": [5]}',
        b'{"server": {"name": "n"}, "events": [{"type": []}]}',
        b'{"server": {"name": "n"}, "events": [{"type": "js", "ts": "2026-03-01T12:00:00Z"}]}',
        b'{"server": {"name": "n"}, "events": [], "request": {"header": {"Nats-Trace-Hop": [5]}}}',
        b"[" * 100_000,
    ],
)
def test_something_else_than_a_report_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot trace a: "):
        trace_report(payload, "trace a")


def test_streams_of_one_server_have_no_fields_of_each_other() -> None:
    """A server writes those of any of them into the event of the last one."""
    first = {"type": "js", "stream": "A"}
    last = {"type": "js", "stream": "B", "subject": "of.a", "nointerest": True, "error": "of A"}
    traced = way(report("", first, last))
    found = traced.streams
    # Which of them has the error is not known.
    assert traced.blind_spots == ("server n: which of the streams A, B refuse or drop it",)
    assert way(report("", last)).blind_spots == ()
    assert [(each.stream, each.subject, each.dropped, each.error) for each in found] == [
        ("A", "", False, ""),
        ("B", "", False, ""),
    ]
