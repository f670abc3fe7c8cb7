"""Plans: what is found to do, that it is done, that nothing is left to do then, and how files
describe it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, StreamConfig, template
from spark_jetstream.admin.api import Api as AdminApi
from spark_jetstream.admin.descriptions import Wanted, read_wanted, yaml_text
from spark_jetstream.admin.plan import PlanOutdated, carry_out
from spark_jetstream.errors import ApiError, JetStreamError, OptionError
from tests.admin.conftest import Api, Make, consumer_config, stream_config
from tests.support.publish import Message, Publisher
from tests.support.watched import WatchedConnection

New = Callable[[], str]


def test_a_plan_refuses_a_change_that_conflicts_with_other_settings(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    name = make_stream({"duplicate_window": 120 * 10**9})
    plan = admin.plan({"name": name, "max_age": "10s"}, given_only=True)
    [step] = plan.refused
    assert step.reasons == ("duplicate_window (2m) is longer than max_age (10s)",)
    assert step.lines() == [
        f"! cannot update stream {name}",
        "    max_age: 0s -> 10s (risk: messages beyond it are deleted at once)",
        "    duplicate_window (2m) is longer than max_age (10s)",
    ]
    assert plan.to_json()["steps"][0]["reasons"] == list(step.reasons)
    with pytest.raises(
        JetStreamError, match=r"nothing was changed: .* cannot be updated: max_age.*longer than"
    ):
        admin.apply(plan)


def test_filters_that_match_nothing(
    admin: JetStreamAdmin, make_stream: Make, new_stream: New, publisher: Publisher
) -> None:
    there, new = make_stream({"subjects": ["filters.>"]}), new_stream()
    publisher.publish([Message("filters.old")])
    old = {"durable_name": "old", "filter_subject": "filters.old"}

    def described(name: str, subjects: str, *filters: str) -> dict[str, Any]:
        consumers = [{"durable_name": "c", "filter_subject": filter_} for filter_ in filters]
        return {
            "name": name,
            "subjects": [subjects],
            "consumers": [old, *consumers] if name == there else consumers,
        }

    # A filter must match subjects that the stream has or will store; a filter that the consumer
    # already has may stay.
    moved = described(there, "moved.>", "moved.*.eu")
    admin.apply(admin.plan(moved, described(new, f"{new}.*", f"{new}.a")))
    admin.messages.erase(there, 1)
    assert not admin.plan(moved).changes
    for name, subjects, cannot in (
        (there, "moved.>", "update"),
        (new, f"{new}.*", "update"),
        (f"{new}X", "x", "create"),
    ):
        wanted = described(name, subjects, "filters.eu")
        plan = admin.plan(wanted)
        assert [(step.stream, step.consumer) for step in plan.refused] == [(name, "c")]
        assert plan.refused[0].lines()[0] == f"! cannot {cannot} consumer c of stream {name}"
        said = (
            rf'stream {name} cannot be {cannot}d: .*"filters.eu" matches nothing .* '
            rf"\({re.escape(subjects)}\)"
        )
        with pytest.raises(JetStreamError, match=said):
            admin.apply(plan)
        assert not admin.plan(wanted, any_filter=True).refused
    assert not admin.plan({"name": f"{new}Y", "mirror": there, "consumers": [old]}).refused


def test_a_plan_reads_as_text_and_as_json(
    admin: JetStreamAdmin, api: Api, make_stream: Make, new_stream: New
) -> None:
    new, there, sure, stuck = new_stream(), make_stream({}), make_stream({}), make_stream({})
    plan = admin.plan(
        {
            "name": new,
            "subjects": ["plan.new"],
            "max_age": "1h30m",
            "consumers": [{"durable_name": "billing", "ack_policy": "explicit"}],
        },
        {"name": there, "subjects": [f"{there.lower()}.>"], "max_bytes": "1g", "deny_delete": True},
        {"name": sure, "subjects": [f"{sure.lower()}.>"]},
        {"name": stuck, "subjects": [f"{stuck.lower()}.>"], "storage": "memory"},
    )
    assert plan.lines() == [
        f"+ create stream {new}",
        '    subjects: ["plan.new"]',
        "    max_age: 1h30m",
        f"+ create consumer billing of stream {new}",
        "    ack_policy: explicit",
        f"~ update stream {there}",
        "    max_bytes: -1 -> 1GiB (risk: messages beyond it are deleted at once)",
        "    deny_delete: false -> true (risk: it cannot be taken back)",
        f"= unchanged stream {sure}",
        f"! cannot update stream {stuck}",
        "    storage: file -> memory (refused: it can never change)",
    ]
    said = json.loads(json.dumps(plan.to_json()))
    assert said["changes"] is True
    assert said["steps"][0] == {
        "stream": new,
        "action": "create",
        "config": {"name": new, "subjects": ["plan.new"], "max_age": 5400 * 10**9},
        "differences": [],
    }
    assert [step.get("consumer") for step in said["steps"]] == [None, "billing", None, None, None]
    assert said["steps"][2]["differences"][0] == {
        "field": "max_bytes",
        "actual": -1,
        "wanted": 2**30,
        "risk": "messages beyond it are deleted at once",
    }
    assert said["steps"][4]["differences"][0]["refused"] == "it can never change"
    # One step that is refused, and nothing at all is done.
    with pytest.raises(
        JetStreamError, match=f"nothing was changed: stream {stuck} cannot be updated: storage"
    ):
        admin.apply(plan)
    assert new not in api("STREAM.NAMES")["streams"]
    assert stream_config(api, there).max_bytes == -1


# -- other clients change the stream between plan and apply --


def test_another_client_creates_it_first(
    admin: JetStreamAdmin, api: Api, make_stream: Make, new_stream: New
) -> None:
    name = new_stream()
    described = {"name": name, "subjects": ["plan.>"], "consumers": [{"durable_name": "c"}]}
    plan = admin.plan(described)
    api(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["plan.>"]})
    api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": {"durable_name": "c"}})
    admin.apply(plan)
    assert not admin.plan(described).changes
    # Another consumer of that name.
    plan = admin.plan({**described, "consumers": [{"durable_name": "d", "ack_policy": "all"}]})
    api(
        f"CONSUMER.CREATE.{name}.d",
        {"stream_name": name, "config": {"durable_name": "d", "ack_policy": "none"}},
    )
    with pytest.raises(
        PlanOutdated, match=r"consumer d of stream .* has changed .*ack_policy: none -> all"
    ):
        admin.apply(plan)
    assert consumer_config(api, f"{name}.d").ack_policy == "none"


def test_another_client_updates_it(admin: JetStreamAdmin, api: Api, make_stream: Make) -> None:
    name = make_stream({})
    before = stream_config(api, name)
    plan = admin.plan(before.changed(max_msgs=5).body())
    api(f"STREAM.UPDATE.{name}", before.changed(max_msgs=9).body())
    with pytest.raises(PlanOutdated, match=r"now there is max_msgs: 9 -> 5"):
        admin.apply(plan)
    # As it is described, and as it was when the plan was made.
    for there in (before.changed(max_msgs=5), before):
        api(f"STREAM.UPDATE.{name}", there.body())
        admin.apply(plan)
    assert stream_config(api, name).max_msgs == 5


def test_another_client_deletes_it(admin: JetStreamAdmin, api: Api, new_stream: New) -> None:
    name = new_stream()
    api(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["plan.>"]})
    plan = admin.plan({"name": name, "subjects": ["plan.*"]})

    def delete(subject: str) -> None:
        if "UPDATE" in subject:
            api(f"STREAM.DELETE.{name}")

    watched = WatchedConnection(admin.options)
    watched.before = delete

    with pytest.raises(
        PlanOutdated, match=f"^stream {name} was deleted before it could be updated$"
    ):
        carry_out(AdminApi(admin.options, watched(0)), plan)
    with pytest.raises(PlanOutdated, match="it was deleted"):
        admin.apply(plan)


def test_applying_a_plan_fails_if_the_server_ignores_a_setting(
    admin: JetStreamAdmin, new_stream: New
) -> None:
    """The server ignores `max_msgs`, as an old server ignores a field that it does not know."""
    name = new_stream()
    plan = admin.plan({"name": name, "subjects": ["plan.>"], "max_msgs": 5})

    def forget(subject: str, body: bytes) -> bytes:
        return json.dumps(
            {key: value for key, value in json.loads(body).items() if key != "max_msgs"}
        ).encode()

    watched = WatchedConnection(admin.options)
    watched.change = forget
    with pytest.raises(
        JetStreamError, match=f"stream {name} was created, but the server .*: max_msgs: -1 -> 5"
    ):
        carry_out(AdminApi(admin.options, watched(0)), plan)


# -- descriptions in files --

YAML = """\
# Two streams, in two documents.
name: ORDERS
subjects: [orders.>]
max_age: 7d
consumers:
  - &billing
    durable_name: billing
    ack_policy: explicit
    ack_wait: 30s
  - <<: *billing
    durable_name: shipping
    deliver_policy: by_start_time
    opt_start_time: 2026-03-01T12:00:00.123456789Z
