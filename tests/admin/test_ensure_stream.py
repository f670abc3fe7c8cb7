"""Option ensureStream: streams that are made, compared, updated or left before they are read or
written.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_jetstream.admin.ensure import ENSURE_TIMES, Ensure, EnsureTimes, ensure_streams
from spark_jetstream.client.pool import connect
from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    SchemaError,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from tests.support.calls import data_source
from tests.support.publish import Publisher
from tests.support.queries import available_now, refusal, streaming
from tests.support.streams import MakeStream
from tests.support.watched import WatchedConnection

COLUMNS = StructType([StructField("subject", StringType()), StructField("data", BinaryType())])
UPDATE = {"ensureStreamOnConflict": "update"}
IGNORE = {"ensureStreamOnConflict": "ignore"}

Source = Callable[..., JetStreamDataSource]
New = Callable[[], str]
Ensured = Callable[..., list[str]]
Log = pytest.LogCaptureFixture


@pytest.fixture
def source(nats_server: NatsServer) -> Source:
    """A function that makes the data source as Spark does."""

    def make(ensured: object, /, **options: object) -> JetStreamDataSource:
        text = ensured if isinstance(ensured, str) else json.dumps(ensured)
        return data_source({"servers": nats_server.url, "ensureStream": text, **options})

    return make


def config(publisher: Publisher, name: str) -> Any:
    return publisher.api(f"STREAM.INFO.{name}")["config"]


def names(publisher: Publisher) -> Any:
    return publisher.api("STREAM.NAMES")["streams"]


#: The first calls of Spark on the driver.
USES: dict[str, Callable[[JetStreamDataSource, StructType], object]] = {
    "batch": lambda found, columns: found.reader(columns).partitions(),
    "stream": lambda found, columns: found.streamReader(columns).initialOffset(),
    "write": lambda found, columns: found.writer(columns, False),
    "writeStream": lambda found, columns: found.streamWriter(columns, False),
}

# -- creating, comparing and updating a stream --


@pytest.mark.parametrize("side", USES)
def test_a_missing_stream_is_made_and_stays(
    side: str, source: Source, new_stream: New, publisher: Publisher
) -> None:
    name = new_stream()
    described = {"subjects": [f"{name}.>"], "max_age": "1h", "storage": "memory"}
    found = source(described, stream=name)
    USES[side](found, COLUMNS)
    made = config(publisher, name)
    assert (made["subjects"], made["max_age"], made["storage"]) == (
        [f"{name}.>"],
        3600 * 10**9,
        "memory",
    )
    created = publisher.api(f"STREAM.INFO.{name}")["created"]
    USES[side](found, COLUMNS)
    assert publisher.api(f"STREAM.INFO.{name}")["created"] == created
    assert config(publisher, name) == made


def test_a_differing_stream_is_an_error_that_lists_the_differences_or_updated(
    source: Source, stream: MakeStream, publisher: Publisher, caplog: Log
) -> None:
    s = stream(max_age=7200 * 10**9, max_msgs=100, metadata={"owner": "me"})
    s.fill(3)
    before = config(publisher, s.name)
    described = {"max_age": "1h", "metadata": {"team": "us"}, "no_ack": False}
    with pytest.raises(OptionError) as caught:
        source(described, stream=s.name).streamWriter(COLUMNS, False)
    assert caught.value.option == "ensureStream"
    assert str(caught.value) == (
        f"stream {s.name} is not as option ensureStream describes it: max_age is 2h, not 1h, "
        "metadata.team is nothing, not us; change the description, or set ensureStreamOnConflict "
        "to update or ignore (with update: max_age: messages beyond it are deleted at once)"
    )
    assert config(publisher, s.name) == before
    source(described, stream=s.name, **UPDATE).streamWriter(COLUMNS, False)
    after = config(publisher, s.name)
    assert after.pop("metadata") == {**before.pop("metadata"), "team": "us"}
    assert after == {**before, "max_age": 3600 * 10**9}
    assert publisher.api(f"STREAM.INFO.{s.name}")["state"]["messages"] == 3
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert (
        f"option ensureStream has updated stream {s.name}: max_age: 2h -> 1h (risk: "
        in " ".join(warned)
    )


def test_a_stream_that_cannot_be_changed_is_an_error_or_used_as_it_is(
    source: Source, stream: MakeStream, new_stream: New, publisher: Publisher, caplog: Log
) -> None:
    s, name = stream(), new_stream()
    before = config(publisher, s.name)
    described = {
        s.name: {"max_age": "1h", "storage": "memory"},
        name: {"subjects": ["ensured.more"]},
    }
    conflicts: list[tuple[dict[str, str], str]] = [
        ({}, r"\(storage: it can never change\)"),
        (UPDATE, r"storage: file -> memory \(refused: it can never change\)"),
    ]
    for conflict, words in conflicts:
        with pytest.raises(
            OptionError, match=rf"stream {s.name} .*{words}.* set ensureStreamOnConflict to ignore$"
        ):
            source(described, stream=f"{s.name},{name}", **conflict).reader(COLUMNS)
    assert name not in names(publisher)
    source({s.name: described[s.name]}, stream=s.name, **IGNORE).streamWriter(COLUMNS, False)
    assert (
        f"stream {s.name} is not as option ensureStream describes it, and is left as it is: "
        "max_age is 0s, not 1h, "
        "storage is file, not memory" in caplog.text
    )
    # One that is missing is made.
    source(described, stream=f"{s.name},{name}", **IGNORE).reader(COLUMNS)
    assert config(publisher, s.name) == before
    assert config(publisher, name)["subjects"] == ["ensured.more"]


# -- selecting the streams --


def test_several_streams_as_a_list_and_by_name(
    source: Source, new_stream: New, publisher: Publisher, stream: MakeStream
) -> None:
    one, two, there = new_stream(), new_stream(), stream()
    both = f"{one},{two},{there.name}"
    source(
        [{"name": one, "subjects": ["ensured.1"]}, {"name": two, "subjects": ["ensured.2"]}],
        stream=both,
    ).reader(COLUMNS)
    assert config(publisher, two)["subjects"] == ["ensured.2"]
    again = source(
        {one: {"subjects": ["ensured.1"]}, two: {"subjects": ["ensured.3"]}}, stream=both
    )
    with pytest.raises(OptionError, match=f"^stream {two} is not as"):
        again.reader(COLUMNS)
    name = new_stream()
    # The error of a request that the server refuses names the option.
    with pytest.raises(
        ApiError, match=rf"cannot create stream {name} \(option ensureStream\): subjects overlap"
    ):
        source({"subjects": ["ensured.1"]}, stream=name).reader(COLUMNS)
    # A sink without a stream says which.
    source({"name": name, "subjects": ["ensured.sink"]}, subject="ensured.sink").writer(
        COLUMNS, False
    )
    assert config(publisher, name)["subjects"] == ["ensured.sink"]
    with pytest.raises(
        OptionError, match=r"^option ensureStream: a stream is described without its name$"
    ):
        source({"subjects": ["ensured.sink"]}).writer(COLUMNS, False)


def test_a_file_describes_streams(
    source: Source, nats_server: NatsServer, new_stream: New, publisher: Publisher, tmp_path: Path
) -> None:
    name = new_stream()
    (tmp_path / "streams.json").write_text(json.dumps({"subjects": [f"{name}.>"]}))
    (tmp_path / "streams.yml").write_text(f"name: {name}\nsubjects: ['{name}.>']\nmax_age: 7d\n")
    source(str(tmp_path / "streams.json"), stream=name).reader(COLUMNS)
    assert config(publisher, name)["max_age"] == 0
    source(str(tmp_path / "streams.yml"), stream=name, **UPDATE).reader(COLUMNS)
    assert config(publisher, name)["max_age"] == 7 * 86400 * 10**9
    # A file that was sent along is somewhere else on each node.
    options = ConnectionOptions.from_spark({"servers": nats_server.url})
    ensure = Ensure(options, "streams.json", "update", (name,))
    ensure_streams(
        ensure,
        lambda patience: connect(options, patience=patience),
        lambda path: str(tmp_path / path),
    )
    assert config(publisher, name)["subjects"] == [f"{name}.>"]


WRONG: list[tuple[Any, dict[str, str], str]] = [
    ('{"subjects": ["a"]', {"stream": "S"}, "option ensureStream: this is not valid JSON: "),
    ({"T": {}}, {"stream": "S"}, "stream T is described, which option stream does not name"),
    ({"subjects": ["a"]}, {"stream": "S,T"}, "a stream is described without its name"),
    (
        {"consumers": [{"durable_name": "c"}]},
        {"stream": "S"},
        "stream S: consumers are not made here: remove",
    ),
    (
        "streams.toml",
        {"stream": "S"},
        "ensureStream (neither JSON nor a file): the file cannot be read: No such",
    ),
]


@pytest.mark.parametrize(("ensured", "options", "words"), WRONG, ids=lambda value: str(value)[:50])
def test_a_wrong_description_is_an_error_of_option_ensure_stream(
    ensured: Any, options: dict[str, str], words: str, source: Source
) -> None:
    found = source(ensured, **options)
    for look in (found.schema, lambda: found.reader(COLUMNS)):  # the first is what load() calls
        with pytest.raises(OptionError) as caught:
            look()
        assert caught.value.option == "ensureStream"
        assert words in str(caught.value)
        assert caught.value.__context__ is None
    first_call = found.streamReader(COLUMNS)  # a constructor that fails would hide why
    with pytest.raises(OptionError):
        first_call.initialOffset()


def test_wrong_columns_make_no_stream(
    source: Source, new_stream: New, publisher: Publisher
) -> None:
    name = new_stream()
    wrong = StructType([StructField("datum", StringType())])
    found = source({"subjects": [f"{name}.>"]}, stream=name)
    for use in USES.values():
        with pytest.raises(SchemaError):
            use(found, wrong)
    assert name not in names(publisher)


def test_executors_make_no_stream(source: Source, new_stream: New, publisher: Publisher) -> None:
    name = new_stream()
    reader = source({"subjects": [f"{name}.>"]}, stream=name).streamReader(COLUMNS)
    copied = pickle.loads(pickle.dumps(reader))
    with pytest.raises(JetStreamError, match="stream not found"):
        copied.initialOffset()
    assert name not in names(publisher)
    reader.initialOffset()
    assert name in names(publisher)


# -- races, lost replies and permissions --


@pytest.fixture
def ensured(nats_server: NatsServer) -> Ensured:
    """A function that ensures a stream while something happens; the requests that were made."""
    options = ConnectionOptions.from_spark({"servers": nats_server.url})

    def run(
        described: Mapping[str, Any],
        meddle: Callable[[str, bytes], bytes | None] = lambda subject, body: None,
        conflict: Any = "error",
        remembered: bool = False,
        times: EnsureTimes = ENSURE_TIMES,
    ) -> list[str]:
        watched = WatchedConnection(options)
        watched.change = meddle
        ensure = Ensure(options, json.dumps(described), conflict, ())
        ensure_streams(
            ensure,
            watched,
            str,
            remembered=remembered,
            times=times,
        )
        return [subject.removeprefix("STREAM.") for subject in watched.subjects]

    return run


def test_another_client_makes_it_at_the_same_moment(
    ensured: Ensured, new_stream: New, publisher: Publisher
) -> None:
    for rest, conflict, asked in (
        ({}, "error", []),
        ({"max_msgs": 5}, "error", ["INFO"]),  # more than is given
        ({"max_age": 10**12}, "update", ["INFO", "INFO", "INFO", "UPDATE"]),
        ({"subjects": ["ensured.else"]}, "error", None),
    ):
        name = new_stream()
        described = {"name": name, "subjects": [f"{name}.>"], "max_age": 0}

        def create(subject: str, body: bytes, rest: dict[str, Any] = rest) -> None:
            if "STREAM.CREATE" in subject:
                publisher.api(subject.removeprefix("$JS.API."), {**json.loads(body), **rest})

        if asked is None:
            with pytest.raises(
                OptionError,
                match=rf"^stream {name} is not as .*subjects is \[\"ensured.else\"\], not",
            ):
                ensured(described, create)
            continue
        assert ensured(described, create, conflict) == [
            f"{verb}.{name}" for verb in ["INFO", "CREATE", *asked]
        ]
        assert config(publisher, name)["max_age"] == 0
        assert config(publisher, name)["max_msgs"] == rest.get("max_msgs", -1)


def test_an_answer_that_is_lost(ensured: Ensured, new_stream: New, publisher: Publisher) -> None:
    name = new_stream()
    lost: list[str] = []

    def lose(subject: str, body: bytes) -> None:
        if "STREAM.CREATE" in subject and not lost:
            lost.append(subject)
            publisher.api(f"STREAM.CREATE.{name}", json.loads(body))
            raise RequestTimeout("no reply")

    described = {"name": name, "subjects": [f"{name}.>"]}
    assert ensured(described, lose) == [f"INFO.{name}", f"CREATE.{name}", f"INFO.{name}"]
    assert name in names(publisher)


def test_a_query_that_writes_asks_once_a_minute(ensured: Ensured, new_stream: New) -> None:
    name = new_stream()
    described = {"name": name, "subjects": [f"{name}.>"]}
    assert ensured(described, remembered=True) == [f"INFO.{name}", f"CREATE.{name}"]
    assert ensured(described, remembered=True) == []
    assert ensured(described) == [f"INFO.{name}"]
    assert ensured({**described, "max_msgs": -1}, remembered=True) == [f"INFO.{name}"]
    a_minute_later = EnsureTimes(clock=lambda: time.monotonic() + 60)
    assert ensured(described, remembered=True, times=a_minute_later) == [f"INFO.{name}"]


INFO, CREATE, UPDATED = (
    "$JS.API.STREAM.INFO.S",
    "$JS.API.STREAM.CREATE.S",
    "$JS.API.STREAM.UPDATE.S",
)
LOGINS = {"both": (INFO, CREATE), "info": (INFO,), "none": ("a",)}


@pytest.fixture(scope="module")
def strict() -> Iterator[NatsServer]:
    """A server whose users may ask for just these subjects."""
    users = "\n".join(
        f"{{user: {name}, password: p, permissions: {{publish: {json.dumps(subjects)}, subscribe: "
        f'"_INBOX.>"}}}}'
        for name, subjects in LOGINS.items()
    )
    with NatsServer(
        config=f"accounts {{ A {{ jetstream: enabled, users: [{{user: all, password: p}}\n{users}] "
        f"}} }}"
    ) as server:
        yield server


def test_the_least_permissions_are_enough_and_no_more(strict: NatsServer, source: Source) -> None:
    def by(user: str, max_msgs: int, **options: str) -> None:
        described = {"subjects": ["s"], "max_msgs": max_msgs}
        found = source(
            described, stream="S", servers=strict.url, user=user, password="p", **options
        )
        found.streamWriter(COLUMNS, False)

    needed = rf"; option ensureStream needs {INFO} and {CREATE}$".replace("$JS", r"\$JS")
    with pytest.raises(PermissionDenied, match=rf"may not publish to \{INFO}{needed}"):
        by("none", 1)
    with pytest.raises(PermissionDenied, match=rf"may not publish to \{CREATE}{needed}") as caught:
        by("info", 1)
    assert caught.value.subject == CREATE
    by("both", 1)
    by("info", 1)  # there is nothing to do any more
    with pytest.raises(PermissionDenied, match=rf"needs \{INFO}, \{CREATE} and \{UPDATED}$"):
        by("both", 2, **UPDATE)


# -- through Spark --


@pytest.mark.full
def test_a_work_queue_is_given_direct_reads(
    spark: SparkSession,
    nats_server: NatsServer,
    stream: MakeStream,
    publisher: Publisher,
    tmp_path: Path,
) -> None:
    s = stream(retention="workqueue")
    s.fill(3)
    rows = s.rows()
    options = {"durable": "queue", "ensureStream": '{"allow_direct": true}'}
    with pytest.raises(StreamingQueryException) as caught:
        available_now(
            streaming(spark, nats_server.url, s.name, durable="queue"), tmp_path / "first"
        )
    assert (
        'ensureStream={"allow_direct": true} and ensureStreamOnConflict=update'
        in refusal(caught.value)[1]
    )
    run = available_now(
        streaming(spark, nats_server.url, s.name, **options, **UPDATE), tmp_path / "second"
    )
    assert run.stored == rows
    assert config(publisher, s.name)["allow_direct"]
