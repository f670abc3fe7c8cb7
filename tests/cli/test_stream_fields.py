"""Options that are made from the configuration of a stream: each field has one, and what is written there arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jetstream.admin import StreamConfig, differences, rendered
from spark_jetstream.cli.fields import flag
from tests.admin.configs import STREAMS
from tests.cli.conftest import Command, written

pytestmark = pytest.mark.usefixtures("api")  # it makes what mirrors and sources copy


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A configuration without fields, so that no template adds any."""
    (tmp_path / "nothing.json").write_text("{}")
    return tmp_path / "nothing.json"


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
