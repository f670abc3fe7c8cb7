"""What all commands have in common: where connection options may stand, output, exit codes, completion."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from spark_jetstream.cli.main import app
from spark_jetstream.cli.output import Output
from spark_jetstream.testing import NatsServer
from tests.support.command import run_command, succeed


def test_connection_options_stand_before_and_behind_the_command(nats_server: NatsServer) -> None:
    url = nats_server.url
    before = succeed("--server", url, "--json", "account", "info").json
    behind = succeed("account", "info", "--server", url, "--json").json
    assert before["limits"] == behind["limits"]
    # The nearer one wins.
    assert succeed("--server", "nats://127.0.0.1:1", "account", "info", "-s", url).code == 0


def test_a_context_and_a_variable_say_where_to_connect(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = tmp_path / "config" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "here.json").write_text(json.dumps({"url": nats_server.url}))
    assert succeed("account", "info", "--context", "here").code == 0
    monkeypatch.setenv("NATS_URL", nats_server.url)
    assert succeed("account", "info").code == 0
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert succeed("account", "info", "--context", "here").code == 0


def test_any_other_option_has_a_way_in(nats_server: NatsServer) -> None:
    assert succeed("account", "info", "-o", "connectTimeout=2s", "-o", "retryTimeout=1s", url=nats_server.url).code == 0
    ran = run_command("account", "info", "-o", "conectTimeout=2s", url=nats_server.url)
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean connectTimeout" in ran.err
    ran = run_command("account", "info", "-o", "connectTimeout", url=nats_server.url)
    assert ran.code == 2
    assert "name=value" in ran.err


def test_exit_codes(nats_server: NatsServer) -> None:
    """Wrong usage is 2, and a server that is not there is 3."""
    assert run_command("account", "inof", url=nats_server.url).code == 2
    ran = run_command("account", "info", "-o", "connectTimeout=500ms", url="nats://127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("spark-jetstream: no NATS server could be reached")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from spark_jetstream.cli.main import main; main()", "--show-completion", shell],
        # Else typer takes the shell that started all this, if it finds one.
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0
    assert "COMPLETE" in ran.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("account inof", "No such command 'inof'. Did you mean 'info'? (see spark-jetstream account --help)"),
        ("stream info", "Missing argument 'stream' (see spark-jetstream stream info --help)"),
        ("stream info A --jsn", "No such option: --jsn"),
        (
            "consumer next A B --wait 1",
            "Invalid value for '--wait': \"1\" is no duration such as 10s, 5m or 1h30m (see",
        ),
        ("stream get A", "which message? Give a sequence, --last, --next, or --from, --since, --subject, --count\n"),
        ("stream purge A", "Remove all messages of stream A? There is no terminal to ask on: say yes with --force.\n"),
        (
            "stream info a\x1b[31m\tb",
            'stream must be the name of a stream, without blanks, dots, *, >, / or \\, not "a',
        ),
    ],
)
def test_wrong_usage_is_one_line_whatever_is_wrong(line: str, said: str, nats_server: NatsServer) -> None:
    ran = run_command(*line.split(" "), url=nats_server.url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"spark-jetstream: {said}")
    assert ran.err.count("\n") == 1
    assert ran.err.removesuffix("\n").isprintable()


def test_a_group_alone_shows_its_help() -> None:
    ran = run_command("stream")
    assert (ran.code, ran.err) == (2, "")
    assert "delete-msg" in ran.out


def test_output_that_cannot_be_written_is_one_line() -> None:
    """As with a disk that is full."""
    with open(os.devnull, "rb") as unwritable:
        ran = subprocess.run(
            [sys.executable, "-m", "spark_jetstream", "doctor", "--no-spark", "-s", "nats://127.0.0.1:1"],
            stdout=unwritable,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "spark-jetstream: [Errno 9] Bad file descriptor\n")


def test_refused_credentials_are_one_line(nats_server_factory: Callable[..., NatsServer]) -> None:
    """Nothing else comes from the libraries, neither then nor when the process ends."""
    server = nats_server_factory(config='authorization { user: ann, password: "right" }')
    ran = subprocess.run(
        [sys.executable, "-m", "spark_jetstream", "account", "info", "-s", server.url],
        env={**os.environ, "NATS_USER": "ann", "NATS_PASSWORD": "wrong"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith(f"spark-jetstream: the NATS server at {server.url} refused the credentials")
    assert ran.stderr.count("\n") == 1


def ascii_output(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What comes to a standard output, from now on, that can write no more than ASCII."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    return written


def test_tables_are_never_cut_and_obey_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ascii_output(monkeypatch)
    columns = {"a": lambda each: each, "b": len, "": lambda each: ""}
    Output(as_json=False).table(["x" * 30_000, "\u65e5\x1b[2J"], columns, data=str, empty="")
    heading, first, second, end = written.getvalue().decode().split("\n")
    assert heading.split() == ["a", "b"]
    assert first.split() == ["x" * 30_000, "30,000"]
    assert second.split() == [r"\u65e5\x1b[2J", "5"]
    assert end == ""
    assert all(line == line.rstrip() for line in (heading, first, second))


def test_json_is_utf_8_wherever_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ascii_output(monkeypatch)
    Output(as_json=True).record({}, data={"subject": "\u65e5.\x07"})
    assert json.loads(written.getvalue().decode("utf-8")) == {"subject": "\u65e5.\x07"}


class _Keyboard(io.StringIO):
    """Where somebody types Ctrl-C, or the end of the input."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]  # of the base class of all files
        raise self.error


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_a_question_that_nobody_answers(error: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Keyboard(error))
    with pytest.raises(typer.Exit) as ended:
        Output(as_json=False).confirm("Really?", force=False)
    assert ended.value.exit_code == code


@pytest.mark.parametrize(
    ("line", "said"),
    [("doctor --for ex", ["exactly-once"]), ("stream info -o wrong A", []), ("stream info --context nowhere A", [])],
)
def test_what_completes_a_word_never_complains(line: str, said: list[str]) -> None:
    words = ["spark-jetstream", *line.split()]
    shell = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    asked = {"_SPARK_JETSTREAM_COMPLETE": "complete_bash", **shell}
    ran = CliRunner().invoke(app, prog_name=words[0], env=asked)
    assert (ran.exit_code, ran.output.split()) == (0, said)
