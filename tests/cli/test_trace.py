"""``spark-jetstream trace`` on a real server: the tree, the JSON, and how it ends."""

from __future__ import annotations

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin import trace as tracing
from spark_jetstream.cli.output import Branch, Output
from spark_jetstream.protocol.features import MESSAGE_TRACES
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, Start, refused
from tests.support.command import run_command
from tests.support.features import for_none
from tests.support.proxy import WireProxy

GROUP = ("trace",)


def test_the_tree_has_each_step(admin: JetStreamAdmin, name: str, run: Command) -> None:
    admin.streams.create(name, subjects=[f"{name}.>"], storage="memory")
    with admin.subscribe(f"{name}.*", queue="workers"):
        ran = run(f"{name}.a", "data", "--header", "Region: eu")
    root, server, came, *steps, conclusion = ran.out.splitlines()
    assert (ran.code, ran.err, root) == (0, "", f"{name}.a")
    assert server.startswith("└── server ")
    assert came.endswith(f", account $G, as {name}.a")
    assert sorted(step.partition("── ")[2].partition(" client")[0] for step in steps)[-1] == (
        f"stream {name} stores it at {name}.a"
    )
    (subscriber,) = (step for step in steps if "is subscribed to" in step)
    assert subscriber.endswith(f" is subscribed to {name}.*, queue group workers")
    assert conclusion == f"Stored by {name}"
    assert admin.streams.load(name).state.messages == 0


def test_json_has_the_reports_of_the_servers(
    admin: JetStreamAdmin, name: str, run: Command
) -> None:
    admin.streams.create(name, subjects=[name], storage="memory")
    data = run(name, "--json").json
    trace = data.pop("trace")
    (stream,) = data.pop("streams")
    server = stream.pop("server")
    assert stream == {"stream": name, "subject": name, "domain": "", "dropped": False, "error": ""}
    assert data == {
        "subject": name,
        "complete": True,
        "missing": [],
        "blind_spots": [],
        "accounts": ["$G"],
    }
    assert trace["server"]["name"] == server
    assert [event["type"] for event in trace["events"]] == ["in", "js"]


def test_nothing_stores_it(name: str, run: Command) -> None:
    ran = run(f"{name}.a")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "No stream stores it")


def test_a_name_of_somebody_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Clients and servers name themselves."""
    Output(as_json=False).tree(Branch("a", [Branch("client \x1b[2J[bold]")]))
    assert capsys.readouterr().out == "a\n└── client \\x1b[2J[bold]\n"


def test_an_older_server_ends_it_with_1(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MESSAGE_TRACES", for_none(MESSAGE_TRACES))
    refused(run("a"), 1, "cannot trace a: this needs nats-server 99.0 or newer, and the server is")


def test_wrong_lines_end_it_with_2(run: Command) -> None:
    refused(run("a.*"), 2, "subject")
    refused(run("$JS.API.INFO"), 2, "everything below $JS belongs to the server")
    refused(run("a", "--deliver"), 2, "use `pub` to store a message")


BLIND = """
accounts {
  A { jetstream: enabled, users: [{ user: a, password: p }], exports: [{ stream: "a.>" }] }
  B { users: [{ user: b, password: p }], imports: [{ stream: { account: A, subject: "a.>" } }] }
}
"""


def test_blind_spots_are_notes(nats_server_factory: Start) -> None:
    url = nats_server_factory(config=BLIND).url
    with JetStreamAdmin(servers=url, user="b", password="p") as b, b.subscribe("a.>"):
        ran = run_command("trace", "a.x", "--user", "a", "--password", "p", url=url)
    assert ran.code == 0
    assert ran.err.startswith("not known: account B may do more with it: ")
    assert "account B gets it at a.x (stream export)" in ran.out


def test_a_stream_that_refuses_beside_another_one_is_not_said_to_store(
    nats_server_factory: Start,
) -> None:
    """The server does not tell which of them refuses."""
    config = BLIND.replace('subject: "a.>" } }', 'subject: "a.>" }, allow_trace: true }')
    config = config.replace("B {", "B { jetstream: enabled,")
    url = nats_server_factory(config=config).url
    with (
        JetStreamAdmin(servers=url, user="a", password="p") as a,
        JetStreamAdmin(servers=url, user="b", password="p") as b,
    ):
        a.streams.create("A", subjects=["a.>"], storage="memory")
        b.streams.create("B", subjects=["a.>"], storage="memory", max_msg_size=1)
        ran = run_command("trace", "a.x", "data", "--user", "a", "--password", "p", url=url)
    assert ran.code == 0
    assert ran.out.splitlines()[-1].endswith(", as far as is known")
    assert ran.err.endswith(" refuse or drop it\n")


def test_no_report_in_time_ends_it_with_3(nats_server: NatsServer) -> None:
    with WireProxy(nats_server.url) as proxy:
        proxy.drop_frames(b"Nats-Trace-Dest")
        ran = run_command("trace", "a", "--timeout", "500ms", url=proxy.url)
    refused(ran, 3, "cannot trace a: no reply within 0.5 s")
