"""``spark-jetstream account`` on a real server, and on what answers as an account with tiers does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.backup_files import MANIFEST
from spark_jetstream.client.pool import close_all
from spark_jetstream.testing import NatsServer
from tests.cli.conftest import Command, refused
from tests.support.command import Ran, run_command, succeed
from tests.support.fake_jetstream import FakeJetStream

PASSWORD = "right-pass-51c0"
LOGIN = ("--user", "ann", "--password", PASSWORD)
ACCOUNTS = f"""
jetstream {{ domain: hub }}
accounts {{
  A {{
    jetstream: {{
      max_file: 1G, max_mem: 0, max_streams: 8, max_consumers: 10, max_ack_pending: 500
      disk_max_stream_bytes: 500M, max_bytes_required: true
    }}
    users: [{{ user: ann, password: "{PASSWORD}" }}]
  }}
}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server with an account that has limits, a stream and a consumer."""
    with NatsServer(config=ACCOUNTS) as running:
        with JetStreamAdmin(servers=running.url, user="ann", password=PASSWORD) as admin:
            admin.streams.create(name="S", max_bytes=250_000_000)
            admin.consumers.create("S", durable_name="c")
        yield running
    close_all()


def info(server: NatsServer, *arguments: str) -> Ran:
    return succeed("account", "info", *LOGIN, *arguments, url=server.url)


def test_limits_and_usage_are_a_table(server: NatsServer) -> None:
    lines = [" ".join(row) for row in info(server).rows]
    version = info(server, "--json").json["server"]["version"]
    assert lines[:4] == [
        f"server {version}",
        f"API level 5 (server {version.rpartition('.')[0]})",
        "domain hub",
        "largest message 1MiB",
    ]
    assert {
        "one stream on disk 476.8MiB",
        "unacknowledged of one consumer 500",
        "max_bytes required",
    } <= {*lines}
    assert lines[-5:] == [
        "used reserved limit % used % reserved",
        "storage 0B 238.4MiB 953.7MiB 0.0% 25.0%",
        "memory 0B 0B 0B none allowed none allowed",
        "streams 1 8 12.5%",
        "consumers 1 10 each stream",
    ]


def test_json_is_what_the_api_says_and_failed_requests_are_counted(server: NatsServer) -> None:
    with JetStreamAdmin(servers=server.url, user="ann", password=PASSWORD) as admin:
        theirs = admin.account.info()
    printed = info(server, "--json").json
    assert (printed["limits"], printed["streams"]) == (theirs.limits.model_dump(), 1)
    assert printed["server"]["max_payload"] == 2**20
    assert run_command("consumer", "info", "S", "gone", *LOGIN, url=server.url).code == 1
    failed = info(server, "--json").json["api"]["errors"]
    assert failed > printed["api"]["errors"]  # a request that is not answered soon is sent again
    assert f"failed API requests {failed}" in [" ".join(row) for row in info(server).rows]


@pytest.mark.usefixtures(
    "publisher"
)  # its stream stays: with the last one the server removes the folder of all
def test_all_streams_are_saved_and_restored(
    server: NatsServer, nats_server: NatsServer, tmp_path: Path
) -> None:
    target, line = tmp_path / "saved", ("account", "backup", tmp_path / "saved", *LOGIN)
    assert succeed(*line, url=server.url).out.startswith(f"1 stream saved at {target}, ")
    refused(run_command(*line, url=server.url), 2, f"{target} exists already")
    assert succeed("account", "backup", f"{target}2", *LOGIN, "--json", url=server.url).json[
        "streams"
    ] == ["S"]
    restore = ("account", "restore", target)
    refused(
        run_command(*restore, *LOGIN, url=server.url), 1, "there is S already; nothing was restored"
    )
    assert succeed(*restore, url=nats_server.url).out == f"1 stream restored from {target}\n"
    meta = target / "S" / "backup.json"
    (target / "S" / MANIFEST).unlink()
    meta.write_text(meta.read_text().replace('"messages": 0', '"messages": 7'))
    succeed("stream", "rm", "S", "--force", url=nats_server.url)
    ran = run_command(*restore, "--json", url=nats_server.url)
    assert (ran.code, ran.json["streams"]) == (1, {"S": ["messages was 7 and is 0"]})
    assert ran.err == "stream S is not as it was: messages was 7 and is 0\n"
    succeed("stream", "rm", "S", "--force", url=nats_server.url)


def test_an_account_without_limits_has_none_in_the_table(do: Command) -> None:
    lines = [" ".join(row) for row in do("account", "info").rows]
    assert lines[-4].startswith("storage ")
    assert [line.endswith(" no limit") for line in lines[-4:]] == [True] * 4
    assert not any(line.startswith(("domain", "one stream", "max_bytes")) for line in lines)


def test_each_tier_has_its_rows(do: Command) -> None:
    limits = {
        "max_storage": 1000,
        "max_memory": -1,
        "max_streams": 4,
        "max_consumers": -1,
        "max_ack_pending": 20,
    }
    tiers = {
        "R1": {"storage": 250, "streams": 1, "limits": limits},
        "R3": {
            "reserved_storage": 500,
            "streams": 3,
            "limits": {**limits, "storage_max_stream_bytes": 300},
        },
    }
    with FakeJetStream({"INFO": {"tiers": tiers, "api": {"level": 0}}}) as fake:
        ran = do("account", "info", url=fake.url)
    lines = [" ".join(row) for row in ran.rows]
    assert {
        "API level 0 (before 2.11)",
        "unacknowledged of one consumer of R1 20",
        "one stream on disk of R3 300B",
        "tier used reserved limit % used % reserved",
        "R1 storage 250B 0B 1000B 25.0% 0.0%",
        "R1 streams 1 4 25.0%",
        "R3 storage 0B 500B 1000B 0.0% 50.0%",
        "R3 streams 3 4 75.0%",
        "R3 consumers 0 no limit",
    } <= {*lines}
