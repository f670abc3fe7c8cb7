"""Texts of options to values: tables of what is read and refused."""

from __future__ import annotations

import pytest
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
from spark_jetstream.options.servers import ServerLogin, Servers, UserInfo
from spark_jetstream.options.values import (
    Choice,
    Flag,
    Kind,
    Seconds,
    Secret,
    Size,
    Text,
    Time,
    Whole,
    like_a_secret,
)

DURATION = Seconds("0s", "3650d")
SIZE = Size(0, 1 << 50)
STREAM = Name("stream", single=True)
STREAMS = CommaList(Name("stream"), "stream names")
FILTERS = CommaList(Subject(), "subject filters", apart=True)
KEYS = CommaList(KeyFilter(), "keys", apart=True)
BOTH = Positions(("earliest", "latest"))
DELIVERY = Choice(("at-least-once", "deduplicated", "exactly-once"))
NOON = 1_772_366_400_000_000_000  # 2026-03-01T12:00:00Z

GOOD: list[tuple[Kind, list[tuple[object, object]]]] = [
    (Flag(), [("true", True), (" FALSE ", False), (True, True)]),
    (Whole(1), [("1", 1), (" 9223372036854775807 ", 2**63 - 1)]),
    (Whole(0), [("+0", 0)]),
    (
        DURATION,
        [
            ("500ms", 0.5),
            ("250us", 0.00025),
            ("10s", 10.0),
            ("5m", 300.0),
            ("2h", 7200.0),
            ("1d", 86400.0),
        ],
    ),
    (
        DURATION,
        [
            ("2w", 1209600.0),
            ("1y", 365 * 86400.0),
            ("2 Years 1W", 737 * 86400.0),
            ("1H30MIN", 5400.0),
        ],
    ),
    (
        DURATION,
        [
            ("10 seconds", 10.0),
            ("1 minute", 60.0),
            ("5 Minutes", 300.0),
            ("3 min", 180.0),
            ("1m 30s", 90.0),
        ],
    ),
    (
        DURATION,
        [
            ("1h30m", 5400.0),
            ("1 hour 2 minutes 3 seconds", 3723.0),
            ("1.5s", 1.5),
            ("0.1s", 0.1),
            (2.5, 2.5),
        ],
    ),
    (
        SIZE,
        [
            ("65536", 65536),
            ("512k", 512 * 1024),
            ("8m", 8 << 20),
            ("8mb", 8 << 20),
            ("8MiB", 8 << 20),
        ],
    ),
    (SIZE, [("8 MB", 8 << 20), ("1g", 1 << 30), ("2T", 2 << 40), ("7b", 7), (1024, 1024)]),
    (
        Time(),
        [
            ("2026-03-01T12:00:00Z", NOON),
            ("2026-03-01t12:00:00z", NOON),
            ("2026-03-01 12:00Z", NOON),
        ],
    ),
    (Time(), [("2026-03-01T12:00:00 UTC", NOON), ("2026-03-01T13:00:00+01:00", NOON)]),
    (Time(), [("2026-03-01T13:30:00+0130", NOON), ("2026-03-01T07:00:00-05", NOON)]),
    (
        Time(),
        [
            ("2026-03-01T12:00:00.1Z", NOON + 10**8),
            ("2026-03-01T12:00:00,123456789Z", NOON + 123_456_789),
        ],
    ),
    (
        Time(),
        [
            ("1970-01-01T00:00:00Z", 0),
            ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
            ("1772366400000", NOON),
        ],
    ),
    (Time(), [("2026-03-01T12:00:00.000000001Z", NOON + 1), ("0", 0), (5, 5)]),
    (Text(required=True), [(" as it is ", " as it is ")]),
    (Secret(), [("x", SecretStr("x")), (SecretStr("x"), SecretStr("x"))]),
    (Servers(), [("nats://a:4222", ("nats://a:4222",))]),
    (Servers(), [("a, TLS://b:1/ ,[::1]:4222", ("nats://a", "tls://b:1", "nats://[::1]:4222"))]),
    (Servers(), [("wss://h/nats,WSS://h:80", ("wss://h/nats", "wss://h:80"))]),
    (Servers(), [(f"a.{'b' * 63}.c-d_e.:1", (f"nats://a.{'b' * 63}.c-d_e.:1",))]),
    (
        Servers(),
        [
            ("nats://u:p@a,nats://u:p@b:1", ("nats://a", "nats://b:1")),
            (("nats://a",), ("nats://a",)),
        ],
    ),
    (STREAMS, [("ORDERS", ("ORDERS",)), (" B , A,größe", ("B", "A", "größe"))]),
    (FILTERS, [("a.*.c, b.>", ("a.*.c", "b.>")), ("größe.$x", ("größe.$x",))]),
    (STREAM, [(" ORDERS ", "ORDERS"), ("größe", "größe"), ("ö" * 127, "ö" * 127)]),
    (
        PublishSubject(),
        [
            (" orders.eu.de ", "orders.eu.de"),
            ("a,b", "a,b"),
            ("größe.a*b.>>.**", "größe.a*b.>>.**"),
        ],
    ),
    (
        PublishSubject(),
        [("$KV.prices.tea", "$KV.prices.tea"), ("$JSON.a", "$JSON.a"), ("a.$JS.b", "a.$JS.b")],
    ),
    (PublishSubject(), [("x" * 1024, "x" * 1024)]),
    (Identifier(100), [(" 2026-03-01_Load ", "2026-03-01_Load")]),
    (Identifier(3), [("-_9", "-_9")]),
    (DELIVERY, [(" Exactly-ONCE ", "exactly-once"), ("at-least-once", "at-least-once")]),
    (Prefix(), [("$JS.hub.API.", "$JS.hub.API")]),
    (Prefix(tokens=1), [("hub", "hub")]),
    (
        BOTH,
        [
            ("Earliest", "earliest"),
            (" latest ", "latest"),
            ('{"B": 7, "A": 1}', (("A", 1), ("B", 7))),
        ],
    ),
    (BOTH, [({"A": 1}, (("A", 1),)), ((("A", 1),), (("A", 1),))]),
]

