"""Streams administered on a real server, each method with what it does, what is missing, and what
is refused.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import (
    DEFAULT_STREAM,
    DEFAULT_WORK_QUEUE,
    ConsumerConfig,
    JetStreamAdmin,
    StreamConfig,
    differences,
    template,
)
from spark_jetstream.errors import (
    ApiError,
    InsufficientResources,
    JetStreamError,
    OptionError,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.configs import ORIGIN
from tests.admin.conftest import Api, Fill
from tests.support.client import set_timing
from tests.support.command import run_command
from tests.support.fake_jetstream import administered, stream_info
from tests.support.publish import Message, Publisher, Tap

# -- create --


def test_create_with_a_name_in_front(admin: JetStreamAdmin, name: str) -> None:
    one = admin.streams.create(f"{name}A", subjects=[f"{name}.a"])
    two = admin.streams.create(f"{name}B", DEFAULT_WORK_QUEUE, subjects=[f"{name}.b"])
    three = admin.streams.create(f"{name}C", one, subjects=[f"{name}.c"])
    four = admin.streams.create(f"{name}D", two.config, subjects=[f"{name}.d"])
    assert [each.config.name for each in (one, two, three, four)] == [
        f"{name}{letter}" for letter in "ABCD"
    ]
    assert [each.config.discard for each in (one, two, three, four)] == ["old", "new", "old", "new"]
    parsed = StreamConfig.parse({"name": f"{name}F", "subjects": [f"{name}.f"]}, "")
    assert admin.streams.create(parsed, max_age="1h").config.max_age == 3600 * 10**9
    mapping = {"name": f"{name}G", "subjects": [f"{name}.g"], "max_age": "1h"}
    assert admin.streams.create(mapping).config.max_age == 3600 * 10**9
    assert admin.streams.load_or_create(f"{name}A", subjects=[f"{name}.a"]).created == one.created
    assert (
        admin.streams.load_or_create(f"{name}E", subjects=[f"{name}.e"]).config.name == f"{name}E"
    )
    misspelt = r"^stream X: there is no field \"max_msg\" \(did you mean max_msgs\?\)$"
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (
            (name, "orders.>"),
            {},
            f'stream {name}: a StreamConfig or a mapping is needed, not "orders.>"',
        ),
        ((name, ["orders.>"]), {}, "a StreamConfig or a mapping is needed, not a list"),
        ((["orders.>"],), {}, "a name, a StreamConfig or a mapping is needed, not a list"),
        (
            (DEFAULT_STREAM, {"name": name}),
            {},
            "the first of two arguments must be a name, not a mapping",
        ),
        ((name,), {"name": f"{name}B"}, f'two names are given: "{name}", and name="{name}B"'),
        (
            ("orders.>",),
            {},
            r"stream orders\.>: name must be the name of a stream, without blanks, dots",
        ),
        ((), {}, r"^stream: name is required$"),
        (({"name": "X", "max_msg": 5},), {}, misspelt),
        ((), {"name": "X", "max_msg": 5}, misspelt),
        (
            (ConsumerConfig(name="c"),),
            {},
            "a StreamConfig or a mapping is needed, not a ConsumerConfig",
        ),
    ]
    for request in (admin.streams.create, admin.streams.load_or_create):
        for arguments, fields, said in wrong:
            with pytest.raises(OptionError, match=said):
                request(*arguments, **fields)
    for change in (admin.streams.update, admin.streams.plan):
        with pytest.raises(
            OptionError, match=r'a StreamConfig or a mapping is needed, not "orders\.>"'
        ):
            change(f"{name}A", "orders.>")  # type: ignore[arg-type]


def test_new_streams_allow_direct_reads_and_others_stay(
    admin: JetStreamAdmin, name: str, publisher: Publisher, nats_server: NatsServer
) -> None:
    """However a stream is made: `create`, a description, the command.

    Other clients make streams without it.
    """
    asked = {"name": name, "subjects": [f"{name}.a"]}
    for described in ({"name": f"{name}B"}, {"name": f"{name}C", "allow_direct": False}):
        admin.apply(admin.plan(described))
    run_command("stream", "add", f"{name}D", url=nats_server.url)
    made = [
        admin.streams.create(f"{name}A"),
        *(admin.streams.load(f"{name}{letter}") for letter in "BCD"),
    ]
    assert [each.config.allow_direct for each in made] == [True, True, False, True]
    assert [admin.describe(each.config.name).get("allow_direct") for each in made] == [
        None,
        None,
        False,
        None,
    ]

    publisher.api(f"STREAM.CREATE.{name}", asked)
    assert not admin.streams.create(asked).config.allow_direct
    assert not admin.streams.load_or_create(asked).config.allow_direct
    assert (
        "already exists, unchanged"
        in run_command("stream", "add", name, "--subjects", f"{name}.a", url=nats_server.url).out
    )
    assert admin.plan(asked).changes == 0
    assert [
        str(each)
        for each in admin.streams.update(name, StreamConfig.parse({**asked, "max_msgs": 5}, ""))
    ] == ["max_msgs: -1 -> 5"]
    assert not admin.streams.load(name).config.allow_direct
    with pytest.raises(StreamExists, match="allow_direct: false -> true"):
        admin.streams.create(asked, max_msgs=5, allow_direct=True)
    assert [str(each) for each in admin.streams.update(name, allow_direct=None)] == [
        "allow_direct: false -> true"
    ]
    with pytest.raises(StreamExists, match="allow_direct: true -> false"):
        admin.streams.create(asked, max_msgs=5, allow_direct=False)


def test_mirror_direct_of_an_origin_without_it(admin: JetStreamAdmin, name: str) -> None:
    """The server would make the mirror, and turn it off."""
    admin.streams.create(f"{name}A", subjects=f"{name}.a", allow_direct=False)
    with pytest.raises(
        OptionError, match=f"mirror_direct needs allow_direct of its origin {name}A"
    ):
        admin.streams.create(f"{name}M", mirror=f"{name}A", mirror_direct=True)
    assert f"{name}M" not in admin.streams.names()


def test_create_again_what_took_the_room(nats_server_factory: Callable[..., NatsServer]) -> None:
    """The server looks whether the stream is there before it looks for room."""
    server = nats_server_factory(config="jetstream { max_file_store: 100M }")
    with JetStreamAdmin(servers=server.url) as admin:
        first = admin.streams.create(name="A", max_bytes="60m")
        assert admin.streams.create(name="A", max_bytes="60m").created == first.created
        with pytest.raises(
            InsufficientResources, match="cannot create stream B: insufficient storage"
        ):
            admin.streams.create(name="B", max_bytes="60m")
        with pytest.raises(
            StreamExists, match="cannot create stream A: stream name already in use"
        ):
            admin.streams.create(name="A", max_bytes="59m")


def test_load_or_create(admin: JetStreamAdmin, name: str) -> None:
    first = admin.streams.load_or_create(name=name, max_msgs=5, metadata={"owner": "me"})
    again = admin.streams.load_or_create(name=name, max_msgs=5, metadata={"owner": "me"})
    partly = admin.streams.load_or_create(name=name, max_msgs=5, given_only=True)
    assert first.created == again.created == partly.created
    with pytest.raises(JetStreamError) as caught:
        admin.streams.load_or_create(name=name, max_msgs=6, storage="memory")
    assert str(caught.value) == (
        f"stream {name} exists with another configuration (on the server -> asked for): max_msgs: "
        "5 -> 6; storage: file -> memory; metadata.owner: me -> nothing"
    )
    assert (
        admin.streams.load_or_create(name=name, max_msgs=6, any_config=True).config == first.config
    )
    assert admin.streams.load(name).config.max_msgs == 5
    assert (
        admin.streams.load_or_create(name=f"{name}B", max_msgs=6, any_config=True).config.max_msgs
        == 6
    )


def test_a_pedantic_request_is_refused_where_the_server_would_adjust_a_value(
    admin: JetStreamAdmin, name: str
) -> None:
    window = "pedantic mode: duplicate window cannot be bigger than max age"
    with pytest.raises(ApiError, match=f"create stream {name}: {window}"):
        admin.streams.create(name=name, max_age="1s", pedantic=True)
    assert not admin.streams.delete(name, missing_ok=True)
    fields: dict[str, Any] = {
        "max_age": "1s",
        "duplicate_window": "1s",
        "consumer_limits": {"max_ack_pending": 5},
    }
    made = admin.streams.create(name=name, pedantic=True, **fields)
    assert admin.streams.create(name, made, pedantic=True).created == made.created
    with pytest.raises(
        ApiError, match=f"update stream {name}: message scheduling .* roll-ups are disabled"
    ):
        admin.streams.update(name, allow_msg_schedules=True, pedantic=True)
    assert [change.field for change in admin.streams.update(name, max_msgs=5, pedantic=True)] == [
        "max_msgs"
    ]
    consumers, given = admin.consumers, {"ack_policy": "explicit"}
    with pytest.raises(
        ApiError, match=r"create consumer c of .*: pedantic mode: max_ack_pending must be set"
    ):
        consumers.create(name, "c", given, pedantic=True)
    assert (
        consumers.create(name, "c", given, max_ack_pending=5, pedantic=True).config.max_ack_pending
        == 5
    )
    waits = {"ack_wait": None, "backoff": ["2s", "3s"], "max_deliver": 3}
    with pytest.raises(
        ApiError, match=r"update consumer c of .*: pedantic mode: first backoff value"
    ):
        consumers.update(name, "c", waits, pedantic=True)
    assert {change.field for change in consumers.update(name, "c", waits)} >= {
        "backoff",
        "max_deliver",
    }


def test_templates(admin: JetStreamAdmin, name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({**DEFAULT_STREAM, "max_age": "30d", "metadata": {"team": "data"}}))
    own = admin.streams.create(template(file), name=f"{name}C", metadata={"team": "web"}).config
    assert (own.max_age.timedelta.days, own.own_metadata) == (30, {"team": "web"})
    file = tmp_path / "own.yaml"
    file.write_text(f"subjects: [{name}.>]\nmax_age: 30d  # for audits\nmax_bytes: 1g\n")
    config = admin.streams.create(template(file), name=name).config
    assert (str(config.max_age), str(config.max_bytes), config.subjects) == (
        "30d",
        "1GiB",
        (f"{name}.>",),
    )
    # A template leaves the window of duplicates to the server.
    assert (
        str(
            admin.streams.create(
                DEFAULT_STREAM, name=f"{name}D", max_age="30s"
            ).config.duplicate_window
        )
        == "30s"
    )
    for text in ("[]", "a: 1\n---\nb: 2\n"):
        file.write_text(text)
        with pytest.raises(OptionError, match=f"^template {file}: this is not one object"):
            template(file)
    with pytest.raises(
        OptionError, match=r"^template nothing\.json: the file cannot be read: No such file"
    ):
        template("nothing.json")


# -- load and list --


def test_load_and_subjects(admin: JetStreamAdmin, name: str, fill: Fill) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.>"])
    assert list(admin.streams.subjects(name)) == []
    fill(name, 7, subjects=3)
    assert list(admin.streams.subjects(name)) == [
        (f"{name}.0", 3),
        (f"{name}.1", 2),
        (f"{name}.2", 2),
    ]
    assert list(admin.streams.subjects(name, f"{name}.1")) == [(f"{name}.1", 2)]
    admin.messages.delete(name, 3)
    assert admin.streams.load(name).state.deleted == ()
    state = admin.streams.load(name, deleted=True).state
    assert (state.deleted, state.messages, state.last_seq) == ((3,), 6, 7)


class _CountsForLong:
    """STREAM.INFO of a server that does not reply to the first request, and counts for long."""

    def __init__(self) -> None:
        self.infos = 0
        self.counts = 0

    def __call__(self, request: dict[str, Any]) -> dict[str, Any] | None:
        info = stream_info({"name": "S"})
        if "subjects_filter" not in request:
            self.infos += 1
            return info if self.infos > 1 else None
        self.counts += 1
        time.sleep(0.5)  # many times as long as until a request is repeated
        counted = {**info["state"], "messages": 2, "subjects": {"s.a": 2}}
        return {**info, "state": counted, "total": 1, "offset": 0, "limit": 100_000}


def test_subjects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would count again for each copy of the request, before it replies to the next one."""
    set_timing(monkeypatch, ask_again=0.05)
    answer = _CountsForLong()
    with administered({"STREAM.INFO.S": answer}) as (_, admin):
        assert list(admin.streams.subjects("S")) == [("s.a", 2)]
        # The reply comes after those to all copies.
        admin.streams.load("S")
    assert answer.counts == 1
    # Until a stream has a leader there is no reply, so the first request is repeated.
    assert answer.infos > 1


