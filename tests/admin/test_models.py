"""The models of the JetStream API: what people may write, what servers may say, and what is the
same.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from spark_jetstream.admin import (
    Bytes,
    ConsumerConfig,
    Model,
    Nanoseconds,
    PurgeRequest,
    StoredMessage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    readable,
)
from spark_jetstream.admin.models import account, base, consumers, messages, streams
from spark_jetstream.errors import OptionError, ProtocolError
from tests.admin.configs import EVERYTHING

SECOND = 1_000_000_000
ALL = [
    value
    for module in (account, base, consumers, messages, streams)
    for value in vars(module).values()
    if inspect.isclass(value) and issubclass(value, Model) and value.__module__ == module.__name__
]

# -- configurations that people write --

COPIER = {"name": "c", "deliver_subject": "d"}
COPYING = {"ack_policy": "flow_control", "deliver_subject": "a"}

STREAMS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_mgs": 1}, 'there is no field "max_mgs" (did you mean max_msgs?)'),
    ({"template_owner": "x"}, 'there is no field "template_owner"'),
    ({"sources": [{"nme": "A"}]}, 'in sources.0, there is no field "nme" (did you mean name?)'),
    (
        {"mirror": {"name": "A", "external": {"apy": "x"}}},
        'in mirror.external, there is no field "apy"',
    ),
    ({"name": None}, "name is required"),
    (
        {"name": "a.b"},
        'name must be the name of a stream, without blanks, dots, *, >, / or \\, not "a.b"',
    ),
    ({"description": "ä" * 2049}, "description must be a string of at most 4,096 bytes"),
    ({"metadata": {"a": "\ud800"}}, "metadata.a must be a string"),
    ({"subjects": 5}, "subjects must be a list"),
    ({"subjects": "a,b"}, 'subjects must be a list, not a text with commas such as "a,b"'),
    (
        {"subjects": ["a", "b c"]},
        'subjects.1 must be a subject, possibly with * and >, not "b c": there',
    ),
    (
        {"retention": "workque"},
        'must be limits, interest or workqueue, not "workque"; did you mean workqueue',
    ),
    ({"max_msgs": -2}, "max_msgs must be a whole number from 1 to 2^63-1, or 0 or -1 (no limit)"),
    (
        {"max_bytes": "lots"},
        "max_bytes must be a size from 1 to 2^63-1 bytes such as 65536, 512k, 8m",
    ),
    ({"max_msg_size": 2**31}, "max_msg_size must be a size from 1 to 2,147,483,647 bytes"),
    (
        {"max_age": "99ms"},
        "max_age must be a duration of at least 100ms such as 10s, 5m, 1h30m, or an",
    ),
    ({"max_age": "99ms"}, 'integer of nanoseconds, or 0 (no limit), not "99ms"'),
    ({"duplicate_window": 1}, "duplicate_window must be a duration of at least 100ms"),
    ({"subject_delete_marker_ttl": "999ms"}, "must be a duration from 1s to 200y"),
    ({"subject_delete_marker_ttl": "201y"}, "must be a duration from 1s to 200y such as 10s"),
    ({"max_age": "293y"}, 'not "293y": a server counts nanoseconds in 64 bits, at most 292y'),
    ({"num_replicas": 6}, "num_replicas must be a whole number from 0 to 5"),
    ({"first_seq": 2**64}, "first_seq must be a whole number from 0 to 2^64-1"),
    ({"metadata": {"a": 1}}, "metadata.a must be a string"),
    ({"metadata": ["a"]}, "metadata must be a mapping of names to values"),
    ({"mirror": 5}, "mirror must be a mapping of names to values"),
    ({"mirror": "a.>"}, "mirror.name must be the name of a stream"),
    (
        {"mirror": {"name": "A"}, "first_seq": 7},
        "a mirror cannot have first_seq: remove that or mirror",
    ),
    (
        {"max_age": "1m", "duplicate_window": "2m"},
        "duplicate_window (2m) is longer than max_age (1m)",
    ),
    (
        {"deny_purge": True, "subject_delete_marker_ttl": "5s"},
        "ttl needs rollups, which deny_purge forbids: remove",
    ),
    (
        {"allow_msg_counter": True, "subject_delete_marker_ttl": "5s"},
        "_counter and subject_delete_marker_ttl cannot",
    ),
    (
        {"deny_purge": True, "allow_msg_schedules": True},
        "schedules needs rollups, which deny_purge forbids: remove",
    ),
    ({"republish": {}}, "republish.dest is required"),
    (
        {"sources": [{"name": "A", "opt_start_time": "soon"}]},
        "sources.0.opt_start_time must be a time such",
    ),
    (
        {"sources": [{"name": "A", "external": {"api": "a.>"}}]},
        "sources.0.external.api must be a subject w",
    ),
    (
        {"mirror": {"name": "A", "opt_start_seq": 3, "consumer": COPIER}},
        "in mirror, consumer cannot be set together",
    ),
]
CONSUMERS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"durable": "a"}, 'there is no field "durable" (did you mean durable_name?)'),
    ({"durable_name": "a b"}, "durable_name must be the name of a consumer"),
    (
        {"opt_start_time": "2026-03-01T12:00:00"},
        "must be a time with its zone (Z or +01:00 at the end)",
    ),
    ({"durable_name": "a", "name": "b"}, "name and durable_name are different: a and b"),
    ({"priority_timeout": "5s"}, "priority_timeout needs a priority_policy"),
    ({**COPYING, "ack_wait": "1s"}, "ack_policy flow_control cannot have ack_wait or backoff"),
    ({**COPYING, "max_ack_pending": -1}, "ack_policy flow_control needs a limit max_ack_pending"),
    ({"backoff": ["1s"], "ack_wait": "2s"}, "ack_wait is the first value of backoff: remove it"),
    ({"backoff": ["1x"]}, "backoff.0 must be a duration"),
    ({"deliver_subject": "a.*"}, "deliver_subject must be a subject without * and >"),
    ({"deliver_subject": "a", "idle_heartbeat": "99ms"}, "a duration of at least 100ms"),
    ({"sample_freq": "many"}, "sample_freq must be a percentage of acknowledgements such as 100%"),
    (
        {"priority_groups": ["a b"]},
        "priority_groups.0 must be 1 to 16 letters, digits, -, _, / and =",
    ),
    ({**COPYING, "idle_heartbeat": "5s"}, "ack_policy flow_control has an idle_heartbeat of 1s"),
    ({"max_ack_pending": -2}, "max_ack_pending must be a whole number from -1 to 2^63-1"),
]
REFUSED: list[tuple[type[Model], dict[str, Any], str]] = [
    *((StreamConfig, {"name": "S", **body}, words) for body, words in STREAMS_REFUSED),
    *((ConsumerConfig, body, words) for body, words in CONSUMERS_REFUSED),
    (PurgeRequest, {"seq": 5, "keep": 5}, "seq and keep cannot be set together"),
]


@pytest.mark.parametrize(
    ("model", "body", "words"), REFUSED, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_wrong_configuration_is_an_error_that_names_its_file(
    model: type[Model], body: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError) as failure:
        model.parse(body, "orders.yaml")
    assert str(failure.value).startswith("orders.yaml: ")
    assert words in str(failure.value)
    assert "\n" not in str(failure.value)
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(OptionError) as failure:
        StreamConfig.parse({"max_age": "x", "num_replicas": 9, "mirror": {}}, "it")
    fields = [part.split()[0] for part in str(failure.value).removeprefix("it: ").split("; ")]
    assert fields == ["name", "max_age", "num_replicas", "mirror.name"]
    with pytest.raises(OptionError, match="it: must be a mapping of names to values"):
        StreamConfig.parse([], "it")  # type: ignore[arg-type]


def test_one_where_several_are_meant() -> None:
    """As on the command line: a text for a list, and a stream's name for the stream that is copied."""
    origin = {"name": "A"}
    for sources in ("A", ["A"], origin, [origin], StreamSource(name="A")):
        body = StreamConfig.parse({"name": "S", "subjects": "s.a", "sources": sources}, "it").body()
        assert body == {"name": "S", "subjects": ["s.a"], "sources": [origin]}
    assert StreamConfig.parse({"name": "S", "mirror": "A"}, "it").body() == {
        "name": "S",
        "mirror": origin,
    }
    assert ConsumerConfig.parse({"filter_subjects": "a", "backoff": "5s"}, "it").body() == {
        "filter_subjects": ["a"],
        "backoff": [5 * SECOND],
    }


