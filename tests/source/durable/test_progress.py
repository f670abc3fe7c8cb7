"""How far Spark has committed, kept by consumers of a real server (option durable)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    ConsumerLimitReached,
    DataLossError,
    JetStreamError,
    OptionError,
    ProtocolError,
    RequestTimeout,
)
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.features import CONSUMER_RESET, FILTERED_PURGE
from spark_jetstream.protocol.jsapi import purge_request
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.durable import consumer_state, purging
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.durable.lazy_commit import LazyCommit
from spark_jetstream.source.durable.progress import Progress
from spark_jetstream.source.probes import DirectProbe
from tests.support.client import set_timing
from tests.support.features import for_all, for_none
from tests.support.planning import STATE
from tests.support.progress import (
    RETENTIONS,
    SECOND,
    Maker,
    Run,
    can_move,
    consumer,
    consumers,
    delete_consumer,
    kept,
    left,
    level_of,
    make_consumer,
    pending,
    position,
    publishing,
    state_of,
    take,
)
from tests.support.publish import Message, Tap
from tests.support.reading import wait_until
from tests.support.streams import Stream


@pytest.fixture(params=[False, True], ids=["newer server", "older server"])
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server counts as one that cannot move a consumer."""
    if request.param:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    return bool(request.param)


# Each retention


