"""How far Spark has committed, kept by consumers of a real server (option durable)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from spark_jetstream.errors import ConsumerLimitReached, DataLossError, OptionError, ProtocolError, RequestTimeout
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.protocol.jsapi import purge_request
from spark_jetstream.source import durable
from spark_jetstream.source.durable import SEVERAL_FILTERS_LEVEL, ConsumerState, consumer_state
from spark_jetstream.testing import NatsServer
from tests.support.progress import (
    RETENTIONS,
    SECOND,
    Maker,
    Wire,
    can_move,
    consumer,
    kept,
    level_of,
    make_consumer,
    position,
    publishing,
    run_of,
    state_of,
    stored,
    take,
    wait_for_more,
)
from tests.support.reading import api, consumers, wait_until
from tests.support.streams import Stream

# What each retention does


def test_limits(nats_server: NatsServer, stream: Maker, caplog: pytest.LogCaptureFixture) -> None:
    made = stream()
    made.fill(10)
    url, state = nats_server.url, state_of(nats_server.url, made.name)
    run = run_of(url)
    run.open(state, fresh=True)
    run.commit(state, 1)
    assert (position(url, made.name), consumer(url, made.name)["num_pending"]) == (1, 10)
    for committed in (4, 4, 11, 3, 8):  # also back: the query began anew, or its stream lost its tail
        run.check(state)
        run.commit(state, committed)
        assert position(url, made.name) == committed
        assert consumer(url, made.name)["num_pending"] == 11 - committed
    assert kept(made) == (1, 10, 10)
    assert consumers(url, made.name) == ["query"]
    assert not caplog.records


def test_what_is_made(nats_server: NatsServer, stream: Maker) -> None:
    for retention in RETENTIONS:
        several = retention != "workqueue" or level_of(nats_server) >= SEVERAL_FILTERS_LEVEL
        for filters in ((), ("a",), *([("a", "b.*")] if several else [])):
            made = stream(retention=retention)
            full = tuple(f"{made.subject}.{each}" for each in filters)
            run_of(nats_server.url, *full).open(state_of(nats_server.url, made.name), fresh=True)
            config = consumer(nats_server.url, made.name)["config"]
            assert (config["ack_policy"], config["deliver_policy"]) == ("explicit", "all")
            assert (config.get("filter_subject"), config.get("filter_subjects")) == {
                0: (None, None),
                1: (full[0] if full else None, None),
                2: (None, list(full)),
            }[len(filters)]
            assert config["durable_name"] == "query"
            assert not config.get("mem_storage")
            assert len(config["metadata"][RUN]) == 32
            assert config["metadata"][SINCE].endswith("Z")


def test_interest_is_held_until_the_commit(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    made.fill(3)
    assert kept(made) == (4, 3, 0)  # nobody was interested
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    run.commit(state_of(url, made.name), 4)
    made.fill(10)
    assert kept(made) == (4, 13, 10)
    for committed in (4, 9, 9, 12):
        run.check(state_of(url, made.name))
        run.commit(state_of(url, made.name), committed)
        assert kept(made) == (committed, 13, 14 - committed)
        assert consumer(url, made.name)["num_pending"] == 14 - committed
    old = state_of(url, made.name)
    made.fill(2)
    run.commit(old, 16)  # what is committed may have come after the stream was looked at
    assert kept(made) == (16, 15, 0)
    made.fill(1)
    assert kept(made) == (16, 16, 1)


def test_other_consumers_of_an_interest_stream_keep_what_they_need(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    url, subject = nats_server.url, made.subject
    make_consumer(url, made.name, "other", filter_subject=f"{subject}.a")
    run = run_of(url, f"{subject}.a", f"{subject}.b")
    run.open(state_of(url, made.name), fresh=True)
    made.fill_in_turn(12, ["a", "b", "c"])  # c is nobody's
    assert made.state()["messages"] == 8
    run.commit(state_of(url, made.name), 8)
    assert made.state()["messages"] == 4 + 2  # a: 1 4 7 10, b: 8 11
    assert consumer(url, made.name, "other")["num_pending"] == 4
    take(url, made.name, "other", 4)
    assert made.state()["messages"] == 3  # a: 10, b: 8 11
    run.commit(state_of(url, made.name), 13)
    assert made.state()["messages"] == 0


@pytest.mark.parametrize("filters", [(), ("a",), ("a", "b"), ("*.x",)])
def test_work_queue(nats_server: NatsServer, stream: Maker, filters: tuple[str, ...]) -> None:
    made = stream(retention="workqueue")
    url = nats_server.url
    if len(filters) > 1 and level_of(nats_server) < SEVERAL_FILTERS_LEVEL:
        refused(url, made)
        return
    run = run_of(url, *(f"{made.subject}.{each}" for each in filters))
    run.open(state_of(url, made.name), fresh=True)
    run.commit(state_of(url, made.name), 1)
    turns = ["a", "b", "c", "d.x"]
    made.fill_in_turn(20, turns)
    covered = {"*.x": "d.x"}
    wanted = {covered.get(each, each) for each in filters or turns}
    mine = [at for at in range(1, 21) if turns[(at - 1) % 4] in wanted]
    for committed in (1, 8, 8, 9, 14, 21):
        run.check(state_of(url, made.name))
        run.commit(state_of(url, made.name), committed)
        left = [at for at in range(1, 21) if at not in mine or at >= committed]
        assert stored(made) == left
        assert consumer(url, made.name)["num_pending"] == len([at for at in mine if at >= committed])
    assert consumers(url, made.name) == ["query"]


def refused(url: str, made: Stream) -> None:
    with pytest.raises(OptionError, match=r"may lose unread messages .* \(option subjects: .*\.a, .*\.b\)") as raised:
        run_of(url, f"{made.subject}.a", f"{made.subject}.b").open(state_of(url, made.name), fresh=True)
    assert raised.value.option == "subjects"


def test_several_filters_of_a_work_queue_and_an_older_server(
    nats_server: NatsServer, stream: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would move the consumer past what was not read when one filter is purged."""
    url = nats_server.url
    made = stream(retention="workqueue")
    filters = [f"{made.subject}.a", f"{made.subject}.b"]
    make_consumer(url, made.name, filter_subjects=filters)
    monkeypatch.setattr(durable, "SEVERAL_FILTERS_LEVEL", 0)
    run = run_of(url, *filters)
    run.open(state_of(url, made.name), fresh=True)
    made.fill_in_turn(6, "ab")
    monkeypatch.setattr(durable, "SEVERAL_FILTERS_LEVEL", 99)
    with pytest.raises(OptionError, match="may lose unread messages"):
        run.commit(state_of(url, made.name), 5)  # the server was replaced by an older one
    assert kept(made) == (1, 6, 6)
    refused(url, made)
    api(url, f"CONSUMER.DELETE.{made.name}.query")
    refused(url, made)
    assert consumers(url, made.name) == []  # what was made is not left behind
    run_of(url, filters[0]).open(state_of(url, made.name), fresh=True)
    for retention in ("limits", "interest"):
        made = stream(retention=retention)
        run_of(url, *filters).open(state_of(url, made.name), fresh=True)