BAD: list[tuple[Kind, str, list[object]]] = [
    (Flag(), "must be true or false", ["yes", "1", ""]),
    (Whole(1, 5000), 'must be a whole number from 1 to 5,000, not "0"', ["0"]),
    (Whole(1, 5000), "from 1 to 5,000", ["5001"]),
    (Whole(1), "from 1 to 2^63-1", ["9223372036854775808"]),
    (Whole(1), "a whole number", ["9" * 5000, "1.0", "1e3", "\u0661", "1_000", "", True]),
    (Seconds("1s", "10m"), "must be a duration from 1s to 10m", ["10", "999ms", "601s"]),
    (
        DURATION,
        "a duration",
        ["-1s", "1 fortnight", "s", "1s,2s", "soon", "", "1e3s", float("inf"), True],
    ),
    (
        DURATION,
        "M could mean minutes, or months as in the nats command; write 6m for minutes, and",
        ["6M"],
    ),
    (DURATION, "write 1.5m for minutes, and days instead of months, such as 45d", ["1y 1.5 M"]),
    (DURATION, "such as 0.3d", ["0.01M"]),
    (Size(64 << 10, 512 << 20), "must be a size from 64k to 512m", ["65535", "513m"]),
    (SIZE, "a size", ["1.5g", "-1", "1x", "1ki", "", True]),
    (Time(), "a time with its zone", ["2026-03-01T12:00:00", "2026-03-01 12:00", "2026-03-01"]),
    (
        Time(),
        "must be a time such as",
        ["2026-02-30T12:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T12:60:00Z"],
    ),
    (
        Time(),
        "must be a time such as",
        ["2026-03-01T12:00:60Z", "2026-03-01T12:00:00+19:00", "2026-03-01Z"],
    ),
    (Time(), "must be a time such as", ["2026-03-01T12:00:00 Europe/Berlin", "yesterday", ""]),
    (Time(), "at most nine digits", ["2026-03-01T12:00:00.1234567891Z"]),
    (Time(), "is this seconds?", ["1772366400", "2026"]),
    (
        Time(),
        "between 1970 and 2262",
        ["-1", "1969-12-31T23:59:59Z", "2262-04-11T23:47:16.854775808Z", f"{NOON}"],
    ),
    (Text(required=True), "must not be empty", [" "]),
    (Secret(), "must not be empty", [""]),
    (Servers(), "holds an empty element", ["", "a,,b"]),
    (Servers(), "the scheme is not one of", ["http://a"]),
    (
        Servers(),
        "the host is missing or malformed",
        ["nats://", "nats://a b", "nats://a..b", "nats://.a", "nats://."],
    ),
    (Servers(), "the host is missing or malformed", [f"nats://a.{'b' * 64}.c"]),
    (
        Servers(),
        "the port is not a number",
        ["nats://a:0", "nats://a:65536", "nats://a:", "nats://a:4222:1"],
    ),
    (Servers(), "the port is not a number", ["nats://u:p/w@a"]),
    (Servers(), "in which the", ["nats://[::1"]),
    (Servers(), "not an IPv6 address", ["nats://[1.2.3.4]"]),
    (Servers(), "a path follows the host", ["nats://a/path"]),
    (Servers(), "a scheme is missing before the user", ["token@a", "nats://a,u:p@b"]),
    (Servers(), "follow the host", ["ws://a/p?q=1"]),
    (Servers(), "mixes", ["nats://a,ws://b"]),
    (Servers(), "must be a comma list", [7]),
    (STREAMS, "must not be empty", [""]),
    (STREAMS, "holds an empty element", ["A,"]),
    (STREAMS, 'names "A" twice', ["A,A"]),
    (STREAMS, "without blanks, dots", [f"A{sign}B" for sign in " .*>/\\\t\0"]),
    (STREAMS, "the name of a stream of at most 255 bytes", ["ö" * 128]),
    (FILTERS, "must not be empty", [""]),
    (FILTERS, "a token between the dots is empty", ["a..b", ".a", "a."]),
    (FILTERS, "> is not the last token", ["a.>.b"]),
    (FILTERS, "not a token of its own", ["a.b*", "a.>>"]),
    (FILTERS, "there are blanks", ["a b"]),
    (FILTERS, '"a.*" and "*.b", which overlap', ["a.*,*.b"]),
    (FILTERS, 'names "a" twice', ["a,a"]),
    (FILTERS, '"a.b" and ">", which overlap', ["a.b,>"]),
    (STREAM, "must be the name of one stream", [" "]),
    (STREAM, "must name one stream, not a list", ["A, B", "A,"]),
    (STREAM, "without blanks, dots", [f"A{sign}B" for sign in " .*>/\\\t\0"]),
    (STREAM, "the name of one stream of at most 255 bytes", ["ö" * 128]),
    (PublishSubject(), "a token between the dots is empty", ["", "a..b", ".a"]),
    (
        PublishSubject(),
        'must be a subject without blanks and wildcards, not "a.": a token between the dots is '
        "empty",
        ["a."],
    ),
    (
        PublishSubject(),
        "blanks or control characters",
        [f"a{sign}b" for sign in " \t\r\n\0\x01\x1f\x7f\ud800"],
    ),
    (PublishSubject(), "there is a wildcard", ["a.*.b", "a.>", ">"]),
    (PublishSubject(), "everything below $JS belongs to the server", ["$JS.API.INFO", "$JS"]),
    (PublishSubject(), "everything below $SYS", ["$SYS.REQ.a"]),
    (PublishSubject(), "there are 1,026 bytes, more than 1,024", ["ö" * 513]),
    (Identifier(3), "must be 1 to 3 letters (a to z), digits, _ and -", ["abcd"]),
    (
        Identifier(100),
        "must be 1 to 100 letters",
        ["", *(f"a{sign}b" for sign in " .*>$/:\n\0ö\u0661")],
    ),
    (
        DELIVERY,
        "must be at-least-once, deduplicated or exactly-once",
        ["once", "", "exactly-once" * 10_000, True],
    ),
    (DELIVERY, "did you mean exactly-once", ["exactly_once"]),
    (DELIVERY, "did you mean deduplicated", ["dedup"]),
    (DELIVERY, "did you mean at-least-once", ["ATLEASTONCE"]),
    (Prefix(), "without blanks", ["a.*", ""]),
    (Prefix(tokens=1), "a name without dots", ["a.b"]),
    (BOTH, "must be earliest, latest or JSON such as", ["first", "", "1001"]),
    (Positions(("latest",)), "must be latest or JSON such as", ["earliest"]),
    (BOTH, "is not valid JSON", ['{"A": 1', "{'A': 1}"]),
    (BOTH, "must be an object such as", ["[1]"]),
    (BOTH, "nested too deeply", ["[" * 100_000]),
    (BOTH, "names no stream", ["{}"]),
    (BOTH, 'names "A" twice', ['{"A": 1, "A": 2}']),
    (BOTH, 'a sequence from 1 to 2^63-1 for stream "A", not "0"', ['{"A": 0}']),
    (BOTH, "a sequence from 1", [f'{{"A": {n}}}' for n in (-1, 1.0, "true", "null", '"1"', "NaN")]),
    (
        BOTH,
        'gives "A" partitions: a stream has one sequence, and no partitions',
        ['{"A": {"A": 1}}', '{"A": {}}'],
    ),
    (BOTH, "a sequence from 1", [f'{{"A": {n}}}' for n in (2**63, "9" * 10_000)]),
    (BOTH, "must be text or pairs", [7]),
    (KEYS, 'must be a key, possibly with * and >, not "a b": a character is not a letter', ["a b"]),
    (KEYS, "> is not the last token", ["a.>.b"]),
    (KEYS, "which overlap", ["a.>,a.b"]),
]