def test_a_request_body_has_exactly_the_fields_that_were_set() -> None:
    same = {"name": "S", "sources": [{"name": "A"}]}
    given = {**same, "max_age": "1h", "max_bytes": "1g", "discard": "NEW", "metadata": {}}
    sent = {**same, "max_age": 3600 * SECOND, "max_bytes": 2**30, "discard": "new"}
    assert StreamConfig.parse(given, "it").body() == sent
    config = StreamConfig.parse({"name": "S", "max_age": None, "mirror": None}, "it")
    assert (config.body(), config.max_age, config.mirror) == ({"name": "S"}, 0, None)


def test_models_cannot_be_changed_in_place_and_pickle() -> None:
    config = StreamConfig.parse({"name": "S", **EVERYTHING}, "it")
    with pytest.raises(ValidationError, match="frozen"):
        config.max_msgs = 5
    copy = pickle.loads(pickle.dumps(config))
    assert (copy, copy.body(), str(copy.max_age)) == (config, config.body(), "1h")


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
        (
            StreamConfig.parse({"name": "S", "max_age": "5m"}, "it"),
            '{"name": "S", "max_age": "5m"}',
        ),
    ],
)
def test_readable_values(value: object, words: str) -> None:
    assert readable(value) == words


# -- replies of servers --

STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
INFO = {
    "config": {"name": "S", "num_replicas": 1},
    "created": "2026-03-01T12:00:00Z",
    "state": STATE,
}


def test_fields_of_a_newer_server_are_kept_and_sent_back() -> None:
    said = {
        "name": "S",
        "retention": "for ever",
        "shards": {"count": 3},
        "num_replicas": 9,
        "max_age": 5,
        "mirror": {
            "name": "no such name!",
            "priority": 7,
            "external": {"api": "a.>", "deliver": "", "via": ["hub"]},
        },
        "sources": [{"name": "A", "weight": 1.5}],
    }
    config = StreamConfig.from_server(said)
    assert config.body() == said
    assert config.model_extra == {"shards": {"count": 3}}
    changed = config.changed(description="new", num_replicas=3, max_age=None)
    expected = {name: value for name, value in said.items() if name != "max_age"}
    assert changed.body() == {**expected, "description": "new", "num_replicas": 3}
    assert config.body() == said


def test_a_change_is_checked_like_all_that_people_write() -> None:
    config = StreamConfig.from_server({"name": "S", "shards": 3, "duplicate_window": 120 * SECOND})
    for changes, words in (
        ({"max_mgs": 1}, "did you mean max_msgs"),
        ({"shards": 4}, "there is no field"),
        ({"num_replicas": 6}, "from 0 to 5"),
        ({"max_age": "1s"}, "is longer than max_age"),
        ({"name": None}, "Field required"),
    ):
        with pytest.raises(ValidationError, match=words):
            config.changed(**changes)
    assert config.changed(max_age="1s", duplicate_window=None).body() == {
        "name": "S",
        "shards": 3,
        "max_age": SECOND,
    }


def test_another_backoff_takes_the_time_to_wait_along() -> None:
    config = ConsumerConfig.from_server({"name": "c", "ack_wait": SECOND, "backoff": [SECOND]})
    assert config.changed(backoff=["5s"]).body() == {"name": "c", "backoff": [5 * SECOND]}
    assert config.changed(backoff=None, ack_wait="9s").body() == {
        "name": "c",
        "ack_wait": 9 * SECOND,
    }


def test_the_servers_metadata_is_shown_and_not_sent() -> None:
    config = StreamConfig.from_server(
        {"name": "S", "metadata": {"_nats.level": "5", "owner": "me"}}
    )
    assert config.metadata["_nats.level"] == "5"
    assert config.own_metadata == {"owner": "me"}
    assert config.body() == {"name": "S", "metadata": {"owner": "me"}}
    assert StreamConfig.from_server({"name": "S", "metadata": {"_nats.level": "5"}}).body() == {
        "name": "S"
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": None}, "config is required"),
        ({"config": []}, "config must be a mapping"),
        ({"created": 5}, "created must be a time"),
        ({"created": "yesterday"}, "created must be a time"),
        ({"state": {"messages": "many"}}, "state.messages must be a whole number"),
        ({"state": {**STATE, "lost": 5}}, "state.lost"),
        ({"sources": {}}, "sources must be a list"),
        ({"did_create": "yes"}, "did_create must be true or false"),
    ],
)
def test_a_reply_that_is_none(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError, match="cannot look at stream S: ") as failure:
        StreamInfo.from_server({**INFO, **change}, "look at stream S")
    assert words in str(failure.value)


# -- documentation --


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_the_page_of_the_models_has_every_field(model: type[Model]) -> None:
    """The site leaves out what has no docstring. Events have a page of their own."""
    assert model.__doc__
    for field in model.model_fields:
        assert base.field_docs(model).get(field, "").endswith("."), field


def test_a_direct_get_without_its_headers_is_refused() -> None:
    for block in (
        b"",
        b"NATS/1.0\r\nTag: a\r\n\r\n",
        b"NATS/1.0\r\nNats-Subject: a\r\nNats-Sequence: x\r\n\r\n",
    ):
        with pytest.raises(ProtocolError, match="no usable headers"):
            StoredMessage.from_direct(block, b"")