def test_a_work_queue_keeps_its_messages_without_a_consumer(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="workqueue")
    url = nats_server.url
    first = run_of(url)
    first.open(state_of(url, made.name), fresh=True)
    made.fill(5)
    api(url, f"CONSUMER.DELETE.{made.name}.query")
    made.fill(5)
    assert kept(made) == (1, 10, 10)
    second = run_of(url)
    second.open(state_of(url, made.name), fresh=False)
    second.commit(state_of(url, made.name), 4)
    assert kept(made) == (4, 10, 7)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_publishers_go_on_meanwhile(nats_server: NatsServer, stream: Maker, retention: str) -> None:
    made = stream(retention=retention)
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    committed = 1
    with publishing(made, "abc"):
        for _ in range(30):
            wait_for_more(made, committed)
            state = state_of(url, made.name)
            run.check(state)
            committed = state.last_seq - 3
            run.commit(state, committed)
            first, last, messages = kept(made)
            assert (first, messages) == (committed, last + 1 - committed)
    last = kept(made)[1]
    run.commit(state_of(url, made.name), last + 1)
    assert kept(made) == (last + 1, last, 0)


def test_a_mirror_is_read_like_any_other(nats_server: NatsServer, stream: Maker) -> None:
    origin = stream()
    origin.fill(6)
    mirror = stream(subjects=None, mirror={"name": origin.name})
    mirror.wait_for(6)
    run = run_of(nats_server.url)
    run.open(state_of(nats_server.url, mirror.name), fresh=True)
    run.commit(state_of(nats_server.url, mirror.name), 5)
    assert consumer(nats_server.url, mirror.name)["num_pending"] == 2


