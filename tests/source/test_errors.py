"""Bad input: one clear sentence with the name of the option or stream, before any task starts, and
no secret in it.

The sentences are those of the driver, called in this process. A query for each kind of error shows
that Spark hands them on.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import MapType, StringType, StructType

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError, OptionError, StreamNotFound
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.calls import BUCKET_ROWS, SEQUENCE, data_source, planned, refusal_of
from tests.support.publish import Publisher
from tests.support.queries import Run, batch, refusal, start, streaming
from tests.support.streams import Stream

PASSWORD = "right-pass-7f3a"
WRONG = "wrong-pass-91be"
ACCOUNTS = f"""
accounts {{
  A {{ jetstream: enabled, users: [
    {{ user: ann, password: "{PASSWORD}" }}
  ] }}
  B {{ jetstream: enabled, users: [{{ user: bob, password: "{PASSWORD}" }}] }}
  PLAIN {{ users: [{{ user: pat, password: "{PASSWORD}" }}] }}
}}
"""


class Server(NamedTuple):
    """A server with accounts, and the stream ORDERS (sequences 11 to 20 are kept) and others in
    account A.
    """

    url: str
    login: dict[str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        NatsServer(config=ACCOUNTS) as running,
        Publisher(running.url, user="ann", **{"pass": PASSWORD}) as ann,
    ):
        orders = Stream(running.url, "ORDERS", ann)
        orders.fill(20)
        orders.purge(seq=11)
        Stream(running.url, "QUEUE", ann, retention="workqueue").fill(3)
        Stream(running.url, "KV_prices", ann, subjects=["$KV.prices.>"])
        with Publisher(running.url, user="bob", **{"pass": PASSWORD}) as bob:
            Stream(running.url, "BOBS", bob).fill(3)
        yield Server(running.url, {"user": "ann", "password": PASSWORD})
        close_all()


Options = dict[str, Any]

NOWHERE = {"connectTimeout": "500ms"}
NO_SERVER, SOON = "no NATS server could be reached at", r"within 0.5 s \(option servers\)"
REFUSED = r"the NATS server at nats://127.0.0.1:\d+ refused the credentials"
ORDERS, NOT_FOUND = (
    r"cannot read stream ORDERS \(option stream\):",
    r"\(option stream\): stream not found .*",
)
BEGINS, ENDS = "startingOffsets begins stream", "endingOffsets ends stream"
LAST, STARTS = "last message has sequence 20", "reading starts at sequence 11"
FIRST = "the first message kept has sequence 11; set failOnDataLoss to false to begin there"
FUTURE = r"startingTimestamp is in the future: the server's clock shows 2\d\d\d-.*Z"
QUEUE = "stream QUEUE has work-queue retention"
ALLOW = r"set allow_direct on the stream \(spark-jetstream stream edit QUEUE --allow-direct\)"

#: `mode` holds b for batch, s for stream; the sentence is a pattern for all of it. Beside the
#: options: stream=S. Some ways in which an option can be wrong, above all those with a secret; all
#: are in tests/options.
OPTIONS: list[tuple[str, Options, str]] = [
    ("bs", {"requestTimeout": "1ms"}, 'option requestTimeout must be .*, not "1ms"'),
    ("s", {"user": "ann", "password": PASSWORD, "token": PASSWORD},
        "options user and token are two kinds of authentication"),
    ("b", {"servers": f"nats://ann:{PASSWORD},{WRONG}@127.0.0.1:4222"},
        r"option servers holds URL number 1, in which .* \(inside a URL, a password is "
        r"percent-encoded\)"),
    ("b", {"nkeySeedSecret": WRONG}, "option nkeySeedSecret does not hold an NKey seed"),
]  # fmt: skip
#: Options that the server contradicts or refuses, with the error's class as a pattern. Beside: a
#: login, stream=ORDERS.
SERVER: list[tuple[str, str, Options, str]] = [
    ("bs", "ConnectionFailed", {**NOWHERE, "servers": "nats://127.0.0.1:1"},
        rf"{NO_SERVER} nats://127.0.0.1:1 {SOON}: .*"),
    ("bs", "StreamNotFound", {"stream": "ORDERS,NONE"}, rf"cannot read stream NONE {NOT_FOUND}"),
    ("bs", "StreamNotFound", {"stream": "ORDRES"}, rf"cannot read stream ORDRES {NOT_FOUND}; did "
                                                   r"you mean ORDERS"),
    ("bs", "StreamNotFound", {"stream": "prices"},
        rf"cannot read stream prices {NOT_FOUND}; prices is a Key-Value bucket \(option bucket\)"),
    # A stream of another account.
    ("bs", "StreamNotFound", {"stream": "BOBS"}, rf"cannot read stream BOBS {NOT_FOUND}"),
    ("bs", "OptionError", {"startingOffsets": '{"ORDERS": 22}'}, f"{BEGINS} ORDERS at sequence 22, "
                                                                 f"but its {LAST}"),
    ("bs", "OptionError", {"startingOffsets": '{"ORDERS": 10}'}, f"{BEGINS} ORDERS at sequence 10, "
                                                                 f"but {FIRST}"),
    ("s", "OptionError", {"startingTimestamp": "2199-01-01T00:00:00Z"}, FUTURE),
    ("b", "OptionError", {"endingOffsets": '{"ORDERS": 22}'}, f"{ENDS} ORDERS before sequence 22, "
                                                              f"but its {LAST}"),
    ("b", "OptionError", {"endingOffsets": '{"ORDERS": 5}'}, f"{ENDS} ORDERS before sequence 5, "
                                                             f"but {STARTS}"),
    ("bs", "AuthenticationFailed", {"password": WRONG}, rf"{REFUSED} \(options user and "
                                                        r"password\)"),
    # An account without JetStream.
    ("b", "JetStreamNotEnabled|NoResponders", {"user": "pat"}, rf"{ORDERS} .*"),
    ("s", "OptionError", {"stream": "QUEUE"}, f"{QUEUE}: reading it needs the option durable, .*"),
    ("b", "OptionError", {"stream": "QUEUE"}, f"{QUEUE}: a batch can look at its messages with "
                                              "readWith=direct, .*"),
    ("s", "OptionError", {"stream": "QUEUE", "durable": "d"},
        f"{QUEUE}, which is read with Direct Get, .* {ALLOW}, .*"),
]  # fmt: skip


def refuse(
    caplog: pytest.LogCaptureFixture, mode: str, options: Options, schema: StructType | None = None
) -> tuple[str, str]:
    """Class and sentence of what the driver raises. No secret shows."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(JetStreamError) as caught:
        planned(mode, {name: value for name, value in options.items() if value is not None}, schema)
    for secret in (PASSWORD, WRONG):
        assert secret not in str(caught.value)
        assert secret not in caplog.text
    return refusal_of(caught.value)