@pytest.mark.usefixtures("old")
def test_limits(stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    made = stream()
    made.fill(10)
    run = Run(made).open()
    run.commit(1)
    assert (position(made), pending(made)) == (1, 10)
    for committed in (
        4,
        4,
        11,
        3,
        8,
    ):  # also back: the query began anew, or its stream lost its tail
        run.move(committed)
        assert (position(made), pending(made)) == (committed, 11 - committed)
    assert kept(made) == (1, 10, 10)
    assert consumers(made) == ["query"]
    assert not caplog.records


@pytest.mark.usefixtures("old")
def test_interest_is_held_until_the_commit(stream: Maker) -> None:
    made = stream(retention="interest")
    made.fill(3)
    assert kept(made) == (4, 3, 0)  # nobody was interested
    run = Run(made).open()
    run.commit(4)
    made.fill(10)
    assert kept(made) == (4, 13, 10)
    for committed in (4, 9, 9, 12):
        run.move(committed)
        assert kept(made) == (committed, 13, 14 - committed)
        assert pending(made) == 14 - committed
    old = state_of(made)
    made.fill(2)
    run.progress.commit(old, 16)  # what is committed may have come after the stream was looked at
    assert kept(made) == (16, 15, 0)
    made.fill(1)
    assert kept(made) == (16, 16, 1)


@pytest.mark.usefixtures("old")
def test_other_consumers_of_an_interest_stream_keep_what_they_need(stream: Maker) -> None:
    made = stream(retention="interest")
    make_consumer(made, "other", filter_subject=f"{made.subject}.a")
    run = Run(made, f"{made.subject}.a", f"{made.subject}.b").open()
    made.fill_in_turn(12, ["a", "b", "c"])  # c is nobody's
    assert len(left(made)) == 8
    run.commit(8)
    assert left(made) == [1, 4, 7, 8, 10, 11]  # a, and 8 and 11 of b
    assert pending(made, "other") == 4
    take(made, "other", 4)
    assert left(made) == [8, 10, 11]
    run.commit(13)
    assert left(made) == []


@pytest.mark.parametrize("filters", [(), ("a",), ("a", "b"), ("*.x",)])
def test_work_queue(stream: Maker, filters: tuple[str, ...]) -> None:
    made = stream(retention="workqueue")
    if len(filters) > 1 and not FILTERED_PURGE.is_at(level_of(made)):
        refused(made)
        return
    run = Run(made, *(f"{made.subject}.{suffix}" for suffix in filters)).open()
    run.commit(1)
    turns = ["a", "b", "c", "d.x"]
    made.fill_in_turn(20, turns)
    wanted = {"d.x" if suffix == "*.x" else suffix for suffix in filters or turns}
    mine = [at for at in range(1, 21) if turns[(at - 1) % 4] in wanted]
    for committed in (1, 8, 8, 9, 14, 21):
        run.move(committed)
        assert left(made) == [at for at in range(1, 21) if at not in mine or at >= committed]
        assert pending(made) == len([at for at in mine if at >= committed])
    assert consumers(made) == ["query"]


@pytest.mark.parametrize("filters", [(), (">",)])
def test_a_commit_where_all_later_messages_were_deleted(
    stream: Maker, filters: tuple[str, ...]
) -> None:
    """A purge at that sequence would lead to the loss of message 4."""
    made = stream(retention="workqueue")
    run = Run(made, *filters).open()
    made.fill(2)
    made.remove(2)
    run.move(2)
    assert kept(made) == (3, 2, 0)
    made.fill(2)
    run.move(4)
    assert kept(made) == (4, 4, 1)
    run.move(5)
    assert kept(made) == (5, 4, 0)


def test_a_former_leader_that_lacks_the_newest_messages_of_a_queue(
    stream: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers the first look, and the purge must not take what it lacks."""
    set_timing(monkeypatch, election=0.0)
    made = stream(retention="workqueue")
    made.fill(4)
    made.remove(2)
    peek = DirectProbe.peek
    looks = list[int]()

    def late(probe: DirectProbe, first: int) -> tuple[int, int] | None:
        looks.append(first)
        return None if len(looks) == 1 else peek(probe, first)

    monkeypatch.setattr(DirectProbe, "peek", late)
    run = Run(made)
    queue = DurableConsumers(Requests(run.wire, 15.0), (), run="run")
    queue.purge(replace(state_of(made), clustered=True), 3)
    assert looks == [3, 3]
    assert kept(made) == (3, 4, 2)


def refused(made: Stream) -> None:
    with pytest.raises(
        OptionError, match=r"\(option subjects: .*\.a, .*\.b\): .* may lose unread messages"
    ) as raised:
        Run(made, f"{made.subject}.a", f"{made.subject}.b").open()
    assert raised.value.option == "subjects"


def test_several_filters_of_a_work_queue_and_an_older_server(
    stream: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would move the consumer past what was not read when one filter is purged."""
    made = stream(retention="workqueue")
    filters = [f"{made.subject}.a", f"{made.subject}.b"]
    make_consumer(made, filter_subjects=filters)
    monkeypatch.setattr(purging, "FILTERED_PURGE", for_all(FILTERED_PURGE))
    run = Run(made, *filters).open()
    made.fill_in_turn(6, "ab")
    monkeypatch.setattr(purging, "FILTERED_PURGE", for_none(FILTERED_PURGE))
    with pytest.raises(OptionError, match="may lose unread messages"):
        run.commit(5)  # the server was replaced by an older one
    assert kept(made) == (1, 6, 6)
    refused(made)
    delete_consumer(made)
    refused(made)
    assert consumers(made) == []  # what was made is not left behind
    run = Run(made, *filters)
    run.wire.deny("CONSUMER.DELETE")
    with pytest.raises(OptionError, match="may lose unread messages"):
        run.open()
    assert (
        caplog.messages[-1]
        == f"stream {made.name}: consumer query (option durable) is left behind: not allowed"
    )
    delete_consumer(made)
    Run(made, filters[0]).open()
    for retention in ("limits", "interest"):
        Run(stream(retention=retention), *filters).open()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_publishers_go_on_meanwhile(stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    run = Run(made).open()
    committed = 1

    def look(_: str) -> None:
        # At each step all that is not committed is there.
        first, last, messages = kept(made)
        assert first <= committed
        assert messages == last + 1 - first

    def more() -> bool:
        return bool(made.state()["last_seq"] > committed + 10)

    run.wire.before = run.wire.after = look
    with publishing(made.url, *(f"{made.subject}.{suffix}" for suffix in "abc")):
        for _ in range(4):
            wait_until(more, "more messages")
            run.check()
            committed = made.state()["last_seq"] - 3
            run.commit(committed)
            first, last, messages = kept(made)
            assert (first, messages) == (committed, last + 1 - committed)
    committed = kept(made)[1] + 1
    run.commit(committed)
    assert kept(made) == (committed, committed - 1, 0)


# Requests


@pytest.mark.parametrize("retention", RETENTIONS)
def test_no_more_than_needed_is_asked(stream: Maker, retention: str, old: bool) -> None:
    made = stream(retention=retention)
    again = [
        "CONSUMER.CREATE",
        "CONSUMER.INFO",
        "CONSUMER.DELETE",
        "CONSUMER.CREATE",
        "CONSUMER.DELETE",
    ]
    moves = ["CONSUMER.RESET"] if can_move(made) and not old else again
    run = Run(made).begin(5)
    assert run.wire.asked(run.check) == ["CONSUMER.INFO"]
    first = run.wire.asked(lambda: run.commit(4))
    assert first == [
        "CONSUMER.INFO",
        "STREAM.INFO",
        *(["STREAM.PURGE"] if retention == "workqueue" else moves),
    ]
    assert run.wire.asked(lambda: run.commit(4)) == ["CONSUMER.INFO"]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_commit_whose_reply_was_lost(stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    run = Run(made).begin(9)
    lost: list[str] = []

    def lose(subject: str) -> None:
        if not subject.startswith(("CONSUMER.INFO", "STREAM.INFO")) and len(lost) < 2:
            lost.append(subject)
            raise RequestTimeout("no reply")

    run.wire.after = lose
    run.commit(6)
    assert lost
    assert pending(made) == 4
    run.check()
    assert consumers(made) == ["query"]


def test_a_commit_whose_fate_is_never_known(stream: Maker) -> None:
    made = stream(retention="interest")
    run = Run(made, patience=0.0).begin(9)

    def lose(subject: str) -> None:
        raise RequestTimeout("no reply")

    run.wire.after = lose
    with pytest.raises(RequestTimeout):
        run.commit(6)
    run.wire.after = lambda subject: None
    # It may have been carried out, which is no move by another client.
    run.move(6)
    assert kept(made) == (6, 9, 4)


# Consumers that are there already


HARMLESS: list[dict[str, Any]] = [
    {},
    {
        "description": "mine",
        "metadata": {"team": "orders"},
        "max_waiting": 7,
        "max_deliver": 3,
        "ack_wait": 5 * SECOND,
    },
    {"max_ack_pending": 5, "headers_only": True, "max_batch": 10, "sample_freq": "10"},
    {"pause_until": "2999-01-01T00:00:00Z"},
]
OTHERWISE: list[tuple[dict[str, Any], str]] = [
    (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
        "deliver_policy: wanted all, is by_start_sequence",
    ),
    ({"ack_policy": "all"}, "ack_policy: wanted explicit, is all"),
    ({"deliver_subject": "there"}, "deliver_subject: wanted none, is there"),
    ({"filter_subject": "{}.z"}, "filter_subjects: wanted {0}.a, {0}.b, is {0}.z"),
    (
        {"filter_subjects": ["{}.b", "{}.c"]},
        "filter_subjects: wanted {0}.a, {0}.b, is {0}.b, {0}.c",
    ),
    (
        {
            "filter_subjects": None,
            "ack_policy": "none",
            "mem_storage": True,
            "deliver_policy": "last",
        },
        "ack_policy: wanted explicit, is none; deliver_policy: wanted all, is last; "
        "filter_subjects: wanted {0}.a, {0}.b, is all subjects; mem_storage: wanted false, is true",
    ),
]


@pytest.mark.parametrize("config", HARMLESS)
def test_a_consumer_that_fits_is_taken_over_as_it_is(stream: Maker, config: dict[str, Any]) -> None:
    made = stream(retention="interest")
    filters = [f"{made.subject}.b", f"{made.subject}.a"]
    if "pause_until" in config and not level_of(made):
        return  # there are no pauses before 2.11
    before = make_consumer(made, filter_subjects=filters, **config)["config"]
    run = Run(made, *reversed(filters)).open()
    after = consumer(made)
    added = {name: after["config"]["metadata"][name] for name in (RUN, SINCE)}
    assert after["config"] == {**before, "metadata": {**before.get("metadata", {}), **added}}
    assert after.get("paused", False) is ("pause_until" in config)
    made.fill(4)
    run.commit(3)
    assert left(made) == [3, 4]


def test_a_change_by_an_administrator_does_not_end_the_run(stream: Maker) -> None:
    """By its marks in the metadata a run knows its consumer."""
    made = stream(retention="interest")
    run = Run(made).begin(4, committed=2)

    def metadata() -> dict[str, str]:
        return {
            key: value
            for key, value in consumer(made)["config"]["metadata"].items()
            if not key.startswith("_nats.")
        }

    marks = metadata()
    assert marks.keys() == {RUN, SINCE}
    with JetStreamAdmin(servers=made.url) as admin:
        described = admin.describe(made.name)
        (exported,) = described["consumers"]
        assert "metadata" not in exported
        for number, given in enumerate(
            ({}, {"owner": "me"}, {"owner": "me", RUN: "of an earlier run"}), 5
        ):
            own = {key: value for key, value in given.items() if key != RUN}
            changed = {**exported, "max_deliver": number, "metadata": given}
            admin.apply(admin.plan({**described, "consumers": [changed]}))
            assert (consumer(made)["config"]["max_deliver"], metadata()) == (
                number,
                {**marks, **own},
            )
            admin.consumers.update(made.name, "query", max_deliver=number + 10, metadata=given)
            assert (consumer(made)["config"]["max_deliver"], metadata()) == (
                number + 10,
                {**marks, **own},
            )
            run.check()
        # No query has seen what a copy has held.
        copied = admin.consumers.create(
            made.name, admin.consumers.load(made.name, "query"), name="o", durable_name="o"
        )
        assert RUN not in copied.config.metadata
    assert position(made) == 2


def test_a_description_does_not_say_where_the_consumer_of_a_query_is(
    stream: Maker, old: bool
) -> None:
    """On a server that cannot move it, each commit creates it anew."""
    made = stream(retention="interest")
    run = Run(made).begin(6, committed=2)
    with JetStreamAdmin(servers=made.url) as admin:
        described = admin.describe(made.name)
        (exported,) = described["consumers"]
        written = {
            "durable_name": "query",
            "ack_policy": "explicit",
            "description": exported["description"],
        }
        for number, config in enumerate((exported, written), 3):
            run.commit(number)
            assert not admin.plan({**described, "consumers": [config]}).changes
            for most in (7, -1):
                admin.apply(
                    admin.plan({**described, "consumers": [{**config, "max_deliver": most}]})
                )
                assert consumer(made)["config"]["max_deliver"] == most
            run.check()
            assert position(made) == number


def test_a_consumer_that_fits_in_other_words(stream: Maker) -> None:
    """One filter in a list is the same filter, and all consumers of a stream in memory are in
    memory.
    """
    made = stream(storage="memory")
    make_consumer(made, mem_storage=True, filter_subjects=[f"{made.subject}.a"])
    Run(made, f"{made.subject}.a").begin(4, committed=3)
    assert pending(made) == 2


@pytest.mark.parametrize(("config", "problem"), OTHERWISE)
def test_a_consumer_that_does_not_fit(stream: Maker, config: dict[str, Any], problem: str) -> None:
    made = stream(retention="limits")
    filters = [f"{made.subject}.a", f"{made.subject}.b"]
    given: dict[str, Any] = {} if "filter_subject" in config else {"filter_subjects": filters}
    given |= json.loads(json.dumps(config).replace("{}", made.subject))
    before = make_consumer(made, **given)
    with pytest.raises(OptionError) as raised:
        Run(made, *filters).open(fresh=False)
    assert raised.value.option == "durable"
    assert f": {problem.format(made.subject)}. Give durable another name" in str(raised.value)
    assert f"consumer query of stream {made.name} (option durable)" in str(raised.value)
    assert consumer(made)["config"] == before["config"]


def test_the_configuration_is_changed_under_way(stream: Maker) -> None:
    made = stream(retention="interest")
    run = Run(made).open()
    make_consumer(made, **{**consumer(made)["config"], "filter_subject": f"{made.subject}.a"})
    with pytest.raises(
        OptionError, match=f"filter_subjects: wanted all subjects, is {made.subject}.a"
    ):
        run.check()


def test_the_consumer_of_an_application(stream: Maker) -> None:
    made = stream(retention="workqueue")
    make_consumer(made)
    made.fill(3)
    take(made, "query", 1)
    with pytest.raises(OptionError, match="has delivered messages to an application") as raised:
        Run(made).open()
    assert raised.value.option == "durable"


# Limits of streams


@pytest.mark.parametrize(
    ("theirs", "mine", "holders"),
    [
        (
            (),
            (),
            r"application \(all subjects\) already has messages of this query \(all subjects\)",
        ),
        ((), ("a",), r"application \(all subjects\) already has"),
        (("a",), (), r"application \(\w+\.a\), bystander \(\w+\.z\.z\.z\) already has"),
        (
            ("b", "a.*"),
            ("a.>", "c"),
            r"application \(\w+\.a\.\*, \w+\.b\) already has messages of this query \(\w+\.a",
        ),
    ],
)
def test_the_filter_is_taken(
    stream: Maker, theirs: tuple[str, ...], mine: tuple[str, ...], holders: str
) -> None:
    made = stream(retention="workqueue")
    taken = {"filter_subjects": [f"{made.subject}.{suffix}" for suffix in theirs]} if theirs else {}
    make_consumer(made, "application", **taken)
    if theirs:
        make_consumer(made, "bystander", filter_subject=f"{made.subject}.z.z.z")
    with pytest.raises(OptionError, match=holders) as raised:
        Run(made, *(f"{made.subject}.{suffix}" for suffix in mine)).open()
    assert raised.value.option == "subjects"
    assert f"stream {made.name} is a work queue" in str(raised.value)
    assert ("bystander" in str(raised.value)) == (bool(theirs) and not mine)


def test_no_room_for_a_consumer(stream: Maker) -> None:
    made = stream(max_consumers=1)
    make_consumer(made, "application")
    with pytest.raises(ConsumerLimitReached, match=f"create consumer query on stream {made.name}"):
        Run(made).open()


@pytest.mark.parametrize("setting", ["deny_purge", "sealed"])
def test_a_work_queue_that_cannot_be_purged(stream: Maker, setting: str) -> None:
    made = stream(retention="workqueue")
    made.update(**{setting: True})
    with pytest.raises(OptionError, match=r"cannot be purged \(deny_purge, or sealed\)") as raised:
        Run(made).open()
    assert raised.value.option == "durable"
    for other in ("limits", "interest"):
        Run(stream(retention=other, deny_purge=True)).open()


def test_a_consumer_that_the_server_deletes_when_nobody_uses_it(
    stream: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    limited = {"consumer_limits": {"inactive_threshold": 60 * SECOND}}
    # Where nothing is lost with the consumer there is no warning.
    for config in ({"retention": "interest"}, limited, {"retention": "workqueue", **limited}):
        Run(stream(**config)).open()
    made = stream(retention="interest", **limited)
    run = Run(made).open()
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"stream {made.name}: " in warning
    assert "delete consumer query (option durable) after 60 s" in warning
    made.fill(3)
    with Tap(made.url) as tap:
        for _ in range(3):
            run.check()
        pulled: list[Message] = []

        def hear() -> bool:
            next_of_query = f"$JS.API.CONSUMER.MSG.NEXT.{made.name}.query"
            pulled.extend(each for each in tap.heard() if each.subject == next_of_query)
            return len(pulled) >= 3

        # The server may answer a pull before it has passed the request on to the tap.
        wait_until(hear, "three pulls")
    # The server counts only pulls as use; these bring no message.
    assert len(pulled) == 3
    assert kept(made) == (1, 3, 3)
    run.commit(3)
    assert kept(made) == (3, 3, 1)
    made.publisher.api(f"CONSUMER.DELETE.{made.name}.query")
    with pytest.raises(DataLossError):
        run.check()


# Without a server


def test_a_reply_that_lacks_a_field() -> None:
    body: dict[str, Any] = {"config": {}, "delivered": {"consumer_seq": 0, "stream_seq": 6}}
    assert ConsumerState.from_reply(body, "look") == ConsumerState({}, 7, 0, None, "", 0, 0.0)
    wrong: list[dict[str, Any]] = [
        {"config": None},
        {"delivered": {}},
        {"delivered": {"consumer_seq": 1, "stream_seq": 6}},
        {"config": {"metadata": {"_nats.level": "new"}}},
        {"config": {"inactive_threshold": "1s"}},
    ]
    for fields in wrong:
        with pytest.raises(ProtocolError, match="cannot look"):
            ConsumerState.from_reply({**body, **fields}, "look")


@pytest.mark.parametrize(
    ("deliveries", "delivered", "floor", "following"),
    [
        # As a server before 2.14 says it of a consumer that begins at sequence 3.
        pytest.param(0, 2, 0, 3, id="the stream has this message"),
        pytest.param(0, 9, 0, 3, id="the first message of the stream is at sequence 10"),
        pytest.param(0, 9, 9, 10, id="a purge up to sequence 9"),
        pytest.param(1, 5, 4, 5, id="another client takes messages"),
        # And one since 2.14.
        pytest.param(0, 2, 2, 3, id="moved to sequence 3"),
    ],
)
def test_where_a_consumer_stands(
    deliveries: int, delivered: int, floor: int, following: int
) -> None:
    """It holds what matches from where it was created, also if the next message of the stream comes
    later.
    """
    body: dict[str, Any] = {
        "config": {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
        "delivered": {"consumer_seq": deliveries, "stream_seq": delivered},
        "ack_floor": {"consumer_seq": 0, "stream_seq": floor},
    }
    assert ConsumerState.from_reply(body, "look").next == following


def test_a_purge_of_nothing_is_no_purge_of_everything() -> None:
    assert purge_request(2, None) == b'{"seq": 2}'
    for end in (1, 0):
        with pytest.raises(ValueError, match="removes nothing"):
            purge_request(end, "a")


# A commit that outlasts its call


class Slow:
    """In place of `Progress`: notes the calls, and lets commits wait until `go` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = threading.Event()
        self.failure: Exception | None = None

    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        self.calls.append(f"open {state.name} {fresh}")

    def check(self, state: StreamSummary, done: int) -> None:
        self.calls.append(f"check {state.name} {done}")

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        assert self.go.wait(60)
        self.calls.append(f"commit {state.name} {next_sequence}")
        if self.failure is not None:
            raise self.failure


S, T = (replace(STATE, name=name, retention="interest") for name in "ST")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def lazy(slow: Slow) -> LazyCommit:
    """A commit of stream S, which was opened."""
    lazy = LazyCommit(cast(Progress, slow))
    assert lazy.open(S, fresh=True)
    return lazy


def test_a_stream_is_opened_once_and_checked_after_that(slow: Slow, lazy: LazyCommit) -> None:
    slow.go.set()
    lazy.commit(T, 5)  # was not opened
    lazy.settle()
    assert not lazy.open(S, fresh=True)
    for state in (S, T, T):
        lazy.hold(state, 5)
    assert slow.calls == ["open S True", "check S 5", "open T False", "check T 5"]


@pytest.mark.parametrize(
    ("following", "called"),
    [(lambda lazy: lazy.hold(S, 5), "check S 5"), (lambda lazy: lazy.commit(T, 7), "commit T 7")],
    ids=["hold", "commit"],
)
def test_a_commit_that_takes_long_keeps_the_next_call_and_not_its_own(
    slow: Slow, lazy: LazyCommit, following: Callable[[LazyCommit], None], called: str
) -> None:
    lazy.open(T, fresh=True)
    lazy.commit(S, 5)
    assert slow.calls == ["open S True", "open T True"]
    threading.Timer(0.05, slow.go.set).start()
    following(lazy)
    lazy.settle()
    assert slow.calls[2:] == ["commit S 5", called]


def test_a_failure_is_logged_once_and_raised_by_the_next_call(
    slow: Slow, lazy: LazyCommit, caplog: pytest.LogCaptureFixture
) -> None:
    slow.failure = JetStreamError("another run has it")
    lazy.commit(S, 5)
    assert not caplog.records
    slow.go.set()
    # The query may end now, and make no other call.
    wait_until(lambda: bool(caplog.records), "the warning")
    with pytest.raises(JetStreamError, match="another run has it"):
        lazy.hold(S, 5)
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert "a commit on the server failed (option durable)" in warning.getMessage()
    assert "another run has it" in warning.getMessage()
    slow.failure = None
    lazy.commit(S, 6)
    lazy.settle()
    assert slow.calls[-1] == "commit S 6"


def test_a_commit_that_fails_at_once_raises_at_once(slow: Slow) -> None:
    lazy = LazyCommit(cast(Progress, slow), wait=60.0)
    lazy.open(S, fresh=True)
    slow.failure = JetStreamError("another run has it")
    slow.go.set()
    with pytest.raises(JetStreamError, match="another run has it"):
        lazy.commit(S, 5)
