"""What is different between two configurations, and how it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from spark_jetstream.admin import (
    Bytes,
    ConsumerConfig,
    Model,
    Nanoseconds,
    StreamConfig,
    differences,
    merged,
    readable,
    rendered,
    update_body,
)
from tests.admin.configs import CONSUMERS, STREAMS


def stream(**fields: Any) -> StreamConfig:
    return StreamConfig.parse({"name": "S", **fields}, "it")


SAME: list[tuple[Model, Model]] = [
    (stream(), StreamConfig.from_server({"name": "S", "subjects": ["S"], "max_msgs": -1, "duplicate_window": 5})),
    (stream(subjects=["a", "b"]), stream(subjects=["b", "a"])),
    (stream(subject_delete_marker_ttl="1s"), stream(subject_delete_marker_ttl="1s", allow_msg_ttl=True)),
    (stream(allow_msg_schedules=True), stream(allow_msg_schedules=True, allow_rollup_hdrs=True)),
    (stream(republish={"dest": "a.>"}), stream(republish={"src": ">", "dest": "a.>"})),
    (stream(placement={}), stream()),
    (stream(placement={"tags": ["a", "b"]}), stream(placement={"tags": ["b", "a"], "cluster": ""})),
    (stream(num_replicas=0), stream()),
    (stream(sources=[{"name": "A"}, {"name": "B"}]), stream(sources=[{"name": "B"}, {"name": "A"}])),
    (stream(metadata={"a": "1"}), stream(metadata={"a": "1", "_nats.level": "5"})),
    (stream(), StreamConfig.from_server({"name": "S", "shards": 5})),
    (
        stream(mirror={"name": "A", "opt_start_time": "2026-03-01T12:00:00Z"}),
        StreamConfig.from_server({"name": "S", "mirror": {"name": "A", "opt_start_time": "2026-03-01T13:00:00+01:00"}}),
    ),
    (
        ConsumerConfig(durable_name="c"),
        ConsumerConfig(durable_name="c", name="c", max_waiting=512, max_ack_pending=1000),
    ),
    (ConsumerConfig(filter_subject="a"), ConsumerConfig(filter_subjects=("a",))),
    (
        ConsumerConfig.parse({"backoff": ["5s"]}, "it"),
        ConsumerConfig.parse({"backoff": ["5s"], "ack_wait": "5s"}, "it"),
    ),
]


@pytest.mark.parametrize(("wanted", "actual"), SAME, ids=lambda config: json.dumps(config.body()))
def test_what_makes_no_difference(wanted: Model, actual: Model) -> None:
    assert differences(wanted, actual) == []


def test_only_what_is_given_can_be_compared() -> None:
    actual = stream(max_age="1h", metadata={"a": "1", "b": "2"}, mirror={"name": "A", "filter_subject": "a"})
    assert differences(stream(mirror={"name": "A"}, metadata={"a": "1"}), actual, given_only=True) == []
    fields = [each.field for each in differences(stream(mirror={"name": "A"}, metadata={"a": "1"}), actual)]
    assert fields == ["max_age", "mirror.filter_subject", "metadata.b"]
    assert [str(each) for each in differences(stream(max_age="2h"), actual, given_only=True)] == ["max_age: 1h -> 2h"]


def test_times_that_no_number_stands_for_differ() -> None:
    one, other = (ConsumerConfig.from_server({"pause_until": f"{year}-01-01T00:00:00Z"}) for year in (1900, 1901))
    assert [each.field for each in differences(one, other)] == ["pause_until"]


def test_a_promoted_mirror_answers_for_itself() -> None:
    actual = StreamConfig.from_server({"name": "S", "mirror": {"name": "A"}, "mirror_direct": True})
    found = differences(stream(), actual)
    assert {each.field: each.refused for each in found} == {"subjects": "", "mirror": "", "mirror_direct": ""}
    assert "mirror_direct" not in update_body(stream(), actual)


@pytest.mark.parametrize("asked", STREAMS)
def test_what_is_merged_is_all_that_was_asked_for(asked: str) -> None:
    """One kind of stream, onto any other one."""
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
        assert changed <= wanted.model_fields_set | {"subjects", "allow_rollup_hdrs", "allow_msg_ttl"}


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


def test_one_kind_of_filter_takes_the_place_of_the_other() -> None:
    one, several = ConsumerConfig(filter_subject="a"), ConsumerConfig(filter_subjects=("b", "c"))
    assert merged(one, several).body() == {"filter_subject": "a"}
    assert merged(several, one).body() == {"filter_subjects": ["b", "c"]}


def test_a_stream_is_no_consumer() -> None:
    with pytest.raises(TypeError, match="a StreamConfig cannot be compared with a ConsumerConfig"):
        differences(stream(), ConsumerConfig())


def test_an_update_keeps_what_only_a_newer_server_knows() -> None:
    actual = StreamConfig.from_server({"name": "S", "shards": 5, "zones": ["a"]})
    assert update_body(stream(max_msgs=5), actual) == {"name": "S", "max_msgs": 5, "shards": 5, "zones": ["a"]}


KINDS: list[Model] = [stream(**body) for body in STREAMS.values()]
KINDS += [ConsumerConfig.parse(body, "it") for body in CONSUMERS.values()]


@pytest.mark.parametrize("config", KINDS, ids=[*STREAMS, *CONSUMERS])
def test_a_configuration_as_people_see_it_is_the_same(config: Model) -> None:
    shown = rendered(config)
    assert type(config).parse(json.loads(json.dumps(shown)), "it").body() == config.body()
    numbers = {name: value for name, value in shown.items() if name not in ("first_seq", "rate_limit_bps")}
    assert "000000000" not in json.dumps(numbers)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        ((), "nothing"),
        ("", "nothing"),
        (False, "false"),
        (0, "0"),
        (Nanoseconds(0), "0s"),
        (Bytes(65536), "64KiB"),
        (("a", "b"), '["a", "b"]'),
        (stream(max_age="5m"), '{"name": "S", "max_age": "5m"}'),
    ],
)
def test_readable_values(value: object, words: str) -> None:
    assert readable(value) == words