@pytest.mark.parametrize(
    ("modes", "options", "sentence"), OPTIONS, ids=lambda value: str(value)[:50]
)
def test_wrong_options(
    caplog: pytest.LogCaptureFixture, modes: str, options: Options, sentence: str
) -> None:
    for mode in modes:
        kind, said = refuse(
            caplog, mode, {"servers": "nats://127.0.0.1:1", "stream": "S", **options}
        )
        assert kind == "OptionError"
        assert re.fullmatch(sentence, said), said


def test_the_bucket_that_was_meant(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    found = refuse(
        caplog, "b", {"servers": server.url, "bucket": "prizes", **server.login}, BUCKET_ROWS
    )
    said = (
        "there is no Key-Value bucket prizes (option bucket): no stream KV_prizes; did you mean "
        "prices"
    )
    assert found == ("OptionError", said)


def test_a_stream_is_not_given_as_a_bucket(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    found = refuse(
        caplog, "b", {"servers": server.url, "bucket": "ORDERS", **server.login}, BUCKET_ROWS
    )
    said = (
        "there is no Key-Value bucket ORDERS (option bucket): no stream KV_ORDERS; ORDERS is a "
        "stream (option stream)"
    )
    assert found == ("OptionError", said)


def test_a_query_that_reads_what_is_there_and_stops_names_the_stream_that_was_meant(
    server: Server,
) -> None:
    """Spark prepares it before it asks where the query starts."""
    reader: Any = data_source(
        {"servers": server.url, "stream": "ORDRES", **server.login}
    ).streamReader(SEQUENCE)
    with pytest.raises(StreamNotFound, match=r"; did you mean ORDERS$"):
        reader.prepareForTriggerAvailableNow()


@pytest.mark.usefixtures("no_election")
def test_a_stream_that_a_query_adds_names_the_one_that_was_meant(
    server: Server,
) -> None:
    def latest(stream: str, start: dict[str, Any]) -> Any:
        reader: Any = data_source(
            {"servers": server.url, "stream": stream, **server.login}
        ).streamReader(SEQUENCE)
        return reader.latestOffset(start, ReadAllAvailable())

    begun: Any = data_source(
        {"servers": server.url, "stream": "ORDERS", **server.login}
    ).streamReader(SEQUENCE)
    start = begun.initialOffset()
    with pytest.raises(StreamNotFound, match=r"; did you mean ORDERS$"):
        latest("ORDERS,ORDRES", start)
    # A stream that the query has read was deleted.
    position = start["streams"]["ORDERS"]
    with pytest.raises(StreamNotFound, match=r"\(code 404, error 10059\)$"):
        latest("ORDRES", {**start, "streams": {"ORDRES": position}})


@pytest.mark.parametrize(
    ("modes", "kind", "options", "sentence"), SERVER, ids=lambda value: str(value)[:50]
)
def test_options_that_the_server_contradicts_are_clear_errors(
    server: Server,
    caplog: pytest.LogCaptureFixture,
    modes: str,
    kind: str,
    options: Options,
    sentence: str,
) -> None:
    for mode in modes:
        found, said = refuse(
            caplog, mode, {"servers": server.url, "stream": "ORDERS", **server.login, **options}
        )
        assert re.fullmatch(kind, found), (found, said)
        assert re.fullmatch(sentence, said), said


def test_load_finds_what_is_wrong_for_a_stream_and_for_a_batch() -> None:
    with pytest.raises(OptionError, match=r"^there is no option steam; did you mean stream$"):
        data_source({"steam": "ORDERS"}).schema()
    assert data_source(
        {"stream": "ORDERS", "endingOffsets": "latest", "maxMessagesPerTrigger": 5}
    ).schema()


def test_a_schema_that_is_not_a_subset(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    given = {"servers": server.url, "stream": "ORDERS", **server.login}
    schema = StructType().add("headers", MapType(StringType(), StringType()))
    kinds = "the type map<string,string>, but it is map<string,array<string>>"
    assert refuse(caplog, "b", given, schema) == (
        "SchemaError",
        f'the schema gives column "headers" {kinds}',
    )


# Errors that only Spark shows.


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        # `load` raises it: no query starts.
        ({"steam": "S"}, "OptionError", "there is no option steam; did you mean stream"),
        pytest.param(
            *(
                {"password": WRONG},
                "AuthenticationFailed",
                r".* refused the credentials \(options user and password\)",
            ),
            marks=pytest.mark.full,
        ),
    ],
    ids=["load", "connect"],
)
def test_spark_shows_the_error_of_the_driver(
    spark: SparkSession,
    server: Server,
    tmp_path: Path,
    spark_log: SparkLog,
    options: Options,
    kind: str,
    sentence: str,
) -> None:
    given = {**server.login, **options}
    with pytest.raises(AnalysisException) as of_batch:
        batch(spark, server.url, "ORDERS", **given).collect()
    in_load = AnalysisException if kind == "OptionError" else StreamingQueryException
    with pytest.raises(in_load) as of_query:  # in load, or later
        start(streaming(spark, server.url, "ORDERS", **given), tmp_path, Run()).awaitTermination()
    for failure in (of_batch.value, of_query.value):
        name, text = refusal(failure)
        assert name == kind
        assert re.fullmatch(sentence, text), text
        for secret in (PASSWORD, WRONG):
            assert secret not in str(failure)
            assert secret not in spark_log.text


@pytest.mark.full
def test_plans_show_no_secret(spark: SparkSession, server: Server) -> None:
    for name in {spec.name for spec in ConnectionOptions.specs if spec.secret} - {
        "password",
        "tlsKeySecret",
    }:
        secrets = {name: PASSWORD, "tlsCertFile": "/cert.pem", "tlsKeySecret": PASSWORD}
        plan = plan_of(streaming(spark, "nats://127.0.0.1:1", "ORDERS", **secrets))
        assert "ORDERS" in plan
        assert PASSWORD not in plan
    url = server.url.replace("//", f"//ann:{PASSWORD}@")
    assert PASSWORD not in plan_of(batch(spark, url, "ORDERS"))
    # Spark prints the options of a streaming frame that is not started yet, and hides those that a
    # pattern names.
    assert PASSWORD in plan_of(streaming(spark, url, "ORDERS"))
    pattern = spark.conf.get("spark.sql.redaction.options.regex")
    spark.conf.set("spark.sql.redaction.options.regex", f"{pattern}|(?i)servers")
    try:
        assert PASSWORD not in plan_of(streaming(spark, url, "ORDERS"))
    finally:
        spark.conf.set("spark.sql.redaction.options.regex", str(pattern))


def plan_of(frame: DataFrame) -> str:
    """The text that `explain(extended=True)` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(extended=True)
    return printed.getvalue()