# What is asked


def test_no_more_than_needed_is_asked(nats_server: NatsServer, stream: Maker) -> None:
    plain = {name: stream(retention=name) for name in RETENTIONS}
    moving = ["CONSUMER.RESET"] if can_move(nats_server) else ["CONSUMER.CREATE", "CONSUMER.INFO"]
    moving += [] if can_move(nats_server) else ["CONSUMER.DELETE", "CONSUMER.CREATE", "CONSUMER.DELETE"]
    swept = [] if can_move(nats_server) else ["STREAM.INFO"]
    moves = {"limits": moving, "interest": moving + swept, "workqueue": ["STREAM.PURGE"]}
    for name, made in plain.items():
        wire = Wire(nats_server.url)
        run = run_of(wire)
        run.open(state_of(nats_server.url, made.name), fresh=True)
        made.fill(5)
        state = state_of(nats_server.url, made.name)
        assert wire.asked(lambda run=run, state=state: run.check(state)) == ["CONSUMER.INFO"]  # type: ignore[misc]
        first = wire.asked(lambda run=run, state=state: run.commit(state, 4))  # type: ignore[misc]
        assert first == ["CONSUMER.INFO", *moves[name]]
        state = state_of(nats_server.url, made.name)
        again = wire.asked(lambda run=run, state=state: run.commit(state, 4))  # type: ignore[misc]
        assert again == ["CONSUMER.INFO"]


def test_a_commit_whose_reply_was_lost(nats_server: NatsServer, stream: Maker) -> None:
    for retention in RETENTIONS:
        made = stream(retention=retention)
        wire = Wire(nats_server.url)
        run = run_of(wire)
        run.open(state_of(nats_server.url, made.name), fresh=True)
        made.fill(9)
        lost: list[str] = []

        def lose(subject: str, lost: list[str] = lost) -> None:
            if not subject.startswith(("CONSUMER.INFO", "STREAM.INFO")) and len(lost) < 2:
                lost.append(subject)
                raise RequestTimeout("no reply")

        wire.after = lose
        run.commit(state_of(nats_server.url, made.name), 6)
        assert lost
        assert consumer(nats_server.url, made.name)["num_pending"] == 4
        run.check(state_of(nats_server.url, made.name))
        assert consumers(nats_server.url, made.name) == ["query"]


def test_a_commit_whose_fate_is_never_known(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    wire = Wire(nats_server.url)
    run = run_of(wire, patience=0.0)
    run.open(state_of(nats_server.url, made.name), fresh=True)
    made.fill(9)

    def lose(subject: str) -> None:
        raise RequestTimeout("no reply")

    wire.after = lose
    with pytest.raises(RequestTimeout):
        run.commit(state_of(nats_server.url, made.name), 6)
    wire.after = lambda subject: None
    # It may have been carried out, which is no move by another client.
    run.check(state_of(nats_server.url, made.name))
    run.commit(state_of(nats_server.url, made.name), 6)
    assert kept(made) == (6, 9, 4)


# Consumers that are there already


HARMLESS: list[dict[str, Any]] = [
    {},
    {"description": "mine", "metadata": {"team": "orders"}},
    {"max_waiting": 7, "max_deliver": 3, "max_ack_pending": 5, "ack_wait": 5 * SECOND},
    {"headers_only": True, "max_batch": 10, "sample_freq": "10"},
]
OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"ack_policy": "none"}, "ack_policy: wanted explicit, is none"),
    ({"ack_policy": "all"}, "ack_policy: wanted explicit, is all"),
    ({"deliver_policy": "new"}, "deliver_policy: wanted all, is new"),
    (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
        "deliver_policy: wanted all, is by_start_sequence",
    ),
    ({"deliver_subject": "there"}, "deliver_subject: wanted none, is there"),
    ({"mem_storage": True}, "mem_storage: wanted false, is true"),
    ({"filter_subject": "{}.z"}, "filter_subjects: wanted {0}.a, {0}.b, is {0}.z"),
    ({"filter_subjects": ["{}.b", "{}.c"]}, "filter_subjects: wanted {0}.a, {0}.b, is {0}.b, {0}.c"),
    ({"filter_subjects": None}, "filter_subjects: wanted {0}.a, {0}.b, is all subjects"),
]


