"""`JetStreamAdmin` as a whole: how it connects and from where it can be used, the account, errors,
old servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import (
    ConnectionFailed,
    ConsumerNotFound,
    JetStreamError,
    JetStreamNotEnabled,
    KeyNotFound,
    NoResponders,
    OptionError,
    PermissionDenied,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.testing import NatsServer
from tests.support.client import set_timing
from tests.support.fake_jetstream import Replies, account, administered, consumer_info, stream_info
from tests.support.jobs import run_python
from tests.support.publish import Message, Publisher

PASSWORD = "right-pass-7f3a"
ACCOUNTS = f"""
jetstream {{ domain: hub }}
accounts {{
  A {{ jetstream: {{ max_file: 1G, max_streams: 7 }}, users: [
    {{ user: ann, password: "{PASSWORD}" }}
    {{ user: looker, password: "{PASSWORD}", permissions: {{
        publish: ["$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.>"], subscribe: ["_INBOX.>"] }} }}
    {{ user: director, password: "{PASSWORD}", permissions: {{
        publish: ["$JS.API.DIRECT.GET.ORDERS.orders.a", "$JS.API.CONSUMER.CREATE.ORDERS.>"],
        subscribe: ["_INBOX.>"] }} }}
    {{ user: keeper, password: "{PASSWORD}", permissions: {{
        publish: ["$KV.b.>", "$JS.API.DIRECT.GET.KV_b.>"], subscribe: ["_INBOX.>"] }} }}
  ] }}
  PLAIN {{ users: [{{ user: pat, password: "{PASSWORD}" }}] }}
}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server with accounts, the stream ORDERS in one of them."""
    with NatsServer(config=ACCOUNTS) as running, JetStreamAdmin(**login(running)) as admin:
        admin.streams.create(name="ORDERS", subjects=["orders.>"], allow_direct=True)
        with Publisher(running.url, user="ann", **{"pass": PASSWORD}) as ann:
            ann.publish([Message("orders.a", b"1"), Message("orders.b", b"2")])
        yield running
    close_all()


def login(server: NatsServer, user: str = "ann", **options: object) -> dict[str, object]:
    return {"servers": server.url, "user": user, "password": PASSWORD, **options}


# -- options --


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"server": "a"}, "there is no option server; did you mean servers"),
        ({"tls_ca_file": "a"}, "there is no option tls_ca_file; did you mean tlsCaFile"),
        ({"stream": "ORDERS"}, "there is no option stream$"),
        ({"path": "a"}, "there is no option path$"),
        ({"Servers": "a", "servers": "b"}, "option servers is given twice"),
        ({"servers": []}, "option servers holds an empty element"),
        ({"servers": ["nats://a:1", ""]}, "option servers holds an empty element"),
        ({"user": ["ann"]}, "option user must be a single value, not a list"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        JetStreamAdmin(**options)


def test_options_match_in_any_case_and_show_no_secret(server: NatsServer) -> None:
    with JetStreamAdmin(
        SERVERS=server.url, User="ann", PassWord=PASSWORD, REQUESTTIMEOUT="5s"
    ) as admin:
        assert admin.options.request_timeout == 5
        assert list(admin.streams.names()) == ["ORDERS"]
        assert PASSWORD not in f"{admin!r}{admin.options!r}{vars(admin)}"
        assert server.url in repr(admin)


def test_servers_as_a_list(server: NatsServer) -> None:
    urls = ["nats://127.0.0.1:1", server.url]
    for given in (urls, tuple(urls), ",".join(urls)):
        with JetStreamAdmin(**{**login(server), "servers": given}) as admin:
            assert admin.options.servers == tuple(urls)
            assert list(admin.streams.names()) == ["ORDERS"]
    assert JetStreamAdmin.from_environment(
        **{**login(server), "servers": urls}
    ).options.servers == tuple(urls)


def test_nothing_is_asked_before_it_is_needed() -> None:
    admin = JetStreamAdmin(servers="nats://127.0.0.1:1", connectTimeout="300ms")
    with pytest.raises(ConnectionFailed, match=r"127.0.0.1:1"):
        admin.account.info()
    # A fault of the request itself is an error even without a connection.
    with pytest.raises(OptionError, match='there is no field "max_msg"'):
        admin.streams.create("S", max_msg=5)


def test_a_closed_one_says_so_and_leaves_the_connection_to_others(server: NatsServer) -> None:
    with JetStreamAdmin(**login(server)) as one, JetStreamAdmin(**login(server)) as other:
        one.account.info()
        one.close()
        one.close()
        with pytest.raises(JetStreamError, match="is closed"):
            one.account.info()
        with pytest.raises(JetStreamError, match="is closed"):
            one.consumers.load("ORDERS", "c")
        assert other.streams.load("ORDERS").config.name == "ORDERS"


def test_by_a_domain_and_by_a_prefix(server: NatsServer) -> None:
    for options in ({"domain": "hub"}, {"apiPrefix": "$JS.hub.API"}):
        with JetStreamAdmin(**login(server, **options)) as admin:
            assert admin.streams.load("ORDERS").domain == "hub"
    with (
        JetStreamAdmin(**login(server, domain="nowhere")) as admin,
        pytest.raises(
            NoResponders,
            match=r"look at stream ORDERS: nobody answers at \$JS.nowhere.API.STREAM.INFO.ORD",
        ),
    ):
        admin.streams.load("ORDERS")


def test_the_connector_is_light_without_it() -> None:
    code = (
        "import sys, spark_jetstream; print(sorted({'nats', 'pydantic', 'pyarrow'} & "
        "sys.modules.keys()))"
    )
    assert run_python("-c", code).strip() == "[]"


# -- the account --


def test_the_account(server: NatsServer) -> None:
    with JetStreamAdmin(**login(server)) as admin:
        info = admin.account.info()
        assert (info.streams, info.limits.max_streams, info.limits.max_storage, info.domain) == (
            1,
            7,
            10**9,
            "hub",
        )
        assert {name: tier.limits for name, tier in admin.account.tiers().items()} == {
            "": info.limits
        }
        errors = admin.account.info().api.errors
        with pytest.raises(StreamNotFound):
            admin.streams.load("NOWHERE")
        assert admin.account.info().api.errors == errors + 1


def test_the_server(admin: JetStreamAdmin, publisher: Publisher) -> None:
    found = admin.account.server()
    assert found.version == publisher.info["version"]
    assert (found.api_level, found.max_payload) == (
        publisher.info["api_lvl"],
        publisher.info["max_payload"],
    )
    assert found.version.startswith(f"{found.api_since}.")


def test_tiers_are_those_of_the_account() -> None:
    limits = {
        "max_memory": -1,
        "max_storage": 2**30,
        "max_streams": 5,
        "max_consumers": -1,
        "max_bytes_required": True,
    }
    tier = {"memory": 0, "storage": 5, "streams": 1, "consumers": 0, "limits": limits}
    with administered({"INFO": {"tiers": {"R1": tier, "R3": {}}}}) as (_, admin):
        found = admin.account.tiers()
    assert sorted(found) == ["R1", "R3"]
    assert str(found["R1"].limits.max_storage) == "1GiB"
    assert found["R1"].model_dump(mode="json", exclude_unset=True) == tier


def test_an_account_without_jetstream(server: NatsServer) -> None:
    with (
        JetStreamAdmin(**login(server, "pat")) as admin,
        pytest.raises(JetStreamNotEnabled, match="the account"),
    ):
        admin.account.info()


# -- errors and permissions --


def denied(work: Callable[[], object]) -> str | None:
    """The subject that an account may not publish to, which this would need."""
    with pytest.raises(PermissionDenied) as caught:
        work()
    return caught.value.subject


def test_an_account_that_may_read_one_subject_only(server: NatsServer) -> None:
    with JetStreamAdmin(**login(server, "director")) as admin:
        assert admin.messages.last("ORDERS", "orders.a", direct=True).data == b"1"
        last = admin.messages.last
        assert (
            denied(lambda: last("ORDERS", "orders.b", direct=True))
            == "$JS.API.DIRECT.GET.ORDERS.orders.b"
        )
        assert denied(lambda: admin.messages.last_of_each("ORDERS")) == "$JS.API.DIRECT.GET.ORDERS"
        assert denied(lambda: last("ORDERS", "orders.a")) == "$JS.API.STREAM.MSG.GET.ORDERS"


def test_an_account_that_may_see_nothing_but_keys(server: NatsServer) -> None:
    with (
        JetStreamAdmin(**login(server)) as owner,
        JetStreamAdmin(**login(server, "keeper")) as keeper,
    ):
        owner.kv.create("b", history=5)
        bucket = keeper.kv.bucket("b")
        assert bucket.put("a", "1") == 1
        assert bucket.update("a", "2", 1) == 2
        assert bucket.get("a", direct=True).value == b"2"
        with pytest.raises(KeyNotFound, match="the key does not exist"):
            bucket.get("z", direct=True)
        assert denied(lambda: bucket.get("a")) == "$JS.API.STREAM.MSG.GET.KV_b"
        assert denied(bucket.keys) == "$JS.API.STREAM.INFO.KV_b"
        owner.kv.delete("b")


def test_filters_are_not_checked_where_the_stream_cannot_be_seen(server: NatsServer) -> None:
    with JetStreamAdmin(**login(server, "director")) as admin:
        assert (
            admin.consumers.create("ORDERS", "c", filter_subject="t.a").config.filter_subject
            == "t.a"
        )


def test_a_level_that_may_not_be_asked_for_is_trusted(server: NatsServer) -> None:
    with JetStreamAdmin(**login(server, "looker")) as admin:
        admin.consumers.create("ORDERS", durable_name="paused", ack_policy="explicit")
        assert admin.consumers.pause("ORDERS", "paused", "2036-01-01T00:00:00Z").paused
        assert admin.consumers.delete("ORDERS", "paused")


def test_errors_name_the_missing_stream_or_consumer(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name)
    streams, consumers, until = admin.streams, admin.consumers, "2036-01-01T00:00:00Z"
    of_nowhere = "of stream NOWHERE: stream not found"
    missing: list[tuple[str, Callable[[], object]]] = [
        ("cannot look at stream NOWHERE: stream not found", lambda: streams.load("NOWHERE")),
        ("cannot count the messages of stream NOWHERE", lambda: list(streams.subjects("NOWHERE"))),
        ("stream NOWHERE", lambda: streams.update("NOWHERE", max_msgs=5)),
        ("stream NOWHERE", lambda: streams.plan("NOWHERE", max_msgs=5)),
        ("stream NOWHERE", lambda: streams.copy("NOWHERE", f"{name}C")),
        ("stream NOWHERE", lambda: streams.seal("NOWHERE")),
        ("stream NOWHERE", lambda: streams.purge("NOWHERE")),
        ("stream NOWHERE", lambda: streams.purge("NOWHERE", sequence=3)),
        ("cannot delete stream NOWHERE: stream not found", lambda: streams.delete("NOWHERE")),
        ("get message 1 of stream NOWHERE", lambda: admin.messages.get("NOWHERE", 1)),
        ("get the last > of stream NOWHERE", lambda: admin.messages.last("NOWHERE")),
        ("erase message 1 of stream NOWHERE", lambda: admin.messages.erase("NOWHERE", 1)),
        ("look at stream NOWHERE", lambda: list(admin.messages.read("NOWHERE"))),
        ("stream NOWHERE", lambda: admin.describe("NOWHERE")),
        ("stream NOWHERE", lambda: list(admin.lag("NOWHERE"))),
        (f"consumer c {of_nowhere}", lambda: consumers.create("NOWHERE", "c")),
        (f"consumer c {of_nowhere}", lambda: consumers.load_or_create("NOWHERE", "c")),
        (of_nowhere, lambda: consumers.load("NOWHERE", "c")),
        (of_nowhere, lambda: list(consumers.names("NOWHERE"))),
        (of_nowhere, lambda: list(consumers.infos("NOWHERE"))),
        (of_nowhere, lambda: consumers.delete("NOWHERE", "c", missing_ok=True)),
        # The server does not reply to this request.
        (f"consumer c {of_nowhere}", lambda: consumers.reset("NOWHERE", "c", 5)),
        (
            "cannot look at consumer c of stream S: consumer not found",
            lambda: consumers.load(name, "c"),
        ),
        ("consumer c of stream S", lambda: consumers.update(name, "c", max_deliver=5)),
        ("consumer c of stream S", lambda: consumers.plan(name, "c", max_deliver=5)),
        (
            "cannot delete consumer c of stream S: consumer not found",
            lambda: consumers.delete(name, "c"),
        ),
        ("consumer c of stream S", lambda: consumers.pause(name, "c", until)),
        ("consumer c of stream S", lambda: consumers.resume(name, "c")),
        ("consumer c of stream S", lambda: consumers.reset(name, "c")),
        ("unpin group g of consumer c of stream S", lambda: consumers.unpin(name, "c", "g")),
        ("consumer c of stream S", lambda: consumers.next(name, "c")),
        ("consumer c of stream S", lambda: admin.lag(name, "c")),
    ]
    for words, request in missing:
        with pytest.raises(StreamNotFound if "NOWHERE" in words else ConsumerNotFound) as caught:
            request()
        assert words.replace("stream S", f"stream {name}") in str(caught.value)


@pytest.mark.parametrize("name", ["", "A.B", "*", ">", "A B", "a/b"])
@pytest.mark.usefixtures("publisher")  # it makes KEPT
def test_a_name_that_would_be_another_request(name: str, admin: JetStreamAdmin) -> None:
    for request in (
        lambda: admin.streams.load(name),
        lambda: admin.streams.delete(name),
        lambda: admin.streams.purge(name),
        lambda: admin.streams.copy("KEPT", name),
        lambda: admin.messages.get(name, 1),
        lambda: list(admin.consumers.names(name)),
        lambda: admin.consumers.create(name, durable_name="c"),
        lambda: admin.consumers.delete("KEPT", name),
        lambda: admin.consumers.load("KEPT", name),
    ):
        with pytest.raises(OptionError, match="must be the name of a"):
            request()
    assert "KEPT" in admin.streams.names()


@pytest.mark.parametrize("name", ["", "A.B", ">", "A B"])
def test_an_account_that_would_be_another_subject(name: str, admin: JetStreamAdmin) -> None:
    with pytest.raises(OptionError, match="account must be a name without dots, without blanks"):
        admin.cluster.purge_account(name)


# -- old servers and incomplete replies --


def test_a_request_that_an_old_server_lacks_fails_without_being_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old server would not reply on these subjects."""
    set_timing(monkeypatch, ask_again=60.0)  # a reply that takes long adds no request
    answers = {"INFO": account(0), "CONSUMER.INFO.S.c": consumer_info({"name": "c"})}
    with administered(answers) as (fake, admin):
        consumers, until = admin.consumers, "2036-01-01T00:00:00Z"
        of = "consumer c of stream S"
        old = r"2.11 or newer \(API level 1\), .* level 0"
        requests: list[tuple[str, Any]] = [
            (f"pause {of}: this needs nats-server {old}", lambda: consumers.pause("S", "c", until)),
            (f"resume {of}: this needs nats-server 2.11", lambda: consumers.resume("S", "c")),
            (
                f"unpin group g of {of}: this needs nats-server 2.11",
                lambda: consumers.unpin("S", "c", "g"),
            ),
            (
                f"reset {of} to sequence 5: this needs nats-server 2.14",
                lambda: consumers.reset("S", "c", 5),
            ),
            (
                "get the first > since .* this needs nats-server 2.11",
                lambda: admin.messages.since("S", 10**18),
            ),
            (
                "step down in favour of n: this needs",
                lambda: admin.streams.step_down("S", preferred="n"),
            ),
            (
                r"create stream N with allow_msg_ttl: this needs nats-server 2\.11",
                lambda: admin.streams.create("N", allow_msg_ttl=True),
            ),
            (
                r"remove server n from stream S: this needs nats-server 2\.15",
                lambda: admin.streams.remove_peer("S", "n", evacuate=True),
            ),
            (
                r"cancel the change of stream S: this needs nats-server 2\.15",
                lambda: admin.streams.cancel_move("S"),
            ),
            (
                "create stream N with pedantic: this needs",
                lambda: admin.streams.create("N", pedantic=True),
            ),
        ]
        for said, request in requests:
            with pytest.raises(JetStreamError, match=said):
                request()
        assert set(fake.subjects) == {"INFO", "CONSUMER.INFO.S.c"}
        assert fake.subjects.count("INFO") == 1


def test_settings_too_new_for_the_server_are_errors_before_any_change() -> None:
    answers: Replies = {
        "INFO": account(1),
        "STREAM.INFO.N": {
            "error": {"code": 404, "err_code": 10059, "description": "stream not found"}
        },
        "STREAM.INFO.S": stream_info({"name": "S"}),
        "CONSUMER.INFO.S.c": consumer_info({"durable_name": "c"}),
    }
    pinned: dict[str, Any] = {"priority_policy": "prioritized", "priority_groups": ["g"]}
    copying: dict[str, Any] = {"ack_policy": "flow_control", "deliver_subject": "d"}
    mirror = {"name": "O", "consumer": {"name": "c", "deliver_subject": "d"}}
    with administered(answers) as (fake, admin):
        streams, consumers = admin.streams, admin.consumers
        plan = admin.plan({"name": "N"}, {"name": "S", "allow_atomic": True})
        requests: list[tuple[str, Callable[[], object]]] = [
            (
                "create stream N with allow_atomic: .* 2.12",
                lambda: streams.create("N", allow_atomic=True),
            ),
            (
                "create stream N with allow_batched: .* 2.14",
                lambda: streams.create("N", allow_batched=True),
            ),
            ("create stream N with mirror.consumer: ", lambda: streams.create("N", mirror=mirror)),
            (
                "create stream N with sources.consumer: ",
                lambda: streams.create("N", sources=[mirror]),
            ),
            ("update stream S with allow_atomic: ", lambda: streams.update("S", allow_atomic=True)),
            ("update stream S with allow_atomic: ", lambda: admin.apply(plan)),
            (
                "create consumer c of .* with priority_policy prior",
                lambda: consumers.create("S", "c", pinned),
            ),
            (
                "update consumer c of .* with priority_policy prior",
                lambda: consumers.update("S", "c", pinned),
            ),
            ("with ack_policy flow_control: .* 2.14", lambda: consumers.create("S", "c", copying)),
        ]
        for message, request in requests:
            with pytest.raises(JetStreamError, match=message):
                request()
        assert set(fake.subjects) == answers.keys()


def test_a_setting_that_the_server_drops_is_an_error_that_names_it() -> None:
    """A server before 2.12 silently drops fields that it does not know; any server may drop
    values.
    """

    def created(body: dict[str, Any]) -> dict[str, Any]:
        return stream_info({name: value for name, value in body.items() if name != "deny_delete"})

    answers: Replies = {
        "STREAM.CREATE.S": created,
        "STREAM.UPDATE.S": created,
        "STREAM.INFO.S": created({"name": "S"}),
    }
    with administered(answers) as (_, admin):
        said = (
            "stream S was created, but the server has not taken all .*: deny_delete: false -> true"
        )
        with pytest.raises(JetStreamError, match=said):
            admin.streams.create(name="S", deny_delete=True)
        with pytest.raises(
            JetStreamError, match=r"S was updated, but the server has not taken all .*: deny_del"
        ):
            admin.streams.update("S", deny_delete=True, description="new")
        assert [str(each) for each in admin.streams.update("S", description="new")] == [
            "description: nothing -> new"
        ]


def test_a_list_that_is_not_whole_is_no_list() -> None:
    pages = {"total": 3, "offset": 0, "limit": 256}
    page = {
        **pages,
        "streams": [stream_info({"name": "A"})],
        "missing": ["B"],
        "offline": {"C": "too new"},
    }
    consumers = {**pages, "consumers": None, "missing": ["c"]}
    with administered({"STREAM.LIST": page, "CONSUMER.LIST.A": consumers}) as (
        _,
        admin,
    ):
        infos = admin.streams.infos()
        assert next(infos).config.name == "A"
        with pytest.raises(
            ServerBusy, match=r"no server answered for B; no server can run C \(too new\)"
        ) as caught:
            next(infos)
        assert caught.value.retriable
        with pytest.raises(
            ServerBusy, match="list the consumers of stream A as a whole: no server answered for c"
        ):
            list(admin.consumers.infos("A"))


def test_an_election_is_waited_for() -> None:
    """Nobody replies while a stream has no leader, and the API says that it is busy while that has
    none.
    """
    stream = stream_info({"name": "S"})
    busy = {
        "error": {
            "code": 503,
            "err_code": 10008,
            "description": "JetStream system temporarily unavailable",
        }
    }
    replies: list[dict[str, Any] | None] = [None, busy]
    answers: Replies = {
        "STREAM.INFO.S": lambda _: replies.pop(0) if replies else stream,
        "STREAM.INFO.T": busy,
        "STREAM.DELETE.S": busy,
    }
    with (
        administered(answers) as (fake, admin),
        JetStreamAdmin(servers=fake.url, requestTimeout="2s") as impatient,
    ):
        assert admin.streams.load("S").config.name == "S"
        assert replies == []
        assert fake.subjects.count("STREAM.INFO.S") >= 3  # more where an answer takes long
        with pytest.raises(
            ServerBusy, match="look at stream T: JetStream system temporarily unavailable"
        ):
            impatient.streams.load("T")
        assert fake.subjects.count("STREAM.INFO.T") > 1
        # Whether this was done is not known: it is for the caller to say whether to do it again.
        with pytest.raises(
            ServerBusy, match="cannot delete stream S: JetStream system temporarily unavailable"
        ):
            admin.streams.delete("S")
        assert fake.subjects.count("STREAM.DELETE.S") == 1


def test_a_reply_that_says_nothing_is_no_success() -> None:
    with administered({"STREAM.DELETE.S": {}, "STREAM.PURGE.S": {"purged": 1}}) as (_, admin):
        with pytest.raises(JetStreamError, match="cannot delete stream S: the server does not say"):
            admin.streams.delete("S")
        with pytest.raises(JetStreamError, match="cannot purge stream S: the server does not say"):
            admin.streams.purge("S")
