"""Commands for a stream or bucket that does not exist: the error names the one that may be meant."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, refused
from tests.support.command import run_command


@pytest.fixture(scope="module")
def run() -> Iterator[Command]:
    """Commands for a server with one stream, and one bucket of each kind."""
    with NatsServer() as server:
        with JetStreamAdmin(servers=server.url) as admin:
            admin.streams.create(name="ORDERS", subjects=["orders.>"])
            admin.kv.create("prices")
            admin.objects.create("files")
        yield partial(run_command, url=server.url)


OF_STREAMS = """
stream info ORDRES
stream subjects ORDRES
stream get ORDRES 1
stream delete-msg ORDRES 1 --force
stream purge ORDRES --force
stream rm ORDRES --force
stream edit ORDRES --max-age 1h --force
stream backup ORDRES {tmp}/backup
stream copy ORDRES COPY
stream export ORDRES
stream seal ORDRES --force
consumer ls ORDRES
consumer info ORDRES c
consumer next ORDRES c
consumer add ORDRES c
consumer rm ORDRES c --force
consumer edit ORDRES c --max-deliver 5 --force
dead-letters ls ORDRES
lag ORDRES
"""
OF_KEYS = """
kv ls PRIZES
kv info PRIZES
kv get PRIZES a
kv put PRIZES a b
kv rm PRIZES --force
kv watch PRIZES
"""
OF_OBJECTS = """
object ls filez
object info filez
object get filez a -O -
object put filez {file} --force
object rm filez --force
"""
MEANT = {"ORDERS": OF_STREAMS, "prices": OF_KEYS, "files": OF_OBJECTS}
OTHERS = {
    "stream info prices": "; prices is a Key-Value bucket\n",
    "consumer ls files": "; files is an Object Store bucket\n",
    "kv ls ORDERS": "; ORDERS is a stream\n",
    "kv put ORDERS a b": "; ORDERS is a stream\n",
    "kv ls KV_prices": "; did you mean prices\n",
    "kv ls files": "; files is an Object Store bucket\n",
    "kv ls OBJ_files": "; files is an Object Store bucket\n",
    "object ls prices": "; prices is a Key-Value bucket\n",
}


@pytest.mark.parametrize(
    ("line", "meant"),
    [(line, meant) for meant, lines in MEANT.items() for line in lines.strip().splitlines()],
)
def test_a_command_names_what_was_meant(
    run: Command, tmp_path: Path, line: str, meant: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    refused(run(*line.format(tmp=tmp_path, file=file).split()), 1, f"; did you mean {meant}\n")


@pytest.mark.parametrize("line", OTHERS)
def test_a_command_says_what_a_name_of_another_kind_is(run: Command, line: str) -> None:
    refused(run(*line.split()), 1, OTHERS[line])


def test_a_command_names_the_subject_that_was_meant(run: Command) -> None:
    refused(
        run("counter", "get", "ordres.a"), 2, "no stream captures ordres.a; did you mean orders.a\n"
    )
