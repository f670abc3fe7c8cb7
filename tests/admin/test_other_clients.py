"""The server's descriptions of what this and other clients make are accepted, and change nothing.

So are the descriptions of the clients themselves. Other clients send what their libraries write:
zeros, -1, empty texts and lists, nulls, and the year 1 for "never".
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from spark_jetstream.admin import (
    ConsumerConfig,
    ConsumerInfo,
    JetStreamAdmin,
    StreamConfig,
    StreamInfo,
    differences,
    update_body,
)
from spark_jetstream.admin.descriptions import yaml_documents, yaml_text
from spark_jetstream.admin.models.base import Model
from spark_jetstream.errors import OptionError
from tests.admin.configs import CONSUMERS, SECOND, STREAMS, parts, read
from tests.admin.conftest import Api
from tests.support.fake_jetstream import Replies, account, administered, consumer_info, stream_info
from tests.support.publish import Refused

NEVER = "0001-01-01T00:00:00Z"
TIMES = [
    NEVER,
    "0001-01-01T00:00:00.000Z",
    "1960-02-29T00:00:00Z",
    "1970-01-01T00:00:00Z",
    "2026-03-01T12:00:00.123456789+01:00",
    "2026-03-01T12:00:00.500Z",
    "2300-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999Z",
]
LIMITS = [0, -1, None, 7]
FLAG, UNSET_FLAG = [False, None, True], [False, None]
DURATION, UNSET_NUMBER = [0, None, SECOND], [0, None]

#: What other clients may send for a field of a stream; a server takes each of these by itself.
STREAM_VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"), LIMITS
    ),
    "description": ["", None, "é\n"],
    "subjects": [[], None, ["other.client.*", "other.b"], ["$KV.other.>"]],
    "retention": ["limits", "interest", "workqueue"],
    **dict.fromkeys(("max_age", "duplicate_window", "subject_delete_marker_ttl"), DURATION),
    "discard": ["old", "new"],
    "num_replicas": [0, None, 1],
    "placement": [
        {},
        None,
        {"cluster": "", "tags": [], "preferred": ""},
        {"tags": None},
        {"tags": ["ssd"]},
    ],
    "mirror": [
        None,
        {
            "name": "NEAR",
            "opt_start_seq": 0,
            "opt_start_time": None,
            "filter_subject": "",
            "subject_transforms": None,
        },
        {"name": "NEAR", "external": None, "consumer": None, "subject_transforms": []},
        {"name": "NEAR", "external": {"api": "", "deliver": ""}},
        {"name": "NEAR", "subject_transforms": [{"src": "", "dest": ""}]},
        *({"name": "NEAR", "opt_start_time": time} for time in TIMES),
    ],
    "sources": [
        None,
        [],
        [
            {"name": "NEAR", "opt_start_seq": 0, "opt_start_time": None},
            {"name": "FAR", "external": {"api": ""}},
        ],
        *([{"name": "NEAR", "opt_start_time": time}] for time in TIMES),
    ],
    "compression": ["none", "s2"],
    "first_seq": [0, None, 5],
    "subject_transform": [None, {"src": "", "dest": ""}, {"src": ">", "dest": ""}],
    "republish": [
        None,
        {"src": "", "dest": ""},
        {"src": "", "dest": "again.>", "headers_only": None},
    ],
    **dict.fromkeys(("discard_new_per_subject", "mirror_direct", "sealed"), UNSET_FLAG),
    "consumer_limits": [
        None,
        {},
        {"inactive_threshold": 0, "max_ack_pending": 0},
        {"inactive_threshold": None, "max_ack_pending": None},
        {"inactive_threshold": -1, "max_ack_pending": -1},
        {"inactive_threshold": -5, "max_ack_pending": -5},
    ],
    **dict.fromkeys(
        ("no_ack", "allow_direct", "deny_delete", "deny_purge", "allow_rollup_hdrs"), FLAG
    ),
    **dict.fromkeys(("allow_msg_ttl", "allow_atomic", "allow_batched"), FLAG),
    **dict.fromkeys(("allow_msg_counter", "allow_msg_schedules"), FLAG),
    "persist_mode": ["", "default", "async"],
    "metadata": [{}, None, {"": "empty", "b": ""}],
    "storage": ["file", "memory"],
}

#: The same for a field of a consumer.
CONSUMER_VALUES: dict[str, list[Any]] = {
    "name": [None, ""],
    "description": ["", None],
    "deliver_policy": ["all", "last", "new"],
    **dict.fromkeys(
        ("opt_start_seq", "rate_limit_bps", "idle_heartbeat", "priority_timeout"), UNSET_NUMBER
    ),
    "opt_start_time": [None],
    "ack_policy": ["none", "all", "explicit"],
    **dict.fromkeys(("ack_wait", "max_expires"), DURATION),
    "backoff": [[], None, [0], [0, SECOND]],
    "filter_subject": ["", None, "c.a", "elsewhere"],
    "filter_subjects": [[], None, ["c.a"], ["c.a", "c.b"], ["elsewhere"]],
    "replay_policy": ["instant", "original"],
    "sample_freq": ["", None, "5", "200%", "1000%", "+5"],
    **dict.fromkeys(("max_deliver", "max_waiting", "max_batch", "max_bytes"), LIMITS),
    "max_ack_pending": [0, -1, None],
    **dict.fromkeys(("flow_control", "direct", "sourcing"), UNSET_FLAG),
    **dict.fromkeys(("headers_only", "mem_storage"), FLAG),
    "deliver_subject": ["", None, "delivered"],
    "deliver_group": ["", None, "workers"],
    "inactive_threshold": [0, None, 3600 * SECOND],
    "num_replicas": [0, None, 1],
    "metadata": [{}, None, {"a": ""}],
    "pause_until": [None, *TIMES],
    "priority_groups": [[], None],
    "priority_policy": ["none"],
}

#: What a server takes only together.
TOGETHER: dict[str, dict[str, Any]] = {
    **{
        f"from {time}": {"deliver_policy": "by_start_time", "opt_start_time": time}
        for time in TIMES
    },
    "pull limits of a push consumer": {
        "deliver_subject": "d",
        "max_batch": 5,
        "max_bytes": 5,
        "max_expires": 5,
    },
    "backoff with its ack_wait": {
        "ack_policy": "explicit",
        "backoff": [SECOND],
        "ack_wait": SECOND,
    },
    "pinned": {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": 0},
    "filtered of two kinds": {"filter_subject": "", "filter_subjects": ["c.a"]},
}

_numbers = itertools.count(1)


def same(one: Model, other: Model) -> None:
    """That nothing differs, whichever is wanted."""
    assert differences(one, other) == differences(other, one) == []


TOO_FAR = (
    "opt_start_time must be a time that the clock of a server has, from 1677-09-22 to 2262-04-11"
)


def begins_too_far(sent: Mapping[str, Any]) -> bool:
    """Whether a server takes the start for another time: what is there is accepted, and not made
    anew.
    """
    origins = [sent, sent.get("mirror") or {}, *(sent.get("sources") or [])]
    times = [str(origin.get("opt_start_time")) for origin in origins]
    return any(time.startswith(("2300-", "9999-")) for time in times)


def accepted(admin: JetStreamAdmin, api: Api, sent: dict[str, Any], stream: str = "") -> bool:
    """Return whether the server takes a stream, or a durable consumer of ``stream``.

    If it does, its description is accepted again in every way, and changes nothing.
    """
    name = f"other{next(_numbers)}"
    manager: Any = admin.consumers if stream else admin.streams
    info_of: Any = ConsumerInfo if stream else StreamInfo
    config_of: Any = ConsumerConfig if stream else StreamConfig
    path = f"{stream}.{name}" if stream else name
    owner = [stream] if stream else []
    if stream:
        sent = {**sent, "durable_name": name}
    else:
        subjects = {} if sent.get("mirror") else {"subjects": [f"{name}.>"]}
        sent = {**subjects, **sent, "name": name}

    def ask(verb: str, body: Any = None) -> Any:
        if not stream:
            return api(f"STREAM.{verb}.{path}", body)
        if body is not None:
            body = {"stream_name": stream, "config": body, "action": verb.lower()}
        return api(f"CONSUMER.{verb.replace('UPDATE', 'CREATE')}.{path}", body)

    try:
        ask("CREATE", sent)
    except Refused:
        return False
    try:
        info = ask("INFO")
        config, created = info["config"], info["created"]
        actual = read(info_of, info).config
        assert actual.faults() == []
        same(config_of.parse(config, "what the server says"), actual)
        assert differences(config_of.parse(sent, "what the client sent"), actual) == []
        for given in (config, info, actual, manager.load(*owner, name)):
            assert manager.create(*owner, given).created == created
            assert manager.create(*owner, name, given).created == created
            assert manager.load_or_create(*owner, given).created == created
            assert manager.update(*owner, name, given) == []
        described = admin.describe(stream or name)
        assert (
            yaml_documents(yaml_text(described), "")
            == [json.loads(json.dumps(described))]
            == [described]
        )
        plain = json.loads(json.dumps(admin.describe(stream or name, readable=False)))
        for wanted in (
            described,
            {**described, "consumers": [config]} if stream else config,
            plain,
        ):
            assert not admin.plan(wanted).changes
        for body in (actual.body(), update_body(actual, actual)):
            if (sent.get("mirror") or {}).get("subject_transforms") == []:
                # The server keeps this list, does not show it, and takes no update without it.
                with pytest.raises(Refused, match="mirror configuration can not be updated"):
                    ask("UPDATE", body)
                body["mirror"] = sent["mirror"]
            ask("UPDATE", body)
            after = ask("INFO")
            # The server may leave out an object without values, and write a time in another zone.
            same(config_of.parse(after["config"], "what the server says then"), actual)
            assert after["created"] == created
        if stream:
            changed_and_copied(admin, stream, name, actual)
        ask("DELETE")
        again = admin.plan(described, any_filter=True)
        if begins_too_far(sent):
            with pytest.raises(OptionError, match=TOO_FAR):
                admin.apply(again)
            return True
        admin.apply(again)
        same(actual, manager.load(*owner, name).config)
    finally:
        manager.delete(*owner, name, missing_ok=True)
    return True


def changed_and_copied(
    admin: JetStreamAdmin, stream: str, name: str, actual: ConsumerConfig
) -> None:
    """One field of a consumer is changed there and back, and a copy has all that the consumer has."""
    consumers = admin.consumers
    assert [change.field for change in consumers.update(stream, name, description="new")] == [
        "description"
    ]
    consumers.update(stream, name, description=actual.description or None)
    same(actual, consumers.load(stream, name).config)
    if begins_too_far(actual.body()):
        with pytest.raises(OptionError, match=TOO_FAR):
            consumers.copy(stream, name, f"{name}copy", any_filter=True)
        return
    copy = consumers.copy(stream, name, f"{name}copy", any_filter=True).config
    consumers.delete(stream, f"{name}copy")
    # A pause that is over is not copied.
    same(
        copy.changed(name=name, durable_name=name, pause_until=None),
        actual.changed(pause_until=None),
    )
    assert copy.pause_until in (None, actual.pause_until)


@pytest.fixture
def stream(admin: JetStreamAdmin, name: str) -> str:
    """A stream that takes ``c.>``."""
    return admin.streams.create(name, subjects="c.>").config.name


def each_of(
    kinds: Mapping[str, dict[str, Any]], values: Mapping[str, list[Any]]
) -> pytest.MarkDecorator:
    """Every kind, and, in the full run, every value of a field by itself."""
    alone = {
        f"{name}-{json.dumps(value)}": {name: value}
        for name, each in values.items()
        for value in each
    }
    by_itself = [
        pytest.param(sent, id=name, marks=pytest.mark.full) for name, sent in alone.items()
    ]
    return pytest.mark.parametrize(
        "sent", [*(pytest.param(kinds[kind], id=kind) for kind in kinds), *by_itself]
    )


@each_of(STREAMS, STREAM_VALUES)
def test_a_stream_is_accepted_back(sent: dict[str, Any], admin: JetStreamAdmin, api: Api) -> None:
    assert accepted(admin, api, sent)


@each_of({**CONSUMERS, **TOGETHER}, CONSUMER_VALUES)
def test_a_consumer_is_accepted_back(
    sent: dict[str, Any], admin: JetStreamAdmin, api: Api, stream: str
) -> None:
    assert accepted(admin, api, sent, stream)


def nothing_of(values: Mapping[str, list[Any]], null: bool) -> dict[str, Any]:
    """Return what a client sends for fields that its user did not set.

    That is null, or the value that stands for nothing in its language.
    """
    if null:
        return {name: None for name, each in values.items() if None in each}
    return {name: each[0] for name, each in values.items()}


@pytest.mark.parametrize("null", [False, True], ids=["nothing", "null"])
def test_fields_that_were_not_set_are_accepted_back(
    null: bool, admin: JetStreamAdmin, api: Api, stream: str
) -> None:
    assert accepted(
        admin, api, {**nothing_of(STREAM_VALUES, null), "subjects": [f"nothing.{null}"]}
    )
    assert accepted(admin, api, nothing_of(CONSUMER_VALUES, null), stream)


def untried(configs: Iterable[Model]) -> set[str]:
    """The fields, of these configurations and of their parts, that none of them sets."""
    all_parts = [(type(part).__name__, part) for config in configs for part in parts(config)]
    known = {f"{kind}.{name}" for kind, part in all_parts for name in type(part).model_fields}
    return known - {f"{kind}.{name}" for kind, part in all_parts for name in part.model_fields_set}


def test_every_field_was_tried() -> None:
    """The server refuses fields that it does not know, so it knows all of them."""
    assert StreamConfig.model_fields.keys() - STREAM_VALUES.keys() == {"name"}
    assert ConsumerConfig.model_fields.keys() - CONSUMER_VALUES.keys() == {"durable_name"}
    streams = (StreamConfig.parse({"name": "S", **config}, "") for config in STREAMS.values())
    assert untried(streams) == {"StreamConfig.sealed", "Placement.preferred"}
    consumers = (
        ConsumerConfig.parse({"durable_name": "c", **config}, "") for config in CONSUMERS.values()
    )
    assert untried(consumers) == {
        f"ConsumerConfig.{name}" for name in ("name", "direct", "sourcing")
    }


@pytest.mark.parametrize("body", [{"misspelt": None}, {"mirror": {"misspelt": None}}])
def test_the_server_refuses_fields_that_it_does_not_know(body: dict[str, Any], api: Api) -> None:
    with pytest.raises(Refused, match="unknown field") as caught:
        api("STREAM.CREATE.NEVER", {**body, "name": "NEVER"})
    assert caught.value.err_code == 10025


@pytest.mark.parametrize("level", [5, 6])
def test_fields_that_only_a_newer_server_knows_are_left_to_it(
    level: int,
) -> None:
    """A server of the same age does not know these fields either: there they are misspelt."""
    config = {"name": "S", "shards": {"count": 3}, "mirror": {"name": "O", "weight": 5}}
    consumer = {"durable_name": "c", "name": "c", "shard": 3}
    stream, info = stream_info(config), consumer_info(consumer)
    sent: list[dict[str, Any]] = []

    def create(body: dict[str, Any]) -> dict[str, Any]:
        sent.append(body)
        return info if "stream_name" in body else stream

    answers: Replies = {
        "INFO": account(level),
        "STREAM.INFO.S": stream,
        "STREAM.CREATE.S": create,
        "CONSUMER.INFO.S.c": info,
        "CONSUMER.CREATE.S.c": create,
        "CONSUMER.LIST.S": {"total": 1, "offset": 0, "limit": 256, "consumers": [info]},
    }
    with administered(answers) as (_, admin):
        described = admin.describe("S")
        assert described == {**config, "consumers": [{"durable_name": "c", "shard": 3}]}
        requests: list[Callable[[], object]] = [
            lambda: admin.streams.create(config),
            lambda: admin.consumers.create("S", info),
            lambda: admin.plan(described),
        ]
        for request in requests:
            if level == 5:
                with pytest.raises(OptionError, match=r'there is no field "(shards?|weight)"'):
                    request()
            else:
                request()
        assert [body.get("config", body) for body in sent] == (
            [] if level == 5 else [{**config, "allow_direct": True}, consumer]
        )
        if level == 6:
            assert not admin.plan(described).changes
