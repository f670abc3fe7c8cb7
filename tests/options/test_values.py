"""Texts of options to values: tables of what is read and refused, and properties."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.names import (
    CommaList,
    Identifier,
    KeyFilter,
    Name,
    Positions,
    Prefix,
    PublishSubject,
    Subject,
)
from spark_jetstream.options.servers import Servers
from spark_jetstream.options.values import Choice, Flag, Kind, Seconds, Secret, Size, Text, Time, Whole
from spark_jetstream.protocol.subjects import subject_fault, subjects_overlap
from spark_jetstream.protocol.units import duration_seconds, size_bytes

DURATION = Seconds("0s", "3650d")
SIZE = Size(0, 1 << 50)
STREAM = Name("stream", single=True)
STREAMS = CommaList(Name("stream"), "stream names")
FILTERS = CommaList(Subject(), "subject filters", apart=True)
KEYS = CommaList(KeyFilter(), "keys", apart=True)
BOTH = Positions(("earliest", "latest"))
DELIVERY = Choice(("at-least-once", "deduplicated", "exactly-once"))
NOON = 1_772_366_400_000_000_000  # 2026-03-01T12:00:00Z

GOOD: list[tuple[Kind, object, object]] = [
    (Flag(), "true", True),
    (Flag(), " FALSE ", False),
    (Flag(), True, True),
    (Whole(1), "1", 1),
    (Whole(1), " 9223372036854775807 ", 2**63 - 1),
    (Whole(0), "+0", 0),
    (DURATION, "500ms", 0.5),
    (DURATION, "250us", 0.00025),
    (DURATION, "10s", 10.0),
    (DURATION, "5m", 300.0),
    (DURATION, "2h", 7200.0),
    (DURATION, "1d", 86400.0),
    (DURATION, "2w", 1209600.0),
    (DURATION, "1y", 365 * 86400.0),
    (DURATION, "2 Years 1W", 737 * 86400.0),
    (DURATION, "1H30MIN", 5400.0),
    (DURATION, "10 seconds", 10.0),
    (DURATION, "1 minute", 60.0),
    (DURATION, "5 Minutes", 300.0),
    (DURATION, "3 min", 180.0),
    (DURATION, "1m 30s", 90.0),
    (DURATION, "1h30m", 5400.0),
    (DURATION, "1 hour 2 minutes 3 seconds", 3723.0),
    (DURATION, "1.5s", 1.5),
    (DURATION, "0.1s", 0.1),
    (DURATION, 2.5, 2.5),
    (SIZE, "65536", 65536),
    (SIZE, "512k", 512 * 1024),
    (SIZE, "8m", 8 << 20),
    (SIZE, "8mb", 8 << 20),
    (SIZE, "8MiB", 8 << 20),
    (SIZE, "8 MB", 8 << 20),
    (SIZE, "1g", 1 << 30),
    (SIZE, "2T", 2 << 40),
    (SIZE, "7b", 7),
    (SIZE, 1024, 1024),
    (Time(), "2026-03-01T12:00:00Z", NOON),
    (Time(), "2026-03-01t12:00:00z", NOON),
    (Time(), "2026-03-01 12:00Z", NOON),
    (Time(), "2026-03-01T12:00:00 UTC", NOON),
    (Time(), "2026-03-01T13:00:00+01:00", NOON),
    (Time(), "2026-03-01T13:30:00+0130", NOON),
    (Time(), "2026-03-01T07:00:00-05", NOON),
    (Time(), "2026-03-01T12:00:00.1Z", NOON + 100_000_000),
    (Time(), "2026-03-01T12:00:00,123456789Z", NOON + 123_456_789),
    (Time(), "2026-03-01T12:00:00.000000001Z", NOON + 1),
    (Time(), "1970-01-01T00:00:00Z", 0),
    (Time(), "2262-04-11T23:47:16.854775807Z", 2**63 - 1),
    (Time(), "1772366400000", NOON),
    (Time(), "0", 0),
    (Time(), 5, 5),
    (Text(required=True), " as it is ", " as it is "),
    (Servers(), "nats://a:4222", ("nats://a:4222",)),
    (Servers(), "a, TLS://b:1/ ,[::1]:4222", ("nats://a", "tls://b:1", "nats://[::1]:4222")),
    (Servers(), "wss://h/nats,ws://h:80", ("wss://h/nats", "ws://h:80")),
    (Servers(), "nats://u:p@a,nats://u:p@b:1", ("nats://a", "nats://b:1")),
    (Servers(), ("nats://a",), ("nats://a",)),
    (STREAMS, "ORDERS", ("ORDERS",)),
    (STREAMS, " B , A,größe", ("B", "A", "größe")),
    (FILTERS, "a.*.c, b.>", ("a.*.c", "b.>")),
    (FILTERS, "größe.$x", ("größe.$x",)),
    (STREAM, " ORDERS ", "ORDERS"),
    (STREAM, "größe", "größe"),
    (STREAM, "ö" * 127, "ö" * 127),
    (PublishSubject(), " orders.eu.de ", "orders.eu.de"),
    (PublishSubject(), "a,b", "a,b"),
    (PublishSubject(), "größe.a*b.>>.**", "größe.a*b.>>.**"),
    (PublishSubject(), "$KV.prices.tea", "$KV.prices.tea"),
    (PublishSubject(), "$JSON.a", "$JSON.a"),
    (PublishSubject(), "a.$JS.b", "a.$JS.b"),
    (PublishSubject(), "x" * 1024, "x" * 1024),
    (Identifier(100), " 2026-03-01_Load ", "2026-03-01_Load"),
    (Identifier(3), "-_9", "-_9"),
    (DELIVERY, " Exactly-ONCE ", "exactly-once"),
    (DELIVERY, "at-least-once", "at-least-once"),
    (Prefix(), "$JS.hub.API.", "$JS.hub.API"),
    (Prefix(tokens=1), "hub", "hub"),
    (BOTH, "Earliest", "earliest"),
    (BOTH, " latest ", "latest"),
    (BOTH, '{"B": 7, "A": 1}', (("A", 1), ("B", 7))),
    (BOTH, {"A": 1}, (("A", 1),)),
    (BOTH, (("A", 1),), (("A", 1),)),
]

BAD: list[tuple[Kind, object, str]] = [
    (Flag(), "yes", "must be true or false"),
    (Flag(), "1", "must be true or false"),
    (Flag(), "", "must be true or false"),
    (Whole(1, 5000), "0", 'must be a whole number from 1 to 5,000, not "0"'),
    (Whole(1, 5000), "5001", "from 1 to 5,000"),
    (Whole(1), "9223372036854775808", "from 1 to 2^63-1"),
    (Whole(1), "9" * 5000, "a whole number"),
    (Whole(1), "1.0", "a whole number"),
    (Whole(1), "1e3", "a whole number"),
    (Whole(1), "\u0661", "a whole number"),
    (Whole(1), "1_000", "a whole number"),
    (Whole(1), "", "a whole number"),
    (Whole(1), True, "a whole number"),
    (Seconds("1s", "10m"), "10", "must be a duration from 1s to 10m"),
    (Seconds("1s", "10m"), "999ms", "a duration from 1s to 10m"),
    (Seconds("1s", "10m"), "601s", "a duration from 1s to 10m"),
    (DURATION, "-1s", "a duration"),
    (DURATION, "1 fortnight", "a duration"),
    (DURATION, "s", "a duration"),
    (DURATION, "1s,2s", "a duration"),
    (DURATION, "soon", "a duration"),
    (DURATION, "", "a duration"),
    (DURATION, "1e3s", "a duration"),
    (DURATION, "6M", "M could mean minutes, or months as in the nats command; write 6m for minutes, and"),
    (DURATION, "1y 1.5 M", "write 1.5m for minutes, and days instead of months, such as 45d"),
    (DURATION, "0.01M", "such as 0.3d"),
    (DURATION, float("inf"), "a duration"),
    (DURATION, True, "a duration"),
    (Size(64 << 10, 512 << 20), "65535", "must be a size from 64k to 512m"),
    (Size(64 << 10, 512 << 20), "513m", "a size from 64k to 512m"),
    (SIZE, "1.5g", "a size"),
    (SIZE, "-1", "a size"),
    (SIZE, "1x", "a size"),
    (SIZE, "1ki", "a size"),
    (SIZE, "", "a size"),
    (SIZE, True, "a size"),
    (Time(), "2026-03-01T12:00:00", "a time with its zone"),
    (Time(), "2026-03-01 12:00", "a time with its zone"),
    (Time(), "2026-03-01", "a time with its zone"),
    (Time(), "2026-02-30T12:00:00Z", "must be a time such as"),
    (Time(), "2026-03-01T24:00:00Z", "must be a time such as"),
    (Time(), "2026-03-01T12:60:00Z", "must be a time such as"),
    (Time(), "2026-03-01T12:00:60Z", "must be a time such as"),
    (Time(), "2026-03-01T12:00:00+19:00", "must be a time such as"),
    (Time(), "2026-03-01T12:00:00 Europe/Berlin", "must be a time such as"),
    (Time(), "2026-03-01Z", "must be a time such as"),
    (Time(), "yesterday", "must be a time such as"),
    (Time(), "", "must be a time such as"),
    (Time(), "2026-03-01T12:00:00.1234567891Z", "at most nine digits"),
    (Time(), "1772366400", "is this seconds?"),
    (Time(), "2026", "is this seconds?"),
    (Time(), "-1", "between 1970 and 2262"),
    (Time(), "1969-12-31T23:59:59Z", "between 1970 and 2262"),
    (Time(), "2262-04-11T23:47:16.854775808Z", "between 1970 and 2262"),
    (Time(), "1772366400000000000", "between 1970 and 2262"),
    (Text(required=True), " ", "must not be empty"),
    (Secret(), "", "must not be empty"),
    (Servers(), "", "holds an empty element"),
    (Servers(), "a,,b", "holds an empty element"),
    (Servers(), "http://a", "the scheme is not one of"),
    (Servers(), "nats://", "the host is missing"),
    (Servers(), "nats://a b", "the host is missing or malformed"),
    (Servers(), "nats://a:0", "the port is not a number"),
    (Servers(), "nats://a:65536", "the port is not a number"),
    (Servers(), "nats://a:", "the port is not a number"),
    (Servers(), "nats://a:4222:1", "the port is not a number"),
    (Servers(), "nats://[::1", "in which the"),
    (Servers(), "nats://[1.2.3.4]", "not an IPv6 address"),
    (Servers(), "nats://a/path", "a path follows the host"),
    (Servers(), "ws://a/p?q=1", "follow the host"),
    (Servers(), "nats://a,ws://b", "mixes"),
    (Servers(), 7, "must be a comma list"),
    (STREAMS, "", "must not be empty"),
    (STREAMS, "A,", "holds an empty element"),
    (STREAMS, "A,A", 'names "A" twice'),
    (STREAMS, "A B", "without blanks, dots"),
    *((STREAMS, f"A{sign}B", "without blanks, dots") for sign in ".*>/\\\t\0"),
    (STREAMS, "ö" * 128, "the name of a stream of at most 255 bytes"),
    (FILTERS, "", "must not be empty"),
    (FILTERS, "a..b", "a token between the dots is empty"),
    (FILTERS, ".a", "a token between the dots is empty"),
    (FILTERS, "a.", "a token between the dots is empty"),
    (FILTERS, "a.>.b", "> is not the last token"),
    (FILTERS, "a.b*", "not a token of its own"),
    (FILTERS, "a.>>", "not a token of its own"),
    (FILTERS, "a b", "there are blanks"),
    (FILTERS, "a.*,*.b", '"a.*" and "*.b", which overlap'),
    (FILTERS, "a,a", 'names "a" twice'),
    (FILTERS, "a.b,>", '"a.b" and ">", which overlap'),
    (STREAM, " ", "must be the name of one stream"),
    (STREAM, "A, B", "must name one stream, not a list"),
    (STREAM, "A,", "must name one stream, not a list"),
    *((STREAM, f"A{sign}B", "without blanks, dots") for sign in " .*>/\\\t\0"),
    (STREAM, "ö" * 128, "the name of one stream of at most 255 bytes"),
    (PublishSubject(), "", "a token between the dots is empty"),
    (PublishSubject(), "a..b", "a token between the dots is empty"),
    (PublishSubject(), ".a", "a token between the dots is empty"),
    (PublishSubject(), "a.", "must be a subject without blanks and wildcards: a token between the dots is empty"),
    *((PublishSubject(), f"a{sign}b", "blanks or control characters") for sign in " \t\r\n\0\x01\x1f\x7f\ud800"),
    (PublishSubject(), "a.*.b", "there is a wildcard"),
    (PublishSubject(), "a.>", "there is a wildcard"),
    (PublishSubject(), ">", "there is a wildcard"),
    (PublishSubject(), "$JS.API.INFO", "everything below $JS belongs to the server"),
    (PublishSubject(), "$JS", "everything below $JS"),
    (PublishSubject(), "$SYS.REQ.a", "everything below $SYS"),
    (PublishSubject(), "ö" * 513, "there are 1,026 bytes, more than 1,024"),
    (Identifier(100), "", "must be 1 to 100 letters"),
    (Identifier(3), "abcd", "must be 1 to 3 letters (a to z), digits, _ and -"),
    *((Identifier(100), f"a{sign}b", "must be 1 to 100 letters") for sign in " .*>$/:\n\0ö\u0661"),
    (DELIVERY, "once", "must be at-least-once, deduplicated or exactly-once"),
    (DELIVERY, "exactly_once", "did you mean exactly-once"),
    (DELIVERY, "dedup", "did you mean deduplicated"),
    (DELIVERY, "ATLEASTONCE", "did you mean at-least-once"),
    (DELIVERY, "", "must be at-least-once, deduplicated or exactly-once"),
    (DELIVERY, "exactly-once" * 10_000, "must be at-least-once, deduplicated or exactly-once"),
    (DELIVERY, True, "must be at-least-once"),
    (Prefix(), "a.*", "without blanks"),
    (Prefix(), "", "without blanks"),
    (Prefix(tokens=1), "a.b", "a name without dots"),
    (BOTH, "first", "must be earliest, latest or JSON such as"),
    (BOTH, "", "must be earliest, latest or JSON such as"),
    (BOTH, "1001", "must be earliest, latest or JSON such as"),
    (Positions(("latest",)), "earliest", "must be latest or JSON such as"),
    (BOTH, '{"A": 1', "is not valid JSON"),
    (BOTH, "{'A': 1}", "is not valid JSON"),
    (BOTH, "[1]", "must be an object such as"),
    (BOTH, "[" * 100_000, "nested too deeply"),
    (BOTH, "{}", "names no stream"),
    (BOTH, '{"A": 1, "A": 2}', 'names "A" twice'),
    (BOTH, '{"A": 0}', 'a sequence from 1 to 2^63-1 for stream "A", not "0"'),
    (BOTH, '{"A": -1}', "a sequence from 1"),
    (BOTH, '{"A": 1.0}', "a sequence from 1"),
    (BOTH, '{"A": true}', "a sequence from 1"),
    (BOTH, '{"A": null}', "a sequence from 1"),
    (BOTH, '{"A": "1"}', "a sequence from 1"),
    (BOTH, '{"A": NaN}', "a sequence from 1"),
    (BOTH, '{"A": {"A": 1}}', "a sequence from 1"),
    (BOTH, '{"A": 9223372036854775808}', "a sequence from 1"),
    (BOTH, '{"A": ' + "9" * 10_000 + "}", "a sequence from 1"),
    (BOTH, 7, "must be text or pairs"),
    (KEYS, "a b", "must be a key, possibly with * and >: there is something else than letters"),
    (KEYS, "a.>,a.b", "which overlap"),
]


def short(value: object) -> str:
    return repr(value)[:40]


@pytest.mark.parametrize(("kind", "value", "expected"), GOOD, ids=short)
def test_what_is_read(kind: Kind, value: object, expected: object) -> None:
    found = kind.parse("theOption", value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("kind", "value", "message"), BAD, ids=short)
def test_what_is_refused(kind: Kind, value: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        kind.parse("theOption", value)
    text = str(caught.value)
    assert text.startswith("option theOption ")
    assert message in text
    assert caught.value.option == "theOption"
    assert "\n" not in text
    assert len(text) < 300
    assert caught.value.__context__ is None


def test_a_secret_is_wrapped_once() -> None:
    assert Secret().parse("token", "x") == SecretStr("x") == Secret().parse("token", SecretStr("x"))


def url_and_login(servers: str) -> None:
    Servers().parse("servers", servers)
    Servers().login("servers", servers)


@pytest.mark.parametrize(
    "servers",
    [
        "nats://user:hunter2@host:notaport",
        "nats://user:hunter2,x@host",
        "nats://user:hun,hunter2@host",
        "nats://user:hunter2@host,http://other",
        "hunter2@host",
        "nats://user:hunter2@",
        "nats://user:hun/hunter2@host",
        "nats://u:hunter2@a,,b",
        "nats://u:hunter2@a,ws://b",
        "nats://u:hunter2@a,nats://u:hunter3@b",
        "nats://:hunter2@a",
        "nats://hunter2:@a",
    ],
)
def test_a_wrong_url_with_a_password_is_not_repeated(servers: str) -> None:
    with pytest.raises(OptionError) as caught:
        url_and_login(servers)
    assert "hunter" not in str(caught.value)
    assert "user:" not in str(caught.value)


def test_user_info_is_decoded() -> None:
    login = Servers().login("servers", "nats://b%40b:p%2Cw%25@a,c")
    assert login is not None
    assert login.user == "b@b"
    assert login.password == SecretStr("p,w%")
    token = Servers().login("servers", "nats://s3cr%2Ft@a")
    assert token is not None
    assert token.token == SecretStr("s3cr/t")
    assert Servers().login("servers", "nats://a") is None
    with pytest.raises(OptionError, match="different credentials in different URLs"):
        Servers().login("servers", "nats://u:p@a,nats://v:p@b")


UNITS = {"ms": "0.001", "s": "1", "m": "60", "h": "3600", "d": "86400", " seconds": "1", " min": "60"}


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_durations_add_up(parts: list[tuple[int, str]]) -> None:
    text = " ".join(f"{number}{unit}" for number, unit in parts)
    assert duration_seconds(text) == sum((number * Fraction(UNITS[unit]) for number, unit in parts), Fraction(0))


@given(st.integers(0, 2**30), st.sampled_from(["", "k", "m", "g"]), st.sampled_from(["", "b", "ib", "B", "iB"]))
def test_sizes_are_powers_of_1024(number: int, unit: str, suffix: str) -> None:
    text = f"{number}{unit}{suffix if unit else ''}"
    assert size_bytes(text) == number * 1024 ** ["", "k", "m", "g"].index(unit)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2262, 1, 1)),  # noqa: DTZ001 - hypothesis wants bounds without a zone
    st.integers(0, 999_999_999),
    st.integers(-18 * 60, 18 * 60).filter(lambda minutes: abs(minutes) % 60 < 60),
)
def test_times_agree_with_datetime_to_the_nanosecond(moment: datetime, nanosecond: int, zone: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=zone)))
    text = moment.isoformat()
    text = f"{text[:19]}.{nanosecond:09d}{text[19:]}"
    seconds = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1)
    assert Time().parse("startingTimestamp", text) == seconds * 10**9 + nanosecond


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda name: name.isprintable() and not {*name} & {*" .*>/\\"}),
        st.integers(1, 2**63 - 1),
        min_size=1,
    )
)
def test_positions_come_back_from_json(positions: dict[str, int]) -> None:
    assert dict(BOTH.parse("startingOffsets", json.dumps(positions))) == positions


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_an_option_error(text: str) -> None:
    kinds: list[Kind] = [
        Flag(),
        Whole(1),
        DURATION,
        SIZE,
        Time(),
        Text(required=True),
        Secret(),
        Servers(),
        STREAMS,
        STREAM,
        FILTERS,
        PublishSubject(),
        Identifier(100),
        DELIVERY,
        Prefix(),
        BOTH,
    ]
    for kind in kinds:
        try:
            kind.parse("theOption", text)
        except OptionError as error:
            assert error.option == "theOption"  # noqa: PT017 - both outcomes are allowed


def matches(subject: tuple[str, ...], tokens: list[str]) -> bool:
    for index, token in enumerate(tokens):
        if token == ">":
            return len(subject) > index
        if index >= len(subject) or token not in ("*", subject[index]):
            return False
    return len(subject) == len(tokens)


TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3)
FILTER_TOKENS = st.tuples(TOKENS, st.booleans()).map(lambda pair: [*pair[0], *([">"] if pair[1] else [])])
SUBJECTS = [subject for length in range(1, 6) for subject in product("abc", repeat=length)]


@given(FILTER_TOKENS, FILTER_TOKENS)
def test_overlap_is_what_trying_all_subjects_finds(one: list[str], other: list[str]) -> None:
    assert not subject_fault(".".join(one))
    found = any(matches(subject, one) and matches(subject, other) for subject in SUBJECTS)
    assert subjects_overlap(".".join(one), ".".join(other)) is found
