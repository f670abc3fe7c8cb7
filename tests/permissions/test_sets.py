"""Permissions as data: what is asked for, put together, written down; with domains and prefixes;
and their limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.errors import ApiError, NoResponders, PermissionDenied
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.permissions import PURPOSES, Permission, merged, needed, user_config
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.source.reader import JetStreamStreamReader
from spark_jetstream.testing import NatsServer
from tests.support import leaf
from tests.support import permitted as use
from tests.support.client import ask
from tests.support.permissions import INBOX, PASSWORD, Account, Case, parameters, served
from tests.support.permitted import need
from tests.support.reading import wait_until

pytestmark = pytest.mark.usefixtures("quick_ledger")

# -- as data --


def subjects(lines: tuple[Permission, ...]) -> list[str]:
    return [line.subject for line in lines]


def test_a_read_needs_what_its_filters_ask_for() -> None:
    create = "$JS.API.CONSUMER.CREATE.S.*"
    for filters, expected in (([], [create]), (["a.*"], [f"{create}.a.*"]), (["a", "b"], [create])):
        lines = needed("read", stream="S", subjects=filters)
        assert [subject for subject in subjects(lines) if ".CREATE." in subject] == expected
    either = {
        line.subject: line.when for line in needed("read", stream="S") if ".CREATE." in line.subject
    }
    assert either == {create: "without a filter, or with several", f"{create}.>": "with one filter"}


def test_a_read_without_a_filter_may_ask_the_leader_and_can_do_without() -> None:
    for filters, optional in (([], True), (None, True), (["a.*"], False), (["a", "b"], False)):
        lines = needed("read", stream="S", subjects=filters)
        assert (
            "$JS.API.STREAM.MSG.GET.S" in [line.subject for line in lines if line.without]
        ) == optional
    (letters,) = (line for line in needed("dead-letters-read") if ".MSG.GET." in line.subject)
    assert (letters.when, letters.without) == (
        "columns of the message",
        "",
    )  # it reads the messages, too


#: What would show or change something of a stream that no purpose was asked for.
ELSEWHERE = (
    *(
        f"$JS.API.STREAM.{verb}.T"
        for verb in ("INFO", "CREATE", "UPDATE", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE")
    ),
    *(
        f"$JS.API.{verb}.T"
        for verb in ("DIRECT.GET", "STREAM.SNAPSHOT", "STREAM.RESTORE", "CONSUMER.LIST")
    ),
    *(
        f"$JS.API.CONSUMER.{verb}.T.c"
        for verb in ("INFO", "CREATE", "DELETE", "RESET", "PAUSE", "MSG.NEXT")
    ),
    *("$JS.ACK.T.c.1.1.1.1.0", "t.a", "$KV.t.k", "$O.t.C.n", "$O.t.M.n", "$SYS.REQ.SERVER.PING"),
)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_purpose_has_its_lines_with_any_prefix_and_none_of_other_streams(
    purpose: str,
) -> None:
    asked = partial(
        needed, purpose, stream="S", bucket="b", subjects=["x"], durable="d", dead_letter="dead"
    )
    lines, prefixed = asked(), asked(prefix="OWNER.API", inbox_prefix="_MINE")
    assert all(line.why for line in lines)
    assert len({(line.kind, line.subject) for line in lines}) == len(lines)
    moved = [
        line.subject.replace("$JS.API.", "OWNER.API.").replace("_INBOX.", "_MINE.")
        for line in lines
    ]
    moved = [f"OWNER.API.{subject}" if subject.startswith("$KV.") else subject for subject in moved]
    assert subjects(prefixed) == moved
    assert [
        subject for subject in ELSEWHERE for line in lines if line.covers(Permission(subject, ""))
    ] == []


def test_some_purpose_needs_each_endpoint_but_those_of_the_system_account() -> None:
    allowed = {
        subject
        for purpose in PURPOSES
        for subject in subjects(needed(purpose, stream="S", bucket="B", subjects=["a.*"]))
    }
    names = {"stream": "S", "consumer": "*", "filter": ">", "subject": ">", "account": "A"}
    for endpoint in vars(jsapi).values():
        if isinstance(endpoint, Endpoint):
            subject = jsapi.subject("$JS.API", endpoint, **names)
            assert (subject in allowed) is not endpoint.system, subject


def test_a_purpose_without_its_names_is_refused() -> None:
    with pytest.raises(ValueError, match="'reading' is none of read, "):
        needed("reading")
    with pytest.raises(ValueError, match="purpose kv-write needs a bucket"):
        needed("kv-write")
    with pytest.raises(ValueError, match="purpose admin-objects needs a bucket"):
        needed("admin-objects")
    with pytest.raises(ValueError, match="purpose write needs the subjects of the rows"):
        needed("write", stream="S")


def test_sets_are_put_together_without_what_others_cover() -> None:
    wide, narrow = Permission("a.>", "all", without="goes on"), Permission("a.b", "some")
    assert merged([wide], [narrow]) == (Permission("a.>", "all"),)
    assert merged([narrow], [wide]) == (Permission("a.>", "all"),)
    sometimes = Permission("a.b", "more", when="now and then")
    assert merged([sometimes], [narrow]) == (Permission("a.b", "more"),)
    assert merged([wide], [sometimes]) == (Permission("a.>", "all", when="now and then"),)
    heard = Permission("a.b", "answers", kind="subscribe")
    assert merged([wide], [heard]) == (wide, heard)
    assert not wide.covers(Permission(">", ""))
    assert not Permission("a.*", "").covers(wide)
    assert Permission("*.b", "").covers(narrow)


def test_a_user_is_written_as_the_server_reads_it() -> None:
    lines = [
        Permission("a.*", "rows"),
        Permission("b", "more", when="now and then", without="less"),
        Permission("i.>", "answers", kind="subscribe"),
    ]
    assert (
        user_config("ann", 'p"w', lines, notes=True)
        == r"""{
  user: "ann", password: "p\"w"
  permissions {
    publish {
      allow: [
        "a.*"  # rows
        "b"  # optional: more (now and then)
      ]
    }
    subscribe {
      allow: [
        "i.>"  # answers
      ]
    }
  }
}"""
    )
    assert '    publish { deny: [">"] }' in user_config("ann", "pw", lines[2:])
    assert "  }\n    allow_responses: true\n  }\n}" in user_config(
        "ann", "pw", lines, allow_responses=True
    )


@pytest.mark.usefixtures("no_connection_left")
def test_a_user_may_have_any_text_that_a_server_can_read() -> None:
    user, password, subject = "jürgen\t", 'pä"\\s\n\r\N{GRINNING FACE}', "größe.a"
    lines = [Permission("größe.>", "rows"), Permission("_INBOX.>", "answers", kind="subscribe")]
    with NatsServer(
        config=f"authorization {{ users: [ {user_config(user, password, lines)} ] }}"
    ) as server:
        login = {"servers": server.url, "user": user, "password": password}
        connection = connect(ConnectionOptions.from_spark(login))
        with pytest.raises(NoResponders):
            connection.request(subject, b"", context="ask")
    for sign in "\0\b\f\x1f":
        cases = (
            (f"a{sign}", "b", lines),
            ("a", f"b{sign}", lines),
            ("a", "b", [Permission(f"c{sign}", "rows")]),
        )
        for what, given in zip(("user", "password", "subject"), cases, strict=True):
            with pytest.raises(
                ValueError, match=f"^a {what} with a control character is not possible"
            ):
                user_config(*given)


class Responding(Account):
    """Whose user answers messages that it got, and no others."""

    def __init__(self, responses: bool | dict[str, Any]) -> None:
        super().__init__()
        self.responses = responses

    def config(self, lines: Sequence[Permission]) -> str:
        user = user_config(f"spark{self.number}", PASSWORD, lines, allow_responses=self.responses)
        admin = f"{{ user: admin{self.number}, password: {PASSWORD} }}"
        return f"A{self.number} {{ jetstream: enabled, users: [ {admin}\n{user} ] }}"


def test_answers_to_own_messages_only() -> None:
    lines = [
        line
        for line in need("admin-consumers", stream="S")
        if not line.subject.startswith(("$JS.ACK.", "$JS.FC."))
    ]
    accounts: dict[Account, list[Permission]] = {
        Responding(responses): lines for responses in (False, True, {"max": 2, "expires": "1h"})
    }
    with served(accounts):
        for account, answers in zip(accounts, (0, 1, 2), strict=True):
            account.make("S")
            account.fill(*(["s.a"] * 302), data=b"x" * 10_000)
            consumers = JetStreamAdmin(**account.login).consumers
            consumers.create("S", "c", ack_policy="explicit")
            (message,) = consumers.next("S", "c", ack="none")
            for _ in range(answers):
                consumers.in_progress(message)
            with pytest.raises(PermissionDenied, match=r"may not publish to \$JS\.ACK\.S\.c\."):
                consumers.ack(message)
            with JetStreamAdmin(servers=account.admin) as admin, pytest.raises(PermissionDenied):
                consumers.ack(
                    admin.consumers.next("S", "c", ack="none")[0]
                )  # that another client got
            push: dict[str, Any] = {
                "deliver_subject": f"{INBOX}.push",
                "flow_control": True,
                "idle_heartbeat": "1s",
            }
            consumers.create("S", "p", ack_policy="none", **push)
            received = islice(consumers.receive("S", "p", timeout=30), 302)
            if answers:
                assert len(list(received)) == 302
            else:
                with pytest.raises(PermissionDenied, match=r"may not publish to \$JS\.FC\.S\.p\."):
                    list(received)


# -- of a domain --

_DURABLE = merged(
    need("read", stream="S", subjects=[]), need("durable", stream="S", durable="query", subjects=[])
)
_ONCE = need("write-exactly-once", stream="S", subjects=["s.a"], dead_letter="s.dead")
_KV = tuple(line for line in need("kv-write", bucket="b", dead_letter="s.dead") if not line.without)
of_hub = partial(Case, given={"domain": "hub"}, config="jetstream { domain: hub }")
CASES = [
    of_hub("read", need("read", stream="S"), use.filled, use.read_all_ways),
    of_hub(
        "read-direct",
        need("read-direct", stream="S"),
        use.filled,
        partial(use.read_all_ways, readWith="direct"),
    ),
    of_hub("durable", _DURABLE, partial(use.made, retention="interest"), use.durable),
    of_hub("write-exactly-once", _ONCE, use.made, use.write_exactly_once),
    of_hub("kv-write", _KV, use.bucket_kv_beside_a_stream, use.kv_store),
]


@pytest.mark.parametrize("case", parameters(CASES))
def test_a_server_that_has_the_domain_itself_checks_subjects_without_it(case: Case) -> None:
    case.run()


class Linked(Account):
    """Whose streams are in the domain of a leaf node, with a user at its hub who may do what the
    lines say.
    """

    leaf = ""

    @property
    def admin(self) -> str:
        """The admin is at the leaf node."""
        return self.leaf


@pytest.mark.usefixtures("no_connection_left")
def test_a_server_of_another_domain_checks_subjects_with_it(tmp_path: Path) -> None:
    linked_to = partial(need, prefix="$JS.leaf.API")
    lines = merged(
        linked_to("read", stream="S"),
        linked_to("write-exactly-once", stream="S", subjects=["s.a"], dead_letter="s.dead"),
        linked_to("kv-write", bucket="b", dead_letter="s.dead"),
        linked_to("admin-backup", stream="S"),
        linked_to("admin-consumers", stream="S"),
    )
    user = Linked({"domain": "leaf"})
    linked = leaf.Linked()
    config = str(linked.hub.config).replace(
        "no_advertise: true", f"no_advertise: true, authorization {{ account: A{user.number} }}"
    )
    linked.hub.config = (
        f"{config}\nno_auth_user: admin{user.number}\naccounts {{ {user.config(lines)} }}"
    )
    with linked:
        user.settle(linked.hub.url)
        user.leaf = linked.leaf.url
        use.filled(user)
        use.read_all_ways(user)
        admin = JetStreamAdmin(**user.login)
        admin.consumers.create("S", durable_name="c", ack_policy="explicit")
        assert len(admin.consumers.next("S", "c", 2)) == 2  # acknowledged
        admin.streams.backup("S", tmp_path / "s.tar")
        use.store(user, delivery="exactly-once")
        use.bucket_kv(user)
        use.kv_store(user)
        with pytest.raises(
            PermissionDenied, match=r"may not publish to \$JS\.leaf\.API\.STREAM\.INFO\.T"
        ):
            use.read(user, stream="T")


# -- of another account --


class Guest(Account):
    """Whose JetStream is that of another account, with a user who may do what the lines say."""

    def config(self, lines: Sequence[Permission]) -> str:
        owner = f"O{self.number}"
        exported = ["$JS.API.>", "s.>", "$KV.>"]
        services = ", ".join(
            f'{{ service: "{subject}", response_type: stream }}' for subject in exported
        )
        return f"""
{owner} {{ jetstream: enabled, exports: [ {services} ]
  users: [ {{ user: admin{self.number}, password: {PASSWORD} }} ] }}