def test_names_and_infos_by_subject(admin: JetStreamAdmin, name: str) -> None:
    for letter in "BA":
        admin.streams.create(name=f"{name}{letter}", subjects=[f"{name}.{letter}.*"])
    for subject, expected in [(f"{name}.>", "AB"), (f"{name}.A.1", "A"), (f"{name}.C.1", "")]:
        assert list(admin.streams.names(subject)) == [name + letter for letter in expected]
        assert [each.config.name for each in admin.streams.infos(subject)] == [
            name + letter for letter in expected
        ]
    everything = list(admin.streams.names())
    assert {f"{name}A", f"{name}B"} < set(everything)
    assert everything == [each.config.name for each in admin.streams.infos()] == sorted(everything)
    for wrong in ("", "a..b", "a.>.b"):
        with pytest.raises(OptionError, match="subject must be a subject"):
            list(admin.streams.names(wrong))


@pytest.mark.full
@pytest.mark.usefixtures("no_connection_left")
def test_lists_of_many_pages() -> None:
    """1,024 names are a page, and 256 streams or consumers; 100,000 subjects."""
    with (
        NatsServer(config="jetstream { limits { default_max_consumers: 2000 } }") as server,
        JetStreamAdmin(servers=server.url) as admin,
        Publisher(server.url) as publisher,
    ):
        assert list(admin.streams.names()) == []
        assert list(admin.streams.infos()) == []
        expected = [f"S{number:04}" for number in range(1100)]
        for name in expected:
            config = {
                "name": name,
                "storage": "memory",
                "subjects": [f"{name}.*"],
                "max_consumers": 2000,
            }
            publisher.api(f"STREAM.CREATE.{name}", config)
        assert list(admin.streams.names()) == expected
        assert [each.config.name for each in admin.streams.infos()] == expected
        # A page is asked for when it is needed.
        with Tap(server.url) as tap:
            assert list(itertools.islice(admin.streams.names(), 1000)) == expected[:1000]
            # One request; it is sent again if the answer takes a while.
            asked = {
                message.data for message in tap.heard() if message.subject == "$JS.API.STREAM.NAMES"
            }
        assert len(asked) == 1
        consumers = [f"c{number:04}" for number in range(1030)]
        for name in consumers:
            sent = {
                "stream_name": "S0000",
                "config": {"name": name, "mem_storage": True, "inactive_threshold": 10**12},
            }
            publisher.api(f"CONSUMER.CREATE.S0000.{name}", sent)
        assert list(admin.consumers.names("S0000")) == consumers
        assert [each.name for each in admin.consumers.infos("S0000")] == consumers
        frames = b"".join(Message(f"S0001.{number}").frame() for number in range(50_000))
        publisher.pour(frames, 1, Message("S0001.0"))
        frames = b"".join(Message(f"S0001.{number}").frame() for number in range(50_000, 100_010))
        publisher.pour(frames, 1, Message("S0001.1"))
        counts = dict(admin.streams.subjects("S0001"))
        assert len(counts) == 100_010
        assert sum(counts.values()) == 100_012
        assert counts["S0001.0"] == counts["S0001.1"] == 2