@pytest.mark.parametrize("config", HARMLESS)
def test_a_consumer_that_fits_is_taken_over_as_it_is(
    nats_server: NatsServer, stream: Maker, config: dict[str, Any]
) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    filters = [f"{made.subject}.b", f"{made.subject}.a"]
    before = make_consumer(url, made.name, filter_subjects=filters, **config)["config"]
    run = run_of(url, *reversed(filters))
    run.open(state_of(url, made.name), fresh=True)
    after = consumer(url, made.name)["config"]
    added = {RUN: after["metadata"][RUN], SINCE: after["metadata"][SINCE]}
    assert after == {**before, "metadata": {**before.get("metadata", {}), **added}}
    made.fill(4)
    run.commit(state_of(url, made.name), 3)
    assert made.state()["messages"] == 2


def test_one_filter_in_a_list_is_the_same_filter(nats_server: NatsServer, stream: Maker) -> None:
    made = stream()
    make_consumer(nats_server.url, made.name, filter_subjects=[f"{made.subject}.a"])
    run = run_of(nats_server.url, f"{made.subject}.a")
    run.open(state_of(nats_server.url, made.name), fresh=True)
    made.fill(4)
    run.commit(state_of(nats_server.url, made.name), 3)
    assert consumer(nats_server.url, made.name)["num_pending"] == 2


def test_a_paused_consumer_stays_paused(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    pause = {"pause_until": "2999-01-01T00:00:00Z"}
    make_consumer(url, made.name)
    if not level_of(nats_server):
        return  # there are no pauses before 2.11
    api(url, f"CONSUMER.PAUSE.{made.name}.query", pause)
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    assert consumer(url, made.name)["paused"] is True
    made.fill(4)
    run.commit(state_of(url, made.name), 3)
    assert kept(made) == (3, 4, 2)


@pytest.mark.parametrize(("config", "said"), OTHERWISE)
def test_a_consumer_that_does_not_fit(
    nats_server: NatsServer, stream: Maker, config: dict[str, Any], said: str
) -> None:
    made = stream(retention="limits")
    url, subject = nats_server.url, made.subject
    filters = [f"{subject}.a", f"{subject}.b"]
    given: dict[str, Any] = {} if "filter_subject" in config else {"filter_subjects": filters}
    given |= json.loads(json.dumps(config).replace("{}", subject))
    before = make_consumer(url, made.name, **given)
    with pytest.raises(OptionError) as raised:
        run_of(url, *filters).open(state_of(url, made.name), fresh=False)
    assert raised.value.option == "durable"
    assert f": {said.format(subject)}. Give durable another name" in str(raised.value)
    assert f"consumer query of stream {made.name} (option durable)" in str(raised.value)
    assert consumer(url, made.name)["config"] == before["config"]


def test_every_difference_is_listed(nats_server: NatsServer, stream: Maker) -> None:
    made = stream()
    make_consumer(nats_server.url, made.name, ack_policy="none", mem_storage=True, deliver_policy="last")
    with pytest.raises(OptionError, match=r"ack_policy: [^;]*; deliver_policy: [^;]*; filter_[^;]*; mem_storage: "):
        run_of(nats_server.url, f"{made.subject}.a").open(state_of(nats_server.url, made.name), fresh=True)


def test_the_configuration_is_changed_under_way(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="interest")
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    config = consumer(url, made.name)["config"]
    make_consumer(url, made.name, **{**config, "filter_subject": f"{made.subject}.a"})
    with pytest.raises(OptionError, match=f"filter_subjects: wanted all subjects, is {made.subject}.a"):
        run.check(state_of(url, made.name))


def test_a_stream_in_memory(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(storage="memory")
    make_consumer(nats_server.url, made.name, mem_storage=True)
    run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)


def test_the_consumer_of_an_application(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(retention="workqueue")
    url = nats_server.url
    make_consumer(url, made.name)
    made.fill(3)
    take(url, made.name, "query", 1)
    with pytest.raises(OptionError, match="has delivered messages to an application") as raised:
        run_of(url).open(state_of(url, made.name), fresh=True)
    assert raised.value.option == "durable"


# What streams allow


@pytest.mark.parametrize(
    ("theirs", "mine", "said"),
    [
        ((), (), r"application \(all subjects\) already has what this query reads \(all subjects\)"),
        ((), ("a",), r"application \(all subjects\) already has"),
        (("a",), (), r"application \(\w+\.a\), bystander \(\w+\.z\.z\.z\) already has"),
        (("b", "a.*"), ("a.>", "c"), r"application \(\w+\.a\.\*, \w+\.b\) already has what this query reads \(\w+\.a"),
    ],
)
def test_the_filter_is_taken(
    nats_server: NatsServer, stream: Maker, theirs: tuple[str, ...], mine: tuple[str, ...], said: str
) -> None:
    made = stream(retention="workqueue")
    url = nats_server.url
    taken = {"filter_subjects": [f"{made.subject}.{each}" for each in theirs]} if theirs else {}
    make_consumer(url, made.name, "application", **taken)
    if theirs:
        make_consumer(url, made.name, "bystander", filter_subject=f"{made.subject}.z.z.z")
    with pytest.raises(OptionError, match=said) as raised:
        run_of(url, *(f"{made.subject}.{each}" for each in mine)).open(state_of(url, made.name), fresh=True)
    assert raised.value.option == "subjects"
    assert f"stream {made.name} is a work queue" in str(raised.value)
    assert ("bystander" in str(raised.value)) == (bool(theirs) and not mine)


def test_no_room_for_a_consumer(nats_server: NatsServer, stream: Maker) -> None:
    made = stream(max_consumers=1)
    make_consumer(nats_server.url, made.name, "application")
    with pytest.raises(ConsumerLimitReached, match=f"create consumer query on stream {made.name}"):
        run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)


@pytest.mark.parametrize("setting", ["deny_purge", "sealed"])
def test_a_work_queue_that_cannot_be_purged(nats_server: NatsServer, stream: Maker, setting: str) -> None:
    made = stream(retention="workqueue")
    made.update(**{setting: True})
    with pytest.raises(OptionError, match=r"cannot be purged \(deny_purge, or sealed\)") as raised:
        run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)
    assert raised.value.option == "durable"
    for other in ("limits", "interest"):
        made = stream(retention=other, deny_purge=True)
        run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)


