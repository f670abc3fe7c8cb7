"""``spark-jetstream events`` with the real server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.models.events import Event, Gap, StreamAction
from spark_jetstream.admin.subscription import Subscription
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Start, refused
from tests.support.command import Ran, run_command, running, succeed
from tests.support.publish import Publisher

KIND = ("events", "--kind", "stream_action", "--stream", "BUSY")


@pytest.fixture
def busy(nats_server: NatsServer, publisher: Publisher) -> Iterator[None]:
    """Somebody creates and deletes stream ``BUSY`` all the time; beside the stream of `publisher`,
    which stays.
    """
    done = threading.Event()

    def work() -> None:
        with JetStreamAdmin(servers=nats_server.url) as admin:
            while not done.wait(0.02):
                admin.streams.create(name="BUSY", subjects=["busy"], storage="memory")
                admin.streams.delete("BUSY")

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        yield
        done.set()
        worker.result()


@pytest.mark.usefixtures("busy")
def test_each_event_is_a_line(nats_server: NatsServer) -> None:
    ran = succeed(*KIND, "--count", "4", url=nats_server.url)
    words = [line.split(" ", 1)[1] for line in ran.out.splitlines()]
    assert len(words) == 4
    assert set(words) == {
        f"stream_action stream BUSY was {done}" for done in ("created", "deleted")
    }
    subjects = [
        f"$JS.EVENT.ADVISORY.STREAM.{done}.BUSY" for done in ("CREATED", "UPDATED", "DELETED")
    ]
    assert ran.err == f"Listening on {', '.join(subjects)}\n"
    details = succeed(*KIND, "--count", "1", "--details", url=nats_server.url).out.splitlines()
    assert [line.split(": ")[0].strip() for line in details[1:]] == [
        "type",
        "id",
        "timestamp",
        "stream",
        "action",
    ]
    templates = ("--count", "1", "--template", "{kind} {stream} {nothing}.")
    assert succeed(*KIND, *templates, url=nats_server.url).out == "stream_action BUSY .\n"
    for wrong, said in {
        ("--template", "{"): "is not possible",
        ("--details", "--template", "{kind}"): "contradict each other",
        ("--details", "--json"): "contradict --json and --cloudevents",
        ("--template", "{kind}", "--cloudevents"): "contradict --json and --cloudevents",
    }.items():
        refused(run_command(*KIND, *wrong, url=nats_server.url), 2, said)
    printed = succeed(*KIND, "--count", "2", "--json", url=nats_server.url).objects
    assert {item["action"] for item in printed} == {"create", "delete"}
    assert {*printed[0]} == {"type", "id", "timestamp", "stream", "action"}
    for entry in succeed(*KIND, "--count", "2", "--cloudevents", url=nats_server.url).objects:
        assert entry.keys() == {
            "specversion",
            "id",
            "source",
            "type",
            "subject",
            "time",
            "datacontenttype",
            "data",
        }
        assert (entry["specversion"], entry["type"], entry["id"]) == (
            "1.0",
            StreamAction.TYPE,
            entry["data"]["id"],
        )
        assert entry["subject"].startswith("$JS.EVENT.ADVISORY.STREAM.")


def test_options_choose_the_subjects(nats_server: NatsServer) -> None:
    """And no event within the given time is no error."""
    for line, subjects in {
        "--all": "$JS.EVENT.ADVISORY.>, $JS.EVENT.METRIC.>",
        "--advisories": "$JS.EVENT.ADVISORY.>",
        "--metrics --consumer c": "$JS.EVENT.METRIC.CONSUMER.*.*.c",
        "--kind nak --kind ADVISORY.API": "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.*.*, "
        "$JS.EVENT.ADVISORY.API",
        "--prefix a.b --metrics": "a.b.METRIC.>",
    }.items():
        ran = succeed("events", *line.split(), "--for", "20ms", url=nats_server.url)
        assert ran.err == f"Listening on {subjects}\n"


ACCOUNTS = """
accounts {
  STREAMS {
    jetstream: enabled, exports: [{ stream: "$JS.EVENT.>" }]
    users: [{ user: hears, password: p, permissions: { subscribe: "$JS.EVENT.>", publish: [] } }]
  }
  PLAIN { users: [{ user: plain, password: p }], imports: [{ stream: { account: STREAMS, subject: "$JS.EVENT.>" } }] }
  SYS { users: [{ user: system, password: p }] }
}
system_account: SYS
"""


def test_without_jetstream_there_are_no_events(
    nats_server_factory: Start, no_connection_left: None
) -> None:
    server, bare = nats_server_factory(config=ACCOUNTS), nats_server_factory(jetstream=False)

    def run(user: str, *line: str) -> Ran:
        return run_command(*line, "--user", user, "--password", "p", url=server.url)

    for line in (("events", "--for", "1s"), ("kv", "watch", "b"), ("object", "watch", "b")):
        refused(run("plain", *line), 1, "JetStream not enabled for account")
        refused(
            run_command(*line, url=bare.url), 3, "is JetStream enabled for this server and account"
        )
    # Also of who may only listen; somebody else's events, and those of the system account.
    for user, *more in (("hears",), ("system",), ("plain", "--prefix", "$JS.EVENT")):
        ran = run(user, "events", "--for", "20ms", *more)
        assert (ran.code, ran.err) == (0, "Listening on $JS.EVENT.ADVISORY.>, $JS.EVENT.METRIC.>\n")


def test_ctrl_c_ends_it(nats_server: NatsServer) -> None:
    with running("events", "--server", nats_server.url) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Listening on $JS.EVENT.")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_gap_is_reported_and_ends_with_1(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command gets the gap that a lost connection causes; tests/admin has the loss."""
    times = {"id": "1", "timestamp": "2026-03-01T12:00:00Z", "since": "2026-03-01T11:59:59Z"}
    gap = Gap.from_server({"type": Gap.TYPE, **times, "reason": "the connection was cut"})

    def lose(watch: Subscription[Event]) -> Gap:
        if watch.gaps:
            raise StopIteration
        watch.gaps = 1
        return gap

    monkeypatch.setattr(Subscription, "__next__", lose)
    ran = run_command(*KIND, "--json", url=nats_server.url)
    (printed,) = ran.objects
    assert (ran.code, printed["type"], printed["since"]) == (
        1,
        "spark_jetstream.event.v1.gap",
        times["since"],
    )
    assert ran.err.count("events may be missing") == 1