def short(value: object) -> str:
    return repr(value)[:40]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [(kind, *pair) for kind, pairs in GOOD for pair in pairs],
    ids=short,
)
def test_a_value_is_parsed_to_the_type_of_its_option(
    kind: Kind, value: object, expected: object
) -> None:
    parsed = kind.parse("theOption", value)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("kind", "message", "value"),
    [(kind, text, value) for kind, text, values in BAD for value in values],
    ids=short,
)
def test_a_wrong_value_is_an_error_that_names_the_option(
    kind: Kind, message: str, value: object
) -> None:
    with pytest.raises(OptionError) as caught:
        kind.parse("theOption", value)
    text = str(caught.value)
    assert text.startswith("option theOption ")
    assert message in text
    assert caught.value.option == "theOption"
    assert "\n" not in text
    assert len(text) < 300
    assert caught.value.__context__ is None


def test_user_info_is_decoded() -> None:
    assert ServerLogin().parse("servers", "nats://b%40b:p%2Cw%25@a,c") == UserInfo(
        "b@b", SecretStr("p,w%"), None
    )
    assert ServerLogin().parse("servers", "nats://s3cr%2Ft@a") == UserInfo(
        None, None, SecretStr("s3cr/t")
    )
    assert ServerLogin().parse("servers", "nats://a") is None
    for servers, problem in (
        ("nats://u:p@a,nats://v:p@b", "different credentials in different URLs"),
        *(
            (f"nats://{login}@a", "the user or the password before the @ is empty")
            for login in (":p", "u:", "")
        ),
    ):
        with pytest.raises(OptionError, match=problem):
            ServerLogin().parse("servers", servers)


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("nats://a:1,http://b:80/c?d=e#f", 'URL number 2 ("http://b:80"), in which the scheme'),
        ("nats://me:pw@a,tls://me:pw@b:0", 'URL number 2 ("tls://b:0"), in which the port'),
        ("nats://me:p@w@a:99999", 'URL number 1 ("nats://a:99999"), in which'),
        ("nats://[1.2.3.4]:4222", 'URL number 1 ("nats://[1.2.3.4]:4222"), in which the address'),
        ("a b:4222", 'URL number 1 ("a b:4222"), in which the host'),
        # Letters in the place of a port may be a password whose host was forgotten.
        ("nats://me:pw", 'URL number 1 ("nats://me"), in which the port'),
        # A comma has cut a password in two.
        ("nats://me:pw1,pw2@a", "URL number 1, in which the port"),
        ("me:pw1,nats://me:pw@a", "URL number 1, in which the port"),
        ("nats://me:pw@", "URL number 1, in which the host is missing"),
        (f"nats://SU{'A' * 56}_:x", "URL number 1, in which"),
    ],
)
def test_an_error_names_a_wrong_url_without_its_login(servers: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        Servers().parse("servers", servers)
    assert said in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (f"SU{'A' * 56}", True),
        (f"/run/SA{'2' * 30}", True),
        ("eyJ0eXAiOiJKV1QifQ.x", True),
        ("-----BEGIN PRIVATE KEY-----", True),
        ("me:x@host", True),
        ("Password = x", True),
        ('{"token": "x"}', True),
        ("authorization: basic x", True),
        ("/run/secrets/nats.creds", False),
        ("SUBSCRIPTIONS", False),
        ("tokens.*.new", False),
        ("10 MBs", False),
    ],
)
def test_texts_that_look_like_secrets_are_known(text: str, is_one: bool) -> None:
    assert like_a_secret(text) is is_one
    with pytest.raises(OptionError) as caught:
        Whole(1).parse("theOption", text)
    assert (f'not "{text}"' in str(caught.value)) is not is_one
