"""Differences between two configurations.

Every field is changed on a real server, which does what the tables say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from spark_jetstream.admin import (
    IMMUTABLE,
    LEFT_TO_SERVER,
    RISKS,
    ConsumerConfig,
    ConsumerInfo,
    Difference,
    JetStreamAdmin,
    Model,
    StreamConfig,
    StreamInfo,
    differences,
    merged,
    update_body,
)
from spark_jetstream.testing import NatsServer
from tests.admin.configs import ORIGIN, STREAMS
from tests.admin.conftest import Api, Make, consumer_config, stream_config, update_consumer
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import wait_until

Row = tuple[dict[str, Any], dict[str, Any], str, bool]

COPY = {"mirror": {"name": ORIGIN}}
AWAY = {"mirror": {"name": "AWAY"}}
FILTER = {"name": ORIGIN, "filter_subject": "origin.a"}

#: The codes of what can never be updated; 10080 is for a pull consumer that becomes a push
#: consumer.
REFUSED = {10012, 10052, 10055, 10056, 10080}

ALLOWED = (
    "allow_direct",
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "allow_atomic",
    "allow_msg_schedules",
    "allow_batched",
)
FINAL = ("deny_delete", "allow_msg_ttl", "allow_msg_counter", "allow_msg_schedules")

#: The configuration, the change to it, the field that differs, whether the server accepts the change.
STREAM_CHANGES: list[Row] = [
    *(
        ({}, {field: 5}, field, True)
        for field in ("max_consumers", "max_msgs", "max_msgs_per_subject", "first_seq")
    ),
    *(
        ({}, {field: True}, field, True)
        for field in ("sealed", "no_ack", "deny_delete", "deny_purge", *ALLOWED)
    ),
    *(({field: True}, {field: None}, field, False) for field in FINAL),
    ({}, {"name": "OTHER"}, "name", False),
    ({}, {"description": "new"}, "description", True),
    ({}, {"subjects": ["other.>", "admin.updates"]}, "subjects", True),
    ({}, {"retention": "interest"}, "retention", True),
    ({"retention": "interest"}, {"retention": None}, "retention", True),
    ({}, {"retention": "workqueue"}, "retention", False),
    ({"retention": "workqueue"}, {"retention": "limits"}, "retention", False),
    ({"retention": "interest"}, {"retention": "workqueue"}, "retention", False),
    ({}, {"max_bytes": "1m"}, "max_bytes", True),
    ({}, {"max_age": "1h"}, "max_age", True),
    ({}, {"max_age": "1s", "duplicate_window": None}, "max_age", True),
    ({"max_age": 10**10}, {"max_age": None}, "max_age", True),
    ({}, {"max_msg_size": "1k"}, "max_msg_size", True),
    ({}, {"discard": "new"}, "discard", True),
    ({}, {"storage": "memory"}, "storage", False),
    ({"storage": "memory"}, {"storage": None}, "storage", False),
    ({}, {"duplicate_window": "10s"}, "duplicate_window", True),
    ({}, {"placement": {"tags": ["ssd"]}}, "placement", True),
    ({"placement": {"tags": ["ssd"]}}, {"placement": {"tags": ["hdd"]}}, "placement.tags", True),
    ({"placement": {"tags": ["ssd"]}}, {"placement": None}, "placement", True),
    ({"subjects": []}, {"mirror": {"name": ORIGIN}, "subjects": None}, "mirror", False),
    (COPY, {"mirror": {"name": "AWAY"}}, "mirror.name", False),
    (COPY, {"mirror": FILTER}, "mirror.filter_subject", False),
    ({"mirror": FILTER}, {"mirror": {"name": ORIGIN}}, "mirror.filter_subject", False),
    (COPY, {"mirror": None, "mirror_direct": None}, "mirror", True),
    ({}, {"sources": [{"name": ORIGIN}]}, "sources", True),
    ({"sources": [{"name": ORIGIN}]}, {"sources": [FILTER]}, "sources.0.filter_subject", True),
    ({}, {"compression": "s2"}, "compression", True),
    ({"first_seq": 5}, {"first_seq": 6}, "first_seq", True),
    ({}, {"subject_transform": {"src": "a.*", "dest": "b.$1"}}, "subject_transform", True),
    ({}, {"republish": {"dest": "again.>"}}, "republish", True),
    (AWAY, {"mirror_direct": True}, "mirror_direct", True),
    (
        {"discard": "new", "max_msgs_per_subject": 1},
        {"discard_new_per_subject": True},
        "discard_new_per_subject",
        True,
    ),
    ({"deny_purge": True}, {"deny_purge": False}, "deny_purge", False),
    ({}, {"consumer_limits": {"max_ack_pending": 5}}, "consumer_limits.max_ack_pending", True),
    (
        {"consumer_limits": {"max_ack_pending": 5}},
        {"consumer_limits": None},
        "consumer_limits.max_ack_pending",
        True,
    ),
    ({}, {"subject_delete_marker_ttl": "5s"}, "subject_delete_marker_ttl", True),
    (
        {"subject_delete_marker_ttl": 10**9},
        {"subject_delete_marker_ttl": None},
        "subject_delete_marker_ttl",
        True,
    ),
    ({}, {"allow_msg_counter": True}, "allow_msg_counter", False),
    ({}, {"persist_mode": "async"}, "persist_mode", False),
    ({"persist_mode": "async"}, {"persist_mode": None}, "persist_mode", False),
    ({}, {"metadata": {"owner": "me"}}, "metadata.owner", True),
]

PUSH = {"deliver_subject": "delivered", "max_waiting": None}
BEATS = {"deliver_subject": "delivered", "idle_heartbeat": 10**9}
AT = {"deliver_policy": "by_start_time", "opt_start_time": "2026-03-01T12:00:00Z"}
FROM = {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}
PINNED = {"priority_policy": "pinned_client", "priority_groups": ["one"]}

CONSUMER_CHANGES: list[Row] = [
    *(({}, {field: 5}, field, True) for field in ("max_deliver", "max_ack_pending", "max_batch")),
    ({}, {"name": "other", "durable_name": None}, "name", False),
    ({}, {"durable_name": None}, "durable_name", True),
    ({}, {"description": "new"}, "description", True),
    ({}, {"deliver_policy": "new"}, "deliver_policy", False),
    (FROM, {"opt_start_seq": 4}, "opt_start_seq", False),
    (AT, {"opt_start_time": "2026-03-01T12:00:00.000000001Z"}, "opt_start_time", False),
    ({}, {"ack_policy": "all"}, "ack_policy", False),
    ({}, {"ack_wait": "10s"}, "ack_wait", True),
    ({}, {"backoff": ["1s", "2s"]}, "backoff", True),
    ({"backoff": [10**9]}, {"backoff": None}, "backoff", True),
    ({}, {"filter_subject": "c.a"}, "filter_subjects", True),
    (
        {"filter_subject": "c.a"},
        {"filter_subject": None, "filter_subjects": ["c.b", "c.c"]},
        "filter_subjects",
        True,
    ),
    ({}, {"replay_policy": "original"}, "replay_policy", False),
    (PUSH, {"rate_limit_bps": 1000}, "rate_limit_bps", True),
    ({}, {"sample_freq": "50%"}, "sample_freq", True),
    ({}, {"max_waiting": 5}, "max_waiting", False),
    (BEATS, {"flow_control": True}, "flow_control", False),
    ({}, {"headers_only": True}, "headers_only", True),
    ({}, {"max_expires": "5s"}, "max_expires", True),
    ({}, {"max_bytes": "5k"}, "max_bytes", True),
    ({}, PUSH, "deliver_subject", False),
    (PUSH, {"deliver_subject": None}, "deliver_subject", False),
    (PUSH, {"deliver_subject": "elsewhere"}, "deliver_subject", True),
    (PUSH, {"deliver_group": "workers"}, "deliver_group", True),
    (PUSH, {"idle_heartbeat": "1s"}, "idle_heartbeat", False),
    (BEATS, {"idle_heartbeat": None}, "idle_heartbeat", False),
    ({}, {"inactive_threshold": "1h"}, "inactive_threshold", True),
    ({}, {"num_replicas": 1}, "num_replicas", True),
    ({}, {"mem_storage": True}, "mem_storage", False),
    ({"mem_storage": True}, {"mem_storage": None}, "mem_storage", False),
    ({}, {"sourcing": True}, "sourcing", False),
    ({**PUSH, "durable_name": None, "ack_policy": "none"}, {"direct": True}, "direct", False),
    ({}, {"metadata": {"owner": "me"}}, "metadata.owner", True),
    ({}, PINNED, "priority_groups", True),
    (PINNED, {"priority_groups": ["two"]}, "priority_groups", True),
    (PINNED, {"priority_policy": "overflow", "priority_timeout": None}, "priority_policy", True),
    (PINNED, {"priority_timeout": "5s"}, "priority_timeout", True),
]


CHANGES = [
    *(pytest.param("stream", row, id=f"stream {row[2]} {row[3]}") for row in STREAM_CHANGES),
    *(pytest.param("consumer", row, id=f"consumer {row[2]} {row[3]}") for row in CONSUMER_CHANGES),
]


@pytest.mark.parametrize(("kind", "row"), CHANGES)
def test_the_server_accepts_exactly_the_updates_that_differences_allows(
    kind: str, row: Row, api: Api, make_stream: Make, make_consumer: Make
) -> None:
    base, changes, field, possible = row
    look: Callable[[Api, str], Any] = stream_config if kind == "stream" else consumer_config
    name = (
        make_stream(base) if kind == "stream" else make_consumer({"ack_policy": "explicit", **base})
    )
    actual = look(api, name)
    wanted = actual.changed(**changes)
    found = differences(wanted, actual)
    assert field in [each.field for each in found]
    assert any(each.refused for each in found) != possible
    assert differences(actual, actual) == differences(wanted, wanted) == []
    body = update_body(wanted, actual)
    if kind == "stream":
        assert done(lambda: api(f"STREAM.UPDATE.{name}", body)) == possible
    elif field != "name":  # the subject of the request names the consumer, and wins
        assert done(lambda: update_consumer(api, name, body)) == possible
    assert differences(wanted if possible else actual, look(api, name)) == []


def done(request: Any) -> bool:
    """Whether the server does what is asked; a refusal must be about the change."""
    try:
        request()
    except Refused as error:
        if error.err_code not in REFUSED:
            raise
        return False
    return True


def test_a_sealed_stream_stays_sealed(admin: JetStreamAdmin, api: Api, make_stream: Make) -> None:
    name = make_stream({"max_age": 3600 * 10**9, "allow_rollup_hdrs": True})
    before = api(f"STREAM.INFO.{name}")
    open_one = StreamInfo.from_server(before).config
    wanted = open_one.changed(sealed=True)
    announced = {change.field for change in differences(wanted, open_one)}
    after = api(f"STREAM.UPDATE.{name}", wanted.body())["config"]
    assert announced == {
        field for field, value in before["config"].items() if after[field] != value
    }
    sealed = stream_config(api, name)
    assert differences(wanted, sealed) == []
    assert {change.field for change in differences(sealed, open_one)} >= {
        "sealed",
        "deny_delete",
        "deny_purge",
    }
    refused = {change.field for change in differences(open_one, sealed) if change.refused}
    assert refused == {"sealed", "deny_delete", "deny_purge"}
    for described in (after, admin.describe(name)):
        assert not admin.plan(described).changes
    assert not done(lambda: api(f"STREAM.UPDATE.{name}", sealed.changed(sealed=False).body()))
    assert api(f"STREAM.UPDATE.{name}", sealed.body())["config"] == after
    assert done(lambda: api(f"STREAM.UPDATE.{name}", sealed.changed(description="new").body()))


def test_every_field_was_changed() -> None:
    # A single server has no replicas, and a paused consumer is no matter of updates: see the tests
    # about them.
    elsewhere = {"num_replicas", "pause_until", "filter_subject", "sealed"}
    for model, rows in ((StreamConfig, STREAM_CHANGES), (ConsumerConfig, CONSUMER_CHANGES)):
        tried = {field.partition(".")[0] for _, _, field, _ in rows}
        assert set(model.model_fields) - tried <= elsewhere
        refused = {field.partition(".")[0] for _, _, field, possible in rows if not possible}
        assert set(IMMUTABLE[model]) - refused <= elsewhere
        assert refused <= set(IMMUTABLE[model])
        assert (set(RISKS[model]) | set(LEFT_TO_SERVER[model])) <= set(model.model_fields)


def test_an_update_never_pauses_or_resumes(api: Api, make_consumer: Make) -> None:
    until = "2036-03-01T12:00:00Z"
    consumer = make_consumer({})
    actual = consumer_config(api, consumer)
    paused = actual.changed(pause_until=until)
    [difference] = differences(paused, actual)
    assert difference.refused == "an update leaves it as it is; pause or resume the consumer"
    update_consumer(api, consumer, paused.body())
    assert not ConsumerInfo.from_server(api(f"CONSUMER.INFO.{consumer}")).paused
    api(f"CONSUMER.PAUSE.{consumer}", {"pause_until": until})
    there = consumer_config(api, consumer)
    assert differences(actual, there) == []
    update_consumer(api, consumer, update_body(actual, there))
    assert ConsumerInfo.from_server(api(f"CONSUMER.INFO.{consumer}")).paused


def test_an_update_keeps_the_settings_that_the_server_has_chosen(
    api: Api, make_stream: Make, make_consumer: Make
) -> None:
    name = make_stream({"duplicate_window": 5 * 10**9})
    actual = stream_config(api, name)
    wanted = StreamConfig(name=name, subjects=actual.subjects, description="new")
    assert [each.field for each in differences(wanted, actual)] == ["description"]
    api(f"STREAM.UPDATE.{name}", update_body(wanted, actual))
    after = stream_config(api, name)
    assert (after.description, f"{after.duplicate_window}") == ("new", "5s")
    short = wanted.changed(max_age="1s")
    api(f"STREAM.UPDATE.{name}", update_body(short, after))
    assert str(stream_config(api, name).duplicate_window) == "1s"

    settings = {
        "max_waiting": 9,
        "max_ack_pending": 5,
        "ack_wait": 10**9,
        "inactive_threshold": 3600 * 10**9,
    }
    consumer = make_consumer({"ack_policy": "explicit", **settings})
    there = consumer_config(api, consumer)
    plain = ConsumerConfig(durable_name=there.name, ack_policy="explicit", description="new")
    update_consumer(api, consumer, update_body(plain, there))
    assert consumer_config(api, consumer) == there.changed(description="new")


def test_without_its_backoff_a_consumer_waits_as_long_as_any_other(
    api: Api, make_consumer: Make
) -> None:
    consumer = make_consumer({"ack_policy": "explicit", "backoff": [10**9]})
    actual = consumer_config(api, consumer)
    assert (str(actual.ack_wait), [str(each) for each in actual.backoff]) == ("1s", ["1s"])
    update_consumer(api, consumer, update_body(actual.changed(backoff=None), actual))
    after = consumer_config(api, consumer)
    assert (str(after.ack_wait), after.backoff) == ("30s", ())


@pytest.mark.parametrize(
    ("changes", "left"),
    [({"max_msgs": 1}, 1), ({"max_msgs_per_subject": 1}, 2), ({"retention": "interest"}, 0)],
)
def test_a_change_with_a_risk_deletes_messages(
    changes: dict[str, Any], left: int, api: Api, make_stream: Make, publisher: Publisher
) -> None:
    name = make_stream({})
    publisher.publish(Message(f"{name.lower()}.{end}") for end in "aabb")
    actual = stream_config(api, name)
    wanted = actual.changed(**changes)
    [difference] = differences(wanted, actual)
    assert "deleted at once" in difference.risk
    assert (
        StreamInfo.from_server(api(f"STREAM.UPDATE.{name}", update_body(wanted, actual))).config
        == wanted
    )
    assert StreamInfo.from_server(api(f"STREAM.INFO.{name}")).state.messages == left
    assert not any(each.risk for each in differences(actual, wanted))


def test_a_source_with_another_filter_is_copied_once_more(
    api: Api, make_stream: Make, publisher: Publisher
) -> None:
    origin = make_stream({})
    publisher.publish(Message(f"{origin.lower()}.a") for _ in range(3))
    name = make_stream({"subjects": [], "sources": [{"name": origin}]})

    def wait_for(messages: int) -> None:
        wait_until(
            lambda: bool(api(f"STREAM.INFO.{name}")["state"]["messages"] == messages),
            f"{messages} messages",
            20,
        )

    wait_for(3)
    actual = stream_config(api, name)
    wanted = actual.changed(sources=[{"name": origin, "filter_subject": f"{origin.lower()}.a"}])
    [difference] = differences(wanted, actual)
    assert "once more" in difference.risk
    api(f"STREAM.UPDATE.{name}", update_body(wanted, actual))
    wait_for(6)


def test_the_first_sequence_only_counts_for_a_new_stream(
    api: Api, make_stream: Make, publisher: Publisher
) -> None:
    name = make_stream({"first_seq": 100})
    actual = stream_config(api, name)
    wanted = StreamConfig(name=name, subjects=actual.subjects)
    assert differences(wanted, actual) == []
    api(f"STREAM.UPDATE.{name}", update_body(wanted, actual))
    assert stream_config(api, name) == actual
    api(f"STREAM.UPDATE.{name}", actual.changed(first_seq=500).body())
    assert publisher.publish([Message(f"{name.lower()}.a")]) == [100]


def test_an_update_does_not_publish_a_stream_into_itself(
    admin: JetStreamAdmin, api: Api, make_stream: Make, publisher: Publisher
) -> None:
    """The server takes an empty destination for none when it makes a stream, and for ``>`` when it
    updates one.
    """
    edited, planned = (make_stream({"republish": {"src": "", "dest": ""}}) for _ in range(2))
    assert [each.field for each in admin.streams.update(edited, description="new")] == [
        "description"
    ]
    plan = admin.plan({**api(f"STREAM.INFO.{planned}")["config"], "description": "new"})
    assert [each.field for each in plan.steps[0].differences] == ["description"]
    admin.apply(plan)
    for name in (edited, planned):
        assert stream_config(api, name).republish is None
        publisher.publish([Message(f"{name.lower()}.a")])
        assert admin.streams.load(name).state.messages == 1


def test_a_difference_reads_like_a_change() -> None:
    given = {
        "name": "S",
        "max_age": "1h30m",
        "metadata": {"a": "1"},
        "max_bytes": "1g",
        "sources": [{"name": "A"}],
    }
    actual = StreamConfig.model_validate({**given, "allow_direct": True})
    wanted = actual.changed(
        max_age="2h", metadata={"b": "2"}, max_bytes=None, allow_direct=False, sources=None
    )
    assert [str(each) for each in differences(wanted, actual)] == [
        'subjects: nothing -> ["S"]',
        "max_bytes: 1GiB -> -1",
        "max_age: 1h30m -> 2h",
        'sources: [{"name": "A"}] -> nothing',
        "allow_direct: true -> false",
        "metadata.b: nothing -> 2",
        "metadata.a: 1 -> nothing",
    ]
    assert differences(wanted, actual)[2] == Difference("max_age", wanted.max_age, actual.max_age)


def test_limits_of_the_server_make_no_difference(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    limits = 'max_request_batch: 500, max_ack_pending: 77, duplicate_window: "10s"'
    with Publisher(
        nats_server_factory(config=f"jetstream {{ limits {{ {limits} }} }}").url
    ) as publisher:
        stream, consumer = (
            StreamConfig(name="S", subjects=("s",)),
            ConsumerConfig(durable_name="c", ack_policy="all"),
        )
        made = StreamConfig.from_server(publisher.api("STREAM.CREATE.S", stream.body())["config"])
        request = {"stream_name": "S", "config": consumer.body()}
        there = ConsumerConfig.from_server(publisher.api("CONSUMER.CREATE.S.c", request)["config"])
    assert (str(made.duplicate_window), there.max_batch, there.max_ack_pending) == ("10s", 500, 77)
    assert differences(stream, made) == differences(consumer, there) == []


# -- without a server --


def stream(**fields: Any) -> StreamConfig:
    return StreamConfig.parse({"name": "S", **fields}, "it")


#: Beside what `test_other_clients` shows on a server.
SAME: list[tuple[Model, Model]] = [
    (
        stream(),
        StreamConfig.from_server(
            {"name": "S", "subjects": ["S"], "max_msgs": -1, "duplicate_window": 5}
        ),
    ),
    (stream(subjects=["a", "b"]), stream(subjects=["b", "a"])),
    (
        stream(subject_delete_marker_ttl="1s"),
        stream(subject_delete_marker_ttl="1s", allow_msg_ttl=True),
    ),
    (stream(placement={"tags": ["a", "b"]}), stream(placement={"tags": ["b", "a"], "cluster": ""})),
    (
        stream(sources=[{"name": "A"}, {"name": "B"}]),
        stream(sources=[{"name": "B"}, {"name": "A"}]),
    ),
    (stream(), StreamConfig.from_server({"name": "S", "shards": 5})),
    (
        stream(mirror={"name": "A", "opt_start_time": "2026-03-01T12:00:00Z"}),
        StreamConfig.from_server(
            {"name": "S", "mirror": {"name": "A", "opt_start_time": "2026-03-01T13:00:00+01:00"}}
        ),
    ),
    (ConsumerConfig(filter_subject="a"), ConsumerConfig(filter_subjects=("a",))),
    (
        ConsumerConfig.parse({"backoff": ["5s"]}, "it"),
        ConsumerConfig.parse({"backoff": ["5s"], "ack_wait": "5s"}, "it"),
    ),
]


@pytest.mark.parametrize(("wanted", "actual"), SAME, ids=lambda config: json.dumps(config.body()))
def test_equivalent_configurations_have_no_differences(wanted: Model, actual: Model) -> None:
    assert differences(wanted, actual) == []


def test_only_what_is_given_can_be_compared() -> None:
    actual = stream(
        max_age="1h", metadata={"a": "1", "b": "2"}, mirror={"name": "A", "filter_subject": "a"}
    )
    assert (
        differences(stream(mirror={"name": "A"}, metadata={"a": "1"}), actual, given_only=True)
        == []
    )
    fields = [
        each.field
        for each in differences(stream(mirror={"name": "A"}, metadata={"a": "1"}), actual)
    ]
    assert fields == ["max_age", "mirror.filter_subject", "metadata.b"]
    assert [str(each) for each in differences(stream(max_age="2h"), actual, given_only=True)] == [
        "max_age: 1h -> 2h"
    ]


def test_times_that_no_number_stands_for_differ() -> None:
    one, other = (
        ConsumerConfig.from_server({"pause_until": f"{year}-01-01T00:00:00Z"})
        for year in (1900, 1901)
    )
    assert [each.field for each in differences(one, other)] == ["pause_until"]


def test_a_promoted_mirror_answers_for_itself() -> None:
    actual = StreamConfig.from_server({"name": "S", "mirror": {"name": "A"}, "mirror_direct": True})
    found = differences(stream(), actual)
    assert {each.field: each.refused for each in found} == {
        "subjects": "",
        "mirror": "",
        "mirror_direct": "",
    }
    assert "mirror_direct" not in update_body(stream(), actual)


@pytest.mark.parametrize("asked", STREAMS)
def test_a_merged_configuration_has_all_settings_that_were_asked_for(asked: str) -> None:
    """Each kind of stream is merged onto every other kind."""
    wanted = stream(**STREAMS[asked])
    for there in STREAMS.values():
        actual = stream(**there)
        try:
            found = merged(wanted, actual)
        except ValidationError:
            assert StreamConfig.from_server({**actual.body(), **wanted.body()}).faults() != []
            continue
        assert differences(wanted, found, given_only=True) == []
        changed = {each.field.partition(".")[0] for each in differences(found, actual)}
        assert changed <= wanted.model_fields_set | {
            "subjects",
            "allow_rollup_hdrs",
            "allow_msg_ttl",
        }


def test_merging_keeps_what_was_not_asked_for() -> None:
    actual = StreamConfig.from_server(
        {
            "name": "S",
            "shards": 5,
            "metadata": {"a": "1", "b": "2"},
            "consumer_limits": {"max_ack_pending": 5, "new": 1},
            "max_age": 10**9,
        }
    )
    wanted = stream(metadata={"b": "3"}, consumer_limits={"inactive_threshold": "1s"})
    assert merged(wanted, actual).body() == {
        "name": "S",
        "shards": 5,
        "metadata": {"a": "1", "b": "3"},
        "consumer_limits": {"max_ack_pending": 5, "new": 1, "inactive_threshold": 10**9},
        "max_age": 10**9,
    }


def test_merging_keeps_what_was_not_asked_for_of_sources() -> None:
    """Without its filter a source is copied once more, from its beginning."""
    there = [{"name": "A", "filter_subject": "a.>", "new": 1}, {"name": "B", "opt_start_seq": 5}]
    actual = StreamConfig.from_server({"name": "S", "sources": there})
    assert merged(stream(sources=["A", "B"], max_age="1h"), actual).body()["sources"] == there
    asked = stream(sources=["A", {"name": "B", "filter_subject": "b"}])
    assert merged(asked, actual).body()["sources"] == [
        there[0],
        {**there[1], "filter_subject": "b"},
    ]
    # Others, or in another order: the difference is shown, and these are what was asked for.
    asked = stream(sources=["B", "A"])
    assert [each.field for each in differences(asked, actual, given_only=True)] == ["sources"]
    assert merged(asked, actual).body()["sources"] == [{"name": "B"}, {"name": "A"}]


def test_one_kind_of_filter_takes_the_place_of_the_other() -> None:
    one, several = ConsumerConfig(filter_subject="a"), ConsumerConfig(filter_subjects=("b", "c"))
    assert merged(one, several).body() == {"filter_subject": "a"}
    assert merged(several, one).body() == {"filter_subjects": ["b", "c"]}


def test_a_stream_is_no_consumer() -> None:
    with pytest.raises(TypeError, match="a StreamConfig cannot be compared with a ConsumerConfig"):
        differences(stream(), ConsumerConfig())


def test_an_update_keeps_what_only_a_newer_server_knows() -> None:
    actual = StreamConfig.from_server({"name": "S", "shards": 5, "zones": ["a"]})
    assert update_body(stream(max_msgs=5), actual) == {
        "name": "S",
        "max_msgs": 5,
        "shards": 5,
        "zones": ["a"],
    }