---
- name: COPY
  sources: [{name: ORDERS}]
  max_bytes: 1g
---
"""


def test_yaml_and_json_describe_the_same(tmp_path: Path) -> None:
    (tmp_path / "streams.yaml").write_text(YAML)
    found = read_wanted(str(tmp_path / "streams.yaml"))
    assert [each.stream.name for each in found] == ["ORDERS", "COPY"]
    assert [each.durable_name for each in found[0].consumers] == ["billing", "shipping"]
    assert [str(each.ack_wait) for each in found[0].consumers] == ["30s", "30s"]
    assert found[0].consumers[1].opt_start_time == "2026-03-01T12:00:00.123456789Z"
    described = [
        {**each.stream.body(), "consumers": [consumer.body() for consumer in each.consumers]}
        for each in found
    ]
    (tmp_path / "list.json").write_text(json.dumps(described))
    (tmp_path / "named.json").write_text(
        "\ufeff" + json.dumps({each.pop("name"): each for each in described})
    )
    infos = [
        {"config": each, "created": "", "consumers": each.pop("consumers")} for each in described
    ]
    (tmp_path / "infos.json").write_text(
        json.dumps(dict(zip(("ORDERS", "COPY"), infos, strict=True)))
    )
    (tmp_path / "more.json").write_text('{"name": "MORE"}')
    more = read_wanted(str(tmp_path / "list.json"), str(tmp_path / "more.json"))
    assert more == (*found, Wanted(StreamConfig(name="MORE")))
    with pytest.raises(
        OptionError, match=r"list\.json: stream ORDERS is described in .*streams\.yaml already$"
    ):
        read_wanted(str(tmp_path / "streams.yaml"), str(tmp_path / "list.json"))
    with pytest.raises(
        OptionError, match=r"^description 2: stream COPY is described in .*list\.json already$"
    ):
        read_wanted(str(tmp_path / "list.json"), {"name": "COPY"})
    for name in ("list.json", "named.json", "infos.json"):
        assert read_wanted(str(tmp_path / name)) == found


S = {"name": "S"}

WRONG_DOCUMENTS: list[tuple[Any, str]] = [
    (None, "no stream is described"),
    ([], "no stream is described"),
    ({}, "a stream is described without its name"),
    ("S", "a stream is described by an object with its fields, not by text"),
    ([None], "a stream is described by an object with its fields, not by nothing"),
    (7, "not by a number"),
    ({**S, "max_aeg": "1h"}, 'stream "S": there is no field "max_aeg" (did you mean max_age?)'),
    ({"name": "a.b"}, 'stream "a.b": name'),
    ([S, S], "stream S is described twice"),
    ({"S": {}, "T": {"name": "S"}}, 'stream "T" has the name "S" in its fields'),
    ({"S": {"nmae": "S"}}, 'there is no field "nmae"'),
    ({**S, "consumers": {"a": {}}}, "stream S: consumers must be a list, not an object"),
    ({**S, "consumers": ["a"]}, "stream S, consumer 1: a consumer is described by an object"),
    (
        {**S, "consumers": [{"durable_name": "a", "ack": "none"}]},
        'stream S, consumer 1: there is no field "ack"',
    ),
    ({**S, "consumers": [{"name": "a"}]}, "stream S, consumer 1: it needs a durable_name"),
    (
        {**S, "consumers": [{"inactive_threshold": "1h"}]},
        "stream S, consumer 1: it needs a durable_name",
    ),
    (
        {**S, "consumers": [{"durable_name": "a"}, {"name": "a", "durable_name": "a"}]},
        "consumer 2: consumer a is",
    ),
]
WRONG_FILES: list[tuple[str, str | bytes | None, str]] = [
    *(("s.json", json.dumps(document), words) for document, words in WRONG_DOCUMENTS),
    ("s.yaml", "", "no stream is described"),
    ("s.yaml", "name: S\n---\nname: S\n", "stream S is described twice"),
    ("s.json", '{"name": "S", "name": "T"}', '"name" appears twice in one object'),
    ("s.json", '{"name": "S",}', "not valid JSON: "),
    ("s.json", "name: S", "not valid JSON: expecting value in line 1, column 1"),
    ("s.json", "[" * 100_000, "not valid JSON: it is nested too deeply"),
    (
        "s.json",
        '{"name": ' + "1" * 5000 + "}",
        "not valid JSON: it holds a number that is too long",
    ),
    ("s.yaml", "name: S\nmax_msgs: 1\nname: T\n", '"name" appears twice, again in line 3'),
    (
        "s.yml",
        "name: S\nplacement: {tags: [a], tags: [b]}\n",
        '"tags" appears twice, again in line 2',
    ),
    ("s.yaml", "name: [S\n", "not valid YAML: "),
    (
        "s.yaml",
        "name: !!python/object:os.system S\n",
        "not valid YAML: could not determine a constructor for the tag",
    ),
    ("s.yaml", "name: *nobody\n", "not valid YAML: found undefined alias"),
    ("s.yaml", "[" * 700, "not valid YAML: "),
    ("latin.yaml", b"description: \xe4\n", "the file is not text (UTF-8)"),
    ("none.json", None, "the file cannot be read: No such file"),
]


@pytest.mark.parametrize(("name", "text", "words"), WRONG_FILES, ids=lambda value: str(value)[:60])
def test_a_wrong_description_is_an_error_that_names_the_file(
    name: str, text: str | bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(OptionError) as caught:
        read_wanted(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


# -- plans and descriptions through JetStreamAdmin --


@pytest.fixture
def names(new_stream: New) -> tuple[str, str]:
    """Two names of streams that do not exist; what has them is gone after the test."""
    return new_stream(), new_stream()


def test_a_plan_that_is_half_done_says_so(admin: JetStreamAdmin, names: tuple[str, ...]) -> None:
    plan = admin.plan(*({"name": name, "subjects": ["half.planned"]} for name in names))
    with pytest.raises(
        ApiError,
        match=f"{names[1]}: .*; this was done before, and stays: create stream {names[0]}$",
    ):
        admin.apply(plan)
    assert names[0] in admin.streams.names()


def test_describe_returns_the_settings_that_differ_from_the_defaults(
    admin: JetStreamAdmin, names: tuple[str, ...]
) -> None:
    admin.streams.create(
        name=names[0], subjects=["planned.>"], max_age="1h30m", max_bytes="1g", metadata={"a": "b"}
    )
    admin.consumers.create(names[0], durable_name="c", ack_policy="explicit", backoff=["1s", "1m"])
    assert admin.describe(names[0]) == {
        "name": names[0],
        "subjects": ["planned.>"],
        "max_bytes": "1GiB",
        "max_age": "1h30m",
        "duplicate_window": "2m",
        "metadata": {"a": "b"},
        "consumers": [
            {
                "durable_name": "c",
                "ack_policy": "explicit",
                "ack_wait": "1s",
                "backoff": ["1s", "1m"],
                "max_waiting": 512,
                "max_ack_pending": 1000,
            }
        ],
    }


def test_yaml_needs_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "own.yaml").write_text("max_age: 1h\n")
    extra = r"YAML needs PyYAML: pip install 'spark-jetstream\[yaml\]'$"
    with pytest.raises(OptionError, match=rf"^template {tmp_path}/own\.yaml: reading {extra}"):
        template(tmp_path / "own.yaml")
    with pytest.raises(OptionError, match=f"^writing {extra}"):
        yaml_text({"name": "A"})
