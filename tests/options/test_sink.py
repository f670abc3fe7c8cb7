"""The options of a sink: what is read, what is refused and in which words, and what never shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from spark_jetstream.errors import OptionError
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.options.names import PublishSubject
from spark_jetstream.options.specs import SPARK_KEYS, OptionSpec
from spark_jetstream.sink.rows import subject_fault
from tests.options.support import SECRET, assert_refused, hides, secret_options

STREAM, BATCH = True, False


def sink(streaming: bool = True, /, **options: object) -> SinkOptions:
    return SinkOptions.from_spark(options, streaming=streaming)


# One text for each option that means something else than leaving it out, and its value.
SAMPLES: dict[str, tuple[str, object]] = {
    "subject": ("orders.new", "orders.new"),
    "stream": ("ORDERS", "ORDERS"),
    "delivery": ("Exactly-Once", "exactly-once"),
    "maxInFlight": ("7", 7),
    "ackTimeout": ("1500ms", 1.5),
    "maxRetries": ("0", 0),
    "deadLetterSubject": ("orders.refused", "orders.refused"),
    "writeId": ("load_2026-03-01", "load_2026-03-01"),
    "bucket": ("prices", "prices"),
    "objectBucket": ("files", "files"),
    "ensureStream": ("streams.yaml", "streams.yaml"),
    "ensureStreamOnConflict": ("Ignore", "ignore"),
}
BESIDE = {"ensureStreamOnConflict": {"ensureStream": "{}"}}
BOTH_SIDES = {"stream", "bucket", "objectBucket", "ensureStream", "ensureStreamOnConflict"}


@pytest.mark.parametrize("spec", SinkOptions.specs, ids=lambda spec: spec.name)
@pytest.mark.parametrize("change", [str, str.upper], ids=["as written", "upper"])
def test_every_option_reaches_its_field_in_any_case(spec: OptionSpec, change: Any) -> None:
    text, expected = SAMPLES[spec.name]
    options = sink(spec.only != "batch", **BESIDE.get(spec.name, {}), **{change(spec.name): text})
    value = getattr(options, spec.field_name)
    assert value == expected
    assert type(value) is type(expected)
    assert SinkOptions.model_fields[spec.field_name].get_default() != expected


def test_every_option_has_a_sample() -> None:
    assert set(SAMPLES) == {spec.name for spec in SinkOptions.specs}


@pytest.mark.parametrize("streaming", [STREAM, BATCH])
def test_defaults(streaming: bool) -> None:
    options = sink(streaming)
    assert options == SinkOptions(streaming=streaming)
    assert options.connection == ConnectionOptions()
    assert (options.streaming, options.subject, options.stream) == (streaming, None, None)
    assert (options.delivery, options.max_in_flight) == ("deduplicated", 8000)
    assert (options.ack_timeout, options.max_retries) == (10.0, 5)
    assert (options.dead_letter_subject, options.write_id) == (None, None)


@pytest.mark.parametrize("streaming", [STREAM, BATCH])
def test_sparks_own_keys_pass(streaming: bool) -> None:
    given_by_spark = dict.fromkeys(SPARK_KEYS, "x") | {"option.subject": "a", "checkpointLocation": "/c"}
    assert sink(streaming, **given_by_spark) == sink(streaming)


def test_the_connection_comes_along(tmp_path: Path) -> None:
    options = sink(servers="nats://me:x@a", subject="a", requestTimeout="3s")
    assert options.connection == ConnectionOptions.from_spark(
        {"servers": "a", "user": "me", "password": "x", "requesttimeout": "3s"}
    )
    context = tmp_path / "production.json"
    context.write_text(json.dumps({"url": "nats://b:4333", "token": SECRET, "jetstream_domain": "hub"}))
    options = sink(context=str(context), domain="leaf")
    assert (options.connection.servers, options.connection.domain) == (("nats://b:4333",), "leaf")
    assert options.connection.token == SecretStr(SECRET)


def test_values_of_other_types_are_taken_as_their_text() -> None:
    options = sink(BATCH, maxRetries=0, maxInFlight=10, subject=None, token=SecretStr("x"), writeId=20260301)
    assert (options.max_retries, options.max_in_flight, options.subject) == (0, 10, None)
    assert (options.connection.token, options.write_id) == (SecretStr("x"), "20260301")


def test_bounds_and_what_may_stand_together() -> None:
    assert sink(maxInFlight="1", ackTimeout="100ms", maxRetries="1000").max_in_flight == 1
    assert sink(maxInFlight="100000", ackTimeout="10 minutes").ack_timeout == 600.0
    assert sink(deadLetterSubject="refused").dead_letter_subject == "refused"
    assert sink(BATCH, writeId="x" * 100, delivery="exactly-once").write_id == "x" * 100
    assert sink(BATCH, delivery="at-least-once").write_id is None


# Where it is used, the options, the option that the error is about, and words in it.
REFUSED: list[tuple[bool, Mapping[str, object], str, str]] = [
    # names
    (STREAM, {"maxinflights": "5"}, "maxinflights", "there is no option maxinflights; did you mean maxInFlight"),
    (STREAM, {"deliver": "x"}, "deliver", "did you mean delivery"),
    (BATCH, {"streams": "x"}, "streams", "did you mean stream"),
    (BATCH, {"write_id": "x"}, "write_id", "did you mean writeId"),
    (STREAM, {"Subject": "a", "subject": "b"}, "subject", "is given twice"),
    # the source's
    (STREAM, {"Subjects": "a"}, "subjects", "has no meaning for a sink; did you mean subject"),
    *(
        (streaming, {spec.name.lower(): "x"}, spec.name, "belongs to the source and has no meaning for a sink")
        for spec in SourceOptions.specs
        if spec.name not in BOTH_SIDES
        for streaming in (STREAM, BATCH)
    ),
    # streams that are made
    (STREAM, {"ensureStreamOnConflict": "update"}, "ensureStreamOnConflict", "has no meaning without ensureStream"),
    (BATCH, {"ensureStream": ""}, "ensureStream", "must not be empty"),
    (
        BATCH,
        {"ensureStream": "{}", "ensureStreamOnConflict": "no"},
        "ensureStreamOnConflict",
        "error, update or ignore",
    ),
    (STREAM, {"bucket": "b", "ensureStream": "{}"}, "ensureStream", "no meaning with bucket: a bucket is more than"),
    (BATCH, {"objectBucket": "o", "ensureStream": "{}"}, "ensureStream", "(spark-jetstream object add)"),
    # buckets
    (STREAM, {"bucket": "b", "subject": "a"}, "subject", "no meaning with bucket: column key says"),
    (STREAM, {"bucket": "b", "stream": "KV_b"}, "stream", "options stream and bucket exclude each other"),
    (STREAM, {"bucket": "b", "delivery": "exactly-once"}, "delivery", "cannot be exactly-once with bucket"),
    (STREAM, {"bucket": "b", "objectBucket": "o"}, "bucket", "exclude each other"),
    (STREAM, {"bucket": "b.c"}, "bucket", "1 to 252 letters"),
    (BATCH, {"objectBucket": "o", "subject": "a"}, "subject", "column name says what an object is called"),
    (BATCH, {"objectBucket": "o", "delivery": "deduplicated"}, "delivery", "an object is replaced as a whole"),
    (BATCH, {"objectBucket": "o", "writeId": "x"}, "writeId", "an object is replaced as a whole"),
    (BATCH, {"objectBucket": "o", "deadLetterSubject": "x"}, "deadLetterSubject", "fails the task"),
    # where
    (STREAM, {"writeId": "x"}, "writeId", "when writing a stream: the query's own id and its batch numbers are used"),
    # values
    (STREAM, {"subject": "a b"}, "subject", "must be a subject without blanks and wildcards: there are blanks"),
    (STREAM, {"subject": "a.*"}, "subject", ": there is a wildcard"),
    (STREAM, {"deadLetterSubject": "a.>"}, "deadLetterSubject", "there is a wildcard"),
    (STREAM, {"stream": "A,B"}, "stream", "must name one stream, not a list"),
    (STREAM, {"stream": "A.B"}, "stream", "option stream must be the name of one stream, without"),
    (STREAM, {"delivery": "exactlyonce"}, "delivery", "did you mean exactly-once"),
    (STREAM, {"maxInFlight": "100001"}, "maxInFlight", "from 1 to 100,000"),
    (STREAM, {"ackTimeout": "11m"}, "ackTimeout", "a duration from 100ms to 10m"),
    (STREAM, {"maxRetries": "1001"}, "maxRetries", "from 0 to 1,000"),
    (BATCH, {"writeId": "x" * 101}, "writeId", "1 to 100 letters"),
    # pairs
    (
        STREAM,
        {"subject": "a.b", "deadLetterSubject": " a.b"},
        "deadLetterSubject",
        'differ from subject, and both are "a.b"',
    ),
    (BATCH, {"delivery": "at-least-once", "writeId": "x"}, "writeId", "no meaning with delivery at-least-once"),
]


@pytest.mark.parametrize(("streaming", "options", "option", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused(streaming: bool, options: Mapping[str, object], option: str, words: str) -> None:
    assert_refused(lambda: sink(streaming, **options), option, words)


def test_the_same_name_means_what_it_says_at_each_end() -> None:
    assert sink(stream="ORDERS").stream == "ORDERS"
    assert SourceOptions.from_spark({"stream": "ORDERS"}, streaming=True).streams == ("ORDERS",)
    with pytest.raises(OptionError, match=r"option subject belongs to the sink .* did you mean subjects$"):
        SourceOptions.from_spark({"stream": "ORDERS", "subject": "a"}, streaming=True)
    with pytest.raises(OptionError, match=r"option subjects belongs to the source .* did you mean subject$"):
        sink(subjects="a")


@given(st.text(st.sampled_from("ab$JS.*>\t \x7f\xa0ö"), max_size=12))
@example("$SYS.a")
@example("$JS")
@example("ö" * 512)
@example("ö" * 512 + "a")
def test_an_option_takes_the_subjects_that_a_column_may_hold(subject: str) -> None:
    try:
        PublishSubject().parse("subject", f"x{subject}")
    except OptionError:
        taken = False
    else:
        taken = True
    # What strips blanks off an option leaves the column alone.
    assert taken is (subject_fault(f"x{subject}".strip().encode()) is None)


WRONG: list[Mapping[str, object]] = [
    *secret_options({"maxRetries": "none"}, {"subjects": "a"}, {"ensureStreamOnConflict": "a"}, {"writeId": "a"}),
    {"servers": f"nats://{SECRET}@host", "subject": "a", "deadLetterSubject": "a"},
    {"servers": f"nats://me:{SECRET}@host", "delivery": "none"},
    {"token": SECRET, "subject": "a", "deadLetterSubject": "a"},
]


@pytest.mark.parametrize("options", WRONG, ids="+".join)
def test_no_error_holds_a_secret(options: Mapping[str, object]) -> None:
    hides(lambda: sink(**options))


def test_a_model_made_directly_is_checked_as_well() -> None:
    assert SinkOptions(streaming=True, subject="a", ack_timeout=2.5).ack_timeout == 2.5
    with pytest.raises(ValidationError, match="there is a wildcard"):
        SinkOptions(streaming=True, subject="a.>")
    with pytest.raises(ValidationError, match="must differ from subject"):
        SinkOptions(streaming=True, subject="a", dead_letter_subject="a")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        SinkOptions.model_validate({"streaming": True, "subjects": "a"})