def test_a_consumer_that_the_server_deletes_when_nobody_uses_it(
    nats_server: NatsServer, stream: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention="interest", consumer_limits={"inactive_threshold": SECOND})
    url = nats_server.url
    run = run_of(url)
    run.open(state_of(url, made.name), fresh=True)
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"stream {made.name}: " in warning
    assert "delete consumer query (option durable) after 1 s" in warning
    made.fill(3)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        run.check(state_of(url, made.name))
    assert kept(made) == (1, 3, 3)
    run.commit(state_of(url, made.name), 3)
    assert kept(made) == (3, 3, 1)
    wait_until(lambda: consumers(url, made.name) == [], "the consumer's end")
    with pytest.raises(DataLossError):
        run.check(state_of(url, made.name))


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_where_nothing_is_lost_with_the_consumer_no_warning_is_needed(
    nats_server: NatsServer, stream: Maker, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(retention=retention, consumer_limits={"inactive_threshold": 60 * SECOND})
    run_of(nats_server.url).open(state_of(nats_server.url, made.name), fresh=True)
    assert not caplog.records


# Without a server


def test_a_reply_that_lacks_a_field() -> None:
    body: dict[str, Any] = {"config": {}, "delivered": {"consumer_seq": 0, "stream_seq": 6}}
    assert consumer_state(body, "look") == ConsumerState({}, 7, 0, None, "", 0, 0.0)
    wrong: dict[str, Any]
    for wrong in ({"config": None}, {"delivered": {}}, {"delivered": {"consumer_seq": 1, "stream_seq": 6}}):
        with pytest.raises(ProtocolError, match="cannot look"):
            consumer_state({**body, **wrong}, "look")
    for config in ({"metadata": {"_nats.level": "new"}}, {"inactive_threshold": "1s"}):
        with pytest.raises(ProtocolError, match="cannot look"):
            consumer_state({**body, "config": config}, "look")


def test_a_purge_of_nothing_is_no_purge_of_everything() -> None:
    assert purge_request(2, None) == b'{"seq": 2}'
    for end in (1, 0):
        with pytest.raises(ValueError, match="removes nothing"):
            purge_request(end, "a")