@pytest.mark.usefixtures("api")
def test_origins_and_their_lag(admin: JetStreamAdmin, name: str, publisher: Publisher) -> None:
    publisher.publish([Message("origin.a", b"1"), Message("origin.b", b"2")])
    admin.streams.create(name=f"{name}M", mirror={"name": ORIGIN})
    admin.streams.create(name=f"{name}S", sources=[{"name": "NEVER"}, {"name": ORIGIN}])
    assert admin.streams.origins(ORIGIN) == ()
    poll(
        lambda: admin.streams.load(f"{name}M").state.messages >= 2 or None,
        20,
        lambda: TimeoutError("no copy"),
    )
    (mirror,) = admin.streams.origins(f"{name}M")
    assert (mirror.name, mirror.lag) == (ORIGIN, 0)
    sources = admin.streams.origins(f"{name}S")
    assert [each.name for each in sources] == ["NEVER", ORIGIN]
    assert sources[0].active == -1


# -- update, copy and seal --


def test_plan_and_update(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.a"], max_age="1h", metadata={"owner": "me"})
    changes = {"max_msgs": 5, "max_age": "2h", "metadata": None}
    planned = admin.streams.plan(name, changes)
    assert [str(each) for each in planned] == [
        "max_msgs: -1 -> 5",
        "max_age: 1h -> 2h",
        "metadata.owner: me -> nothing",
    ]
    assert [each.risk for each in planned] == ["messages beyond it are deleted at once", "", ""]
    assert admin.streams.load(name).config.max_msgs == -1
    assert admin.streams.update(name, changes) == planned
    config = admin.streams.load(name).config
    assert (config.max_msgs, config.max_age, config.own_metadata) == (5, 7200 * 10**9, {})
    assert config.subjects == (f"{name}.a",)
    assert admin.streams.update(name, changes) == admin.streams.plan(name, **changes) == []
    # To a whole configuration.
    wanted = StreamConfig.parse({"name": name, "subjects": [f"{name}.a"], "max_age": "1h"}, "")
    assert [each.field for each in admin.streams.update(name, wanted)] == ["max_msgs", "max_age"]
    assert admin.streams.update(name, wanted) == []
    assert [each.field for each in admin.streams.update(name, wanted, max_msgs=7)] == ["max_msgs"]


def test_update_what_cannot_change(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name=name, deny_delete=True)
    with pytest.raises(JetStreamError) as caught:
        admin.streams.update(name, storage="memory", max_msgs=5, deny_delete=False)
    assert str(caught.value) == (
        f"cannot update stream {name}: storage: file -> memory (it can never change); "
        "deny_delete: true -> false (it cannot be taken back)"
    )
    assert admin.streams.load(name).config.max_msgs == -1
    with pytest.raises(ApiError, match=f"update stream {name}: subject .* overlaps with"):
        admin.streams.update(name, {"subjects": ["a.>", "a.b"]})


@pytest.mark.usefixtures("api")
def test_copy(admin: JetStreamAdmin, name: str, fill: Fill) -> None:
    given = {
        "subjects": [f"{name}.a.>"],
        "max_age": "1h",
        "metadata": {"owner": "me"},
        "deny_delete": True,
    }
    original = admin.streams.create(given, name=f"{name}A").config
    fill(f"{name}.a", 3)
    info = admin.streams.copy(f"{name}A", f"{name}B", subjects=[f"{name}.b.>"], max_msgs=5)
    assert info.state.messages == 0
    assert [each.field for each in differences(info.config, original)] == [
        "name",
        "subjects",
        "max_msgs",
    ]
    with pytest.raises(ApiError, match=f"create stream {name}C: subjects overlap"):
        admin.streams.copy(f"{name}A", f"{name}C")
    with pytest.raises(OptionError, match=f"stream {name}C: there is no field"):
        admin.streams.copy(f"{name}A", f"{name}C", subject="a")
    # Streams that copy another stream.
    origin = {"name": ORIGIN, "filter_subject": "origin.a"}
    for field, value in (("mirror", origin), ("sources", [origin])):
        copier = admin.streams.create(f"{name}{field}", {field: value}).config
        assert getattr(
            admin.streams.copy(f"{name}{field}", f"{name}{field}2").config, field
        ) == getattr(copier, field)
        assert getattr(copier, field)


def test_seal_and_copy_a_sealed_stream(admin: JetStreamAdmin, name: str, fill: Fill) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.*"], max_age="1h")
    fill(name, 3)
    assert "sealed" in [each.field for each in admin.streams.seal(name)]
    assert admin.streams.load(name).config.sealed
    assert admin.streams.seal(name) == []
    for request in (lambda: admin.streams.purge(name), lambda: admin.messages.delete(name, 1)):
        with pytest.raises(ApiError, match=r"sealed|not permitted"):
            request()
    assert admin.messages.get(name, 1).seq == 1
    copied = admin.streams.copy(name, f"{name}B", subjects=[f"{name}.b.*"]).config
    assert (copied.sealed, copied.deny_delete, copied.deny_purge) == (False, True, True)


# -- purge and delete --


@pytest.mark.parametrize(
    ("which", "purged", "left"),
    [
        ({}, 10, []),
        ({"subject": "*.1"}, 5, [1, 3, 5, 7, 9]),
        ({"sequence": 4}, 3, [4, 5, 6, 7, 8, 9, 10]),
        ({"keep": 2}, 8, [9, 10]),
        ({"keep": 0}, 10, []),
        ({"subject": "*.0", "sequence": 6}, 3, [2, 4, 6, 7, 8, 9, 10]),
        ({"subject": "*.0", "keep": 1}, 4, [2, 4, 6, 8, 9, 10]),
        ({"sequence": 0}, 0, list(range(1, 11))),
        ({"sequence": 1}, 0, list(range(1, 11))),
        ({"sequence": 2**62}, 10, []),
        ({"subject": "*.0", "sequence": 2**62}, 5, [2, 4, 6, 8, 10]),
        ({"subject": "nothing.>"}, 0, list(range(1, 11))),
    ],
)
def test_purge(
    which: dict[str, Any],
    purged: int,
    left: list[int],
    admin: JetStreamAdmin,
    name: str,
    fill: Fill,
) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.*"], storage="memory")
    fill(name, 10, subjects=2)
    assert admin.streams.purge(name, **which) == purged
    assert [each.seq for each in admin.messages.read(name)] == left
    assert admin.streams.load(name).state.last_seq == 10


def test_purge_what_cannot_be_and_delete(admin: JetStreamAdmin, name: str, fill: Fill) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.*"], deny_purge=True)
    fill(name, 3)
    with pytest.raises(OptionError, match="seq and keep cannot be set together"):
        admin.streams.purge(name, sequence=3, keep=1)
    for wrong, said in [
        ({"subject": ""}, "subject must be"),
        ({"keep": -1}, "keep must"),
        ({"sequence": -1}, "seq mu"),
    ]:
        with pytest.raises(OptionError, match=said):
            admin.streams.purge(name, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=f"cannot purge stream {name}: .*not permitted"):
        admin.streams.purge(name)
    assert admin.streams.load(name).state.messages == 3
    assert admin.streams.delete(name) is True
    assert name not in admin.streams.names()
    assert admin.streams.delete(name, missing_ok=True) is False


# -- servers and replicas --


def test_the_nearest_stream_is_named(admin: JetStreamAdmin, name: str) -> None:
    admin.streams.create(name)
    for use in (admin.streams.load, admin.streams.purge, admin.streams.delete):
        with pytest.raises(
            StreamNotFound, match=f"stream {name}x: stream not found .*; did you mean {name}$"
        ):
            use(f"{name}x")


def test_without_a_cluster_there_is_one_replica(
    admin: JetStreamAdmin, name: str, publisher: Publisher
) -> None:
    admin.streams.create(name=name)
    (only,) = admin.streams.replicas(name)
    assert (only.server, only.leader, only.current, only.lag) == (
        publisher.info["server_name"],
        True,
        True,
        0,
    )
    refused: list[Callable[[], object]] = [
        lambda: admin.streams.step_down(name),
        lambda: admin.streams.remove_peer(name, "other"),
    ]
    for request in refused:
        with pytest.raises(
            ApiError, match=f"stream {name}.*: JetStream clustering support required"
        ):
            request()
    with pytest.raises(OptionError, match="server must not be empty"):
        admin.streams.remove_peer(name, "")


def test_load_or_create_names_differences_of_a_stream_that_another_client_creates(
    admin: JetStreamAdmin, name: str, api: Api
) -> None:
    """The other client does so between the lookup and the creation of `load_or_create`."""
    look = admin.streams.load

    def quick(stream: str, **options: Any) -> Any:
        admin.streams.load = look  # type: ignore[method-assign]
        api(f"STREAM.CREATE.{stream}", {"name": stream, "max_msgs": 5})
        raise StreamNotFound("not yet", code=404, err_code=10059, description="")

    admin.streams.load = quick  # type: ignore[assignment]
    with pytest.raises(
        JetStreamError,
        match=f"stream {name} exists with another configuration .*: max_msgs: 5 -> 6",
    ):
        admin.streams.load_or_create(name=name, max_msgs=6)
