"""Options that are made from the configuration of a stream: each field has one, and what is written there arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_jetstream.admin import StreamConfig, differences, rendered
from spark_jetstream.cli.fields import flag
from spark_jetstream.cli.main import app
from spark_jetstream.testing import NatsServer
from tests.admin.configs import ORIGIN, STREAMS
from tests.cli.conftest import Command
from tests.support.publish import Publisher


@pytest.fixture(scope="module", autouse=True)
def origin(publisher: Publisher) -> Iterator[None]:
    """The stream that mirrors and sources copy."""
    publisher.api(f"STREAM.CREATE.{ORIGIN}", {"name": ORIGIN, "subjects": ["origin.>"], "allow_direct": True})
    yield
    publisher.api(f"STREAM.DELETE.{ORIGIN}")


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A configuration without fields, so that no template adds any."""
    file = tmp_path / "nothing.json"
    file.write_text("{}")
    return file


def written(config: dict[str, Any]) -> Iterator[str]:
    """The options for a configuration."""
    for name, value in config.items():
        option = flag(name)
        if isinstance(value, bool):
            opposite = flag(name.removeprefix("no_")) if name.startswith("no_") else f"--no-{option[2:]}"
            yield option if value else opposite
        elif name == "metadata":
            for key, each in value.items():
                yield from (option, f"{key}={each}")
        elif value and isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield from (option, ",".join(value))
        else:
            yield from (option, json.dumps(value) if isinstance(value, (dict, list)) else str(value))


def test_each_field_is_an_option_with_its_docstring(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    said = " ".join(run("stream", "edit", "--help").out.split())
    for name, info in StreamConfig.model_fields.items():
        if name != "name":
            first = (info.description or "").partition("``")[0].partition(", in nanoseconds")[0]
            assert flag(name) in said
            assert " ".join(first.split()) in said, name
    assert "--max-age DURATION How long messages stay; 0 for ever." in said
    assert "--retention limits|interest|workqueue" in said
    assert "Needs --discard new and --max-msgs-per-subject." in said


@pytest.mark.parametrize("kind", STREAMS)
def test_every_kind_of_stream_is_made_by_options(kind: str, do: Command, name: str, nothing: Path) -> None:
    subjects = {} if "mirror" in STREAMS[kind] else {"subjects": [f"{name}.>"]}
    config = {**subjects, **STREAMS[kind], "name": name}
    # As people write it: durations with their units.
    said = rendered(StreamConfig.parse(config, kind))
    options = written({field: value for field, value in said.items() if field != "name"})
    made = do("stream", "add", name, *options, "--config", nothing, "--json").json
    assert differences(StreamConfig.parse(config, ""), StreamConfig.from_server(made["config"])) == []


def test_what_may_be_written_in_short(do: Command, name: str, nothing: Path) -> None:
    given = [
        *("--subjects", f"{name}.a, {name}.b.*", "--subjects", f'["{name}.c,d"]', "--no-ack"),
        *("--sources", "NEAR,FAR", "--sources", "name=HUB,filter_subject=h.>,external.api=$JS.hub.API"),
        *("--subject-transform", f"src={name}.b.*,dest={name}.b.{{{{partition(8,1)}}}}"),
        *("--republish", f"dest={name}again.>, headers_only=true", "--placement", "cluster=north,tags=ssd,eu"),
        *("--metadata", "a=b,c", "--metadata", "d=e=f", "--metadata", '{"g": "h"}', "--metadata", "empty="),
        *("--consumer-limits", "max_ack_pending=5,inactive_threshold=1m", "--max-bytes", "1g", "--max-msgs", "-1"),
    ]
    made = do("stream", "add", name, *given, "--config", nothing, "--json").json["config"]
    expected = {
        "name": name,
        "subjects": [f"{name}.a", f"{name}.b.*", f"{name}.c,d"],
        "no_ack": True,
        "sources": [
            {"name": "NEAR"},
            {"name": "FAR"},
            {"name": "HUB", "filter_subject": "h.>", "external": {"api": "$JS.hub.API"}},
        ],
        "subject_transform": {"src": f"{name}.b.*", "dest": f"{name}.b.{{{{partition(8,1)}}}}"},
        "republish": {"dest": f"{name}again.>", "headers_only": True},
        "placement": {"cluster": "north", "tags": ["ssd", "eu"]},
        "metadata": {"a": "b,c", "d": "e=f", "g": "h", "empty": ""},
        "consumer_limits": {"max_ack_pending": 5, "inactive_threshold": "1m"},
        "max_bytes": "1g",
    }
    assert differences(StreamConfig.parse(expected, ""), StreamConfig.from_server(made)) == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stream add S --retention w", ["workqueue"]),
        ("stream add S --template w", ["work-queue"]),
        ("stream edit S --unset max-a", ["max-age"]),
        ("stream edit S --discard-n", ["--discard-new-per-subject"]),
        ("-s {url} stream info KEP", ["KEPT"]),
        ("stream info -s {url} KEP", ["KEPT"]),
    ],
)
def test_completion(line: str, offered: list[str], nats_server: NatsServer) -> None:
    words = ["spark-jetstream", *line.format(url=nats_server.url).split()]
    shell = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    asked = {"_SPARK_JETSTREAM_COMPLETE": "complete_bash", **shell}
    assert CliRunner().invoke(app, prog_name=words[0], env=asked).output.split() == offered


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mirror", "nam=X"], "--mirror must be JSON, or field=value,... with the fields name, opt_start_seq"),
        (["--placement", "north"], "--placement must be JSON, or field=value,... with the fields cluster, tags"),
        (["--mirror", '{"name"'], "--mirror: this is not valid JSON"),
        (["--mirror", '{"nam": "X"}'], 'in mirror, there is no field "nam" (did you mean name?)'),
        (["--mirror", "name=A,name=B"], "--mirror: name is there twice"),
        (["--subjects", ""], '--subjects: "" has an empty item'),
        (["--subjects", "a,,b"], '--subjects: "a,,b" has an empty item'),
        (["--metadata", "owner"], '--metadata: "owner" is no name=value'),
        (["--metadata", "a=1", "--metadata", "a=2"], "--metadata: a name is there twice"),
        (["--max-age", "a while"], "max_age must be a duration"),
        (["--retention", "work"], 'retention must be limits, interest or workqueue, not "work"'),
        (["--subjects", "a..b"], "subjects.0 must be a subject"),
        (["--num-replicas", "many"], "num_replicas must be a whole number from 0 to 5"),
        (["--republish", "dest=b.>,headers_only=yes"], "republish.headers_only must be true or false"),
        (["--discard-new-per-subject"], "discard_new_per_subject needs discard: new"),
        (["--maxage", "1h"], "--max-age"),
    ],
)
def test_what_cannot_be_is_wrong_usage(options: list[str], said: str, run: Command, name: str) -> None:
    ran = run("stream", "add", name, *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert run("stream", "info", name).code == 1
