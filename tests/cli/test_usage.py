"""Command lines that cannot be: one line on standard error, the exit code, and nothing that
changes.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, refused
from tests.support.publish import Message, Publisher

WRONG = [
    (
        "account inof",
        "No such command 'inof'. Did you mean 'info'? (see spark-jetstream account --help)",
    ),
    ("account info -o conectTimeout=2s", "did you mean connectTimeout"),
    ("account info -o connectTimeout", "name=value"),
    ("stream info", "Missing argument 'stream' (see spark-jetstream stream info --help)"),
    ("stream info A --jsn", "No such option: --jsn"),
    ("stream info 'a\x1b[31m\tb'", r"without blanks, dots, *, >, / or \, not "),
    ("stream purge USAGE --subject '' --force", "subject"),
    ("stream edit USAGE", "nothing to change was given"),
    (
        "stream edit USAGE --unset max_msg",
        '--unset: there is no field "max_msg" (did you mean max_msgs?)',
    ),
    (
        "stream edit USAGE --unset max-age --max-age 1h",
        "--max-age and --unset max_age cannot be given together",
    ),
    (
        "stream edit USAGE --max-age 30s --duplicate-window 1m",
        "duplicate_window (1m) is longer than max_age (30s)",
    ),
    ("stream export USAGE --yaml --json", "--yaml and --json contradict each other"),
    ("stream apply {json} {json}", "is described in"),
    ("stream backup USAGE {json}", "exists already"),
    # Files
    ("stream apply {misspelt} --check", 'there is no field "max_ages" (did you mean max_age?)'),
    (
        "stream add NEW --template {misspelt}",
        'there is no field "max_ages" (did you mean max_age?)',
    ),
    ("stream apply {tmp}/gone.json --check", "gone.json: the file cannot be read"),
    (
        "schema validate {tmp}/gone.json",
        "gone.json: the file cannot be read: No such file or directory",
    ),
    # Which message?
    (
        "stream get USAGE",
        "which message? Give a sequence, --last, --next, or --from, --since, --subject, --count",
    ),
    (f"stream get USAGE --count {sys.maxsize + 1}", f"less than or equal to {sys.maxsize}"),
    ("stream get USAGE 1 --last a", "SEQUENCE and --last contradict each other"),
    (
        "stream get USAGE --since 2026-03-01T12:00:00Z --from 1",
        "--since and --from contradict each other",
    ),
    ("stream get USAGE 1 --raw --json", "--raw and --json contradict each other"),
    ("stream get USAGE --next ''", "subject must be a subject"),
    (
        "stream view USAGE --since 2026-03-01T12:00:00Z --from 1",
        "--since and --from contradict each other",
    ),
    ("stream view USAGE --raw --json", "--raw and --json contradict each other"),
    # Core NATS
    ("sub 'a b'", 'subject must be a subject, possibly with * and >, not "a b": there are blanks'),
    ("sub usage --queue 'a b'", "queue must be the name of a queue group, without blanks"),
    ("sub usage --raw --json", "--raw and --json contradict each other"),
    ("sub usage --raw --headers-only", "--raw and --headers-only contradict each other"),
    ("request 'usage.*' x", "subject must be a subject without * and >"),
    ("request usage x -H nothing", "nothing is not 'Name: value'"),
    ("request usage x -H 'b c: d'", 'header "b c" is not possible'),
    ("request usage {{{{Nothing}}}}", "the data: there is no template {{Nothing}}"),
    ("reply usage x --echo", "DATA and --echo contradict each other"),
    # What an option of a field can hold.
    (
        "stream add NEW --mirror nam=X",
        "--mirror must be JSON, or field=value,... with the fields name, opt_start_seq",
    ),
    ("""stream add NEW --mirror '{{"name"'""", "--mirror: this is not valid JSON"),
    (
        """stream add NEW --mirror '{{"nam": "X"}}'""",
        'in mirror, there is no field "nam" (did you mean name?)',
    ),
    ("stream add NEW --mirror name=A,name=B", "--mirror: name appears twice"),
    (
        "stream add NEW --placement north",
        "must be JSON, or field=value,... with the fields cluster, tags",
    ),
    ("stream add NEW --subjects ''", '--subjects: "" has an empty item'),
    ("stream add NEW --metadata owner", '--metadata: "owner" is not name=value'),
    ("stream add NEW --metadata a=1 --metadata a=2", "--metadata: a name appears twice"),
    (
        "stream add NEW --retention queue",
        'retention must be limits, interest or workqueue, not "queue"',
    ),
    # Consumers
    ("consumer edit USAGE billing", "say what to change"),
    (
        "consumer pause USAGE billing soon",
        'or a duration such as 10m that ends before that, not "soon"',
    ),
    ("consumer pause USAGE billing 300y", "until must be a time before 2262-04-11 such as"),
    ("consumer next USAGE billing --count 1001", "--count"),
    (
        "consumer next USAGE billing --wait 5",
        "Invalid value for '--wait': \"5\" is not a duration such as 10s",
    ),
    (
        "consumer next USAGE billing --wait 300y",
        "is not a duration such as 10s or 1h30m, up to 100y",
    ),
    (
        "consumer next USAGE billing --ack yes",
        "for '--ack': 'yes' is not one of 'ack', 'nak', 'term', 'none'",
    ),
    ("consumer next USAGE billing --ack nak --no-ack", "contradict each other"),
    ("consumer next USAGE billing --raw --json", "contradict each other"),
    # Buckets
    ("kv get usage a --revision 0", "--revision"),
    ("kv get usage a --raw --json", "--raw and --json contradict each other"),
    ("kv update usage a x", "--revision"),
    (f"kv watch usage --count {sys.maxsize + 1}", f"less than or equal to {sys.maxsize}"),
    ("kv edit usage", "say what to change"),
    ("object put usage -", "an object from standard input needs a name"),
    ("object put usage {json} -H nothing --force", "nothing is not 'Name: value'"),
    ("object put usage {json} --metadata nothing --force", "nothing is not name=value"),
    ("object put usage {json} --chunk-size much --force", '"much" is not a size such as 64k'),
    ("object get usage a/..", "cannot be the name of a file"),
    ("object get usage a -O - --json", "standard output cannot hold the content and JSON"),
    ("object describe usage a", "say what to change"),
    # Lag, events, bench, doctor
    ("lag --consumer half", "lag STREAM --consumer half"),
    ("lag USAGE --max-pending -1", "--max-pending"),
    ("lag --watch --every 101y", "up to 100y"),
    ("lag USAGE --watch --every 1ms", "1ms is less than 100ms"),
    ("events --for 0", "longer than 0"),
    ("events --count 0", "--count"),
    ("bench --replicas 9", "--replicas"),
    ("bench --storage tape", "--storage"),
    ("doctor --no-spark --stream A --bucket b", "exclude each other"),
    ("doctor --no-spark --stream A --for reed", "did you mean read"),
    ("doctor --no-spark --stream A --for write", "--subject"),
    ("doctor --no-spark --bucket b --durable d", "--for durable has no meaning for a bucket"),
    ("doctor --no-spark --for read", "--stream"),
    ("doctor --no-spark -o conectTimeout=1s", "connectTimeout"),
    ("demo --messages 0", "--messages"),
    # There is nobody to answer.
    (
        "stream purge USAGE",
        "messages of stream USAGE? There is no terminal to ask on: say yes with --force.",
    ),
    ("stream rm USAGE", "Delete stream USAGE with 1 message and 1 consumer?"),
    ("stream delete-msg USAGE 1", "Delete message 1 of stream USAGE?"),
    (
        "stream peer-remove USAGE somebody",
        "Remove server somebody, and its copy, from stream USAGE?",
    ),
    ("stream cancel-move USAGE", "Take back the change of stream USAGE that is under way?"),
    (
        "consumer rm USAGE billing",
        "Delete consumer billing of stream USAGE, which has 1 message to process?",
    ),
    ("kv rm usage", "Delete bucket usage with 1 revision?"),
    ("kv purge usage a", "Purge key a of bucket usage, with its history?"),
    ("kv compact usage", "Remove the marks of deleted keys from bucket usage, with their history?"),
    ("object rm usage", "Delete bucket usage with "),
    ("object rm usage a", "Delete object a of bucket usage?"),
    ("object seal usage", "Seal bucket usage? That cannot be undone."),
    ("object put usage {json} --name a", "Replace object a of bucket usage?"),
    ("object get usage a -O {json}", "Replace the file "),
]
"""Lines that end with 2."""

FAILS = [
    (
        "stream info USAEG",
        "cannot look at stream USAEG: stream not found (code 404, error 10059); did you mean USAGE",
    ),
    ("stream get USAGE --last usage.none", "cannot get the last usage.none of stream USAGE"),
    (
        "stream delete-msg USAGE 2 --force",
        "cannot erase message 2 of stream USAGE: the message does not exist",
    ),
    ("stream peer-remove USAGE somebody --force", "10010"),
    (
        "stream peer-remove USAGE somebody --evacuate --force",
        "server somebody from stream USAGE: JetStream cluster",
    ),
    (
        "stream cancel-move USAGE --force",
        "cancel the change of stream USAGE: JetStream clustering support required",
    ),
    ("stream restore {tmp}/nowhere", "cannot read the backup"),
    ("consumer add NOWHERE c", "consumer c of stream NOWHERE: stream not found"),
    (
        "consumer pause USAGE billing 2020-01-01T00:00:00Z",
        "that is past by the server's clock; nothing was changed",
    ),
    ("consumer step-down USAGE d", "consumer d of stream USAGE"),
    ("kv put none a x", "there is no Key-Value bucket none"),
    ("object rm none --force", "there is no Object Store bucket none"),
    ("object get usage a -O {tmp}/no/file", "file"),
    ("lag USAGE --consumer gone", "consumer gone of stream USAGE: consumer not found"),
]
"""Lines that end with 1, and print nothing."""

_MONTHS = (
    "M could mean minutes, or months as in the nats command; write 6m for minutes, and days "
    "instead of months"
)
LONG_MINUTES = [
    "stream edit USAGE --max-age 6M --force",
    "stream apply {yaml} --force",
    "consumer pause USAGE billing 6M",
    "consumer next USAGE billing --wait 6M",
    "stream ls --timeout 6M",
]
"""The unit ``M``: six minutes to one tool, 180 days to the other. No command takes it."""

NO_SERVER = [
    "account info",
    "stream apply {json} --check",
    "object ls",
    "object put B {json} --force",
    "object get B a -O -",
    "object rm B a --force",
    "events",
    "sub a",
    "request a",
]
"""Lines that end with 3 without a second attempt to connect."""


@pytest.fixture(scope="module", autouse=True)
def there(nats_server: NatsServer, publisher: Publisher) -> Iterator[None]:
    """Make a stream with a message and a consumer, and two buckets with one value each.

    No line may change any of them.
    """
    with JetStreamAdmin(servers=nats_server.url) as admin:
        admin.streams.create(
            name="USAGE", subjects=["usage.>", "c.>"], max_age="10m", allow_direct=True
        )
        admin.consumers.create("USAGE", durable_name="billing", ack_policy="explicit")
        publisher.publish([Message("usage.a", b"kept")])
        admin.kv.create("usage", storage="memory")
        admin.kv.bucket("usage").put("a", b"x")
        admin.objects.create("usage", storage="memory")
        admin.objects.bucket("usage").put("a", b"x")
        before = state(admin)
        yield
        assert state(admin) == before
        admin.streams.delete("USAGE")
        admin.kv.delete("usage")
        admin.objects.delete("usage")


@pytest.fixture
def words(tmp_path: Path) -> Any:
    """A function that returns the words of a line.

    ``{json}`` and ``{yaml}`` are descriptions of the stream.
    """
    texts = {
        "json": '{"name": "USAGE", "subjects": ["usage.>"]}',
        "yaml": "name: USAGE\nsubjects: ['usage.>']\nmax_age: 6M\n",
        "misspelt": "name: NEW\nmax_ages: 1h\n",
    }
    files = {"tmp": tmp_path, **{name: tmp_path / f"{name}.yaml" for name in texts}}
    for name, text in texts.items():
        files[name].write_text(text)
    return lambda line: [word.format(**files) for word in shlex.split(line)]


def state(admin: JetStreamAdmin) -> Any:
    names = sorted(name for name in admin.streams.names() if re.search("USAGE|usage|NEW|new", name))
    streams = [(info.config, info.state.last_seq) for info in map(admin.streams.load, names)]
    return streams, [(info.config, info.delivered) for info in admin.consumers.infos("USAGE")]


@pytest.mark.parametrize(
    ("code", "line", "text"),
    [
        *((2, *case) for case in WRONG),
        *((1, *case) for case in FAILS),
        *((2, line, _MONTHS) for line in LONG_MINUTES),
    ],
)
def test_a_line_says_what_is_wrong_and_nothing_is_changed(
    code: int, line: str, text: str, words: Any, run: Command
) -> None:
    ran = run(*words(line), **({"url": None} if line.startswith("demo") else {}))
    refused(ran, code, text)
    assert ran.err.startswith("spark-jetstream: ")


@pytest.mark.parametrize("line", NO_SERVER)
def test_a_command_without_a_server_fails_at_its_first_attempt(
    line: str, words: Any, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pause(_: Backoff, deadline: Deadline) -> None:
        raise AssertionError("the command waits for a server that it has not reached")

    monkeypatch.setattr(Backoff, "pause", no_pause)
    # A second attempt would wait for 5 minutes. localhost may have two addresses.
    ran = run(*words(line), "-o", "connectTimeout=5m", url="nats://127.0.0.1:1,nats://localhost:2")
    refused(
        ran, 3, "spark-jetstream: no NATS server could be reached at ", "connection was refused"
    )