A{self.number} {{ users: [
{user_config(f"spark{self.number}", PASSWORD, lines)} ], imports: [
  {{ service: {{ account: {owner}, subject: "$JS.API.>" }}, to: "OWNER.API.>" }}
  {{ service: {{ account: {owner}, subject: "s.>" }} }}
  {{ service: {{ account: {owner}, subject: "$KV.>" }}, to: "OWNER.API.$KV.>" }} ] }}"""


def read_no_other_stream(account: Account) -> None:
    use.read_all_ways(account)
    with pytest.raises(PermissionDenied, match=r"may not publish to OWNER\.API\.STREAM\.INFO\.T"):
        use.read(account, stream="T")


foreign = partial(need, prefix="OWNER.API")
of_guest = partial(Case, given={"apiPrefix": "OWNER.API"}, account=Guest)
IMPORTED = [
    of_guest("read", foreign("read", stream="S"), use.filled, read_no_other_stream),
    of_guest(
        "write-exactly-once",
        foreign("write-exactly-once", stream="S", subjects=["s.a"], dead_letter="s.dead"),
        use.made,
        partial(use.store, delivery="exactly-once"),
    ),
    of_guest(
        "kv-write",
        foreign("kv-write", bucket="b", dead_letter="s.dead"),
        use.bucket_kv_beside_a_stream,
        use.kv_store,
    ),
]


@pytest.mark.parametrize("case", parameters(IMPORTED))
def test_imported_apis_need_their_prefix(case: Case) -> None:
    case.run()


# -- what permissions do, and what they do not --


@pytest.fixture
def allowed(nats_server_factory: Callable[..., NatsServer]) -> Iterator[Callable[..., Account]]:
    """A function that starts a server with a user who has these permissions."""

    def start(*lines: Permission) -> Account:
        account = Account()
        account.settle(nats_server_factory(config=f"accounts {{ {account.config(lines)} }}").url)
        return account

    yield start
    close_all()


def test_a_reader_of_one_filter_reads_no_other(allowed: Callable[..., Account]) -> None:
    account = allowed(*need("read", stream="S", subjects=["s.a"]))
    use.filled(account)
    for filters in ({"subjects": "s.b"}, {"subjects": "s.a,s.b"}, {}):
        with pytest.raises(
            PermissionDenied, match=r"may not publish to \$JS\.API\.CONSUMER\.CREATE\.S\."
        ):
            use.read(account, stream="S", **filters)
    # And not by saying one filter and meaning another.
    subject = jsapi.consumer_create("$JS.API", "S", "mine", ["s.a"])
    for meant in ({"filter_subject": "s.b"}, {"filter_subjects": ["s.a", "s.b"]}, {}):
        body = jsapi.consumer_request("S", {"name": "mine", "ack_policy": "none", **meant})
        with pytest.raises(ApiError):
            account.connect().api(subject, body, context="cheat")
    assert not account.ask("CONSUMER.NAMES.S")["consumers"]


def test_a_maker_of_consumers_may_have_messages_delivered_anywhere(
    allowed: Callable[..., Account],
) -> None:
    """As the page says: nobody asks whether the account may publish to the deliver_subject of its
    consumer.
    """
    account = allowed(*need("read", stream="S"))
    use.filled(account)
    account.make("T")
    body = jsapi.consumer_request(
        "S", {"name": "mine", "ack_policy": "none", "deliver_subject": "t.a"}
    )

    async def deliver(js: JetStreamContext) -> None:
        # Push consumers wait for a subscriber; what he hears, a stream with that subject stores.
        await js._nc.subscribe("t.a")
        await js._nc.flush()
        make = jsapi.consumer_create("$JS.API", "S", "mine", [])
        await asyncio.to_thread(account.connect().api, make, body, context="reach further")
        await asyncio.to_thread(
            wait_until, lambda: use.state(account, "T")["messages"] == 12, "T has what was in S"
        )

    ask(account.admin, deliver)


def test_a_position_is_looked_after_by_direct_gets_where_these_are_asked_for(
    allowed: Callable[..., Account],
) -> None:
    """Somebody purges what the query has not read: it must not make a consumer to see what that
    was.
    """
    lines = need("durable", stream="S", durable="query", subjects=["s.a"])
    account = allowed(*merged(need("read-direct", stream="S"), lines))
    use.made(account)
    given = {
        "stream": "S",
        "durable": "query",
        "readWith": "direct",
        "subjects": "s.a",
        "failOnDataLoss": "false",
    }
    reader = JetStreamStreamReader({**account.login, **given}, use.column("data"))
    start = reader.initialOffset()
    for _ in range(2):
        use.fill(account)
        end = use.latest(reader, start)
        assert (
            sum(len(batch) for part in reader.partitions(start, end) for batch in reader.read(part))
            == 4
        )
        start = end
        reader.commit(end)
        assert use.latest(reader, end) == end
    use.fill(account)
    account.ask("STREAM.PURGE.S", {"filter": "s.a"})
    end = use.latest(reader, start)
    reader.commit(end)
    assert use.latest(reader, end) == end
