"""Backups against the real server: a restore brings a stream back, and a failed backup or restore
leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.api import Api as Requester
from spark_jetstream.admin.backup import SILENCE, Backup, Progress, backup
from spark_jetstream.admin.backup_files import DATA, MANIFEST, META, Draft, Framing, checked, opened
from spark_jetstream.admin.restore import Restored, RestoreTimes, restore
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import (
    BackupError,
    ConnectionFailed,
    JetStreamError,
    OptionError,
    PermissionDenied,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.configs import STREAMS
from tests.admin.conftest import Api, Make
from tests.support.client import ask
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import POUR, incompressible, options, still, table, wait_until

KINDS = (
    "default",
    "compressed",
    "memory",
    "workqueue",
    "key-value bucket",
    "object bucket",
    "counter",
    "ttl",
)
MESSAGES = 300
TOTAL = MESSAGES + POUR + 1


@dataclass(frozen=True)
class There:
    """The shared server, and the files of a test.

    The streams that are restored are gone after it.
    """

    requests: Requester
    api: Api
    folder: Path
    restored: list[str] = field(default_factory=list)

    def save(self, stream: str, target: str = "b", **how: Any) -> Backup:
        return backup(self.requests, stream, self.folder / target, **how)

    def restore(self, source: Path, name: str, **given: Any) -> Restored:
        """Restore a stream under another name and, unless it is ``given``, with other subjects."""
        result = Streams(self.requests).restore(
            source, name, **{"subjects": [f"{name.lower()}.>"], **given}
        )
        self.restored.append(name)
        return result

    def state(self, stream: str) -> dict[str, Any]:
        """The state of a stream.

        Where the last message was deleted, its time does not come back. A stream that never had any
        begins with 0 or 1.
        """
        state = self.api(f"STREAM.INFO.{stream}")["state"]
        first = max(1, state["first_seq"])
        return {
            **{key: value for key, value in state.items() if key != "last_ts"},
            "first_seq": first,
        }

    def messages(self, stream: str) -> list[dict[str, Any]]:
        """All messages of a small stream, as the server tells them one by one."""
        messages = []
        for sequence in range(1, self.state(stream)["last_seq"] + 1):
            try:
                messages.append(self.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})["message"])
            except Refused as error:
                messages.append({"missing": error.err_code})
        return messages

    def has(self, stream: str) -> bool:
        return stream in self.api("STREAM.NAMES")["streams"]


@pytest.fixture
def there(
    admin: JetStreamAdmin, nats_server: NatsServer, api: Api, tmp_path: Path
) -> Iterator[There]:
    """With ``admin`` the models must know every field of the replies."""
    there = There(Requester(options(nats_server.url)), api, tmp_path)
    yield there
    for name in there.restored:
        api(f"STREAM.DELETE.{name}")


@pytest.fixture(scope="module", autouse=True)
def whole(
    nats_server: NatsServer,
    api: Api,
    publisher: Publisher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """A backup, in a directory, of several chunks of 64 KiB.

    Its stream ``FILLED`` is there for the whole module.
    """
    api("STREAM.CREATE.FILLED", {"name": "FILLED", "subjects": ["filled.>"]})
    publisher.publish(
        Message(f"filled.{n % 3}", b"%d" % n * 40, [("N", str(n)), ("N", "x")])
        for n in range(MESSAGES)
    )
    publisher.pour(incompressible("filled"), 1, Message("filled.end", b"end"))
    yield backup(
        Requester(options(nats_server.url)), "FILLED", tmp_path_factory.mktemp("whole") / "saved"
    ).path
    api("STREAM.DELETE.FILLED")


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    """A copy of its backup."""
    return shutil.copytree(whole, tmp_path / "saved")


def once(disturb: Callable[[], object], after: float) -> Progress:
    """Something that happens once, when more than this part of a backup is done."""
    happened: list[int] = []

    def progress(done: int, total: int) -> None:
        if done > total * after and not happened:
            happened.append(done)
            disturb()

    return progress


# -- restored streams and consumers --


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_comes_back(
    kind: str, there: There, make_stream: Make, publisher: Publisher
) -> None:
    name = make_stream(STREAMS[kind])
    copy = f"{name}2"
    before = there.api(f"STREAM.INFO.{name}")["config"]
    base = before["subjects"][0].removesuffix(">")
    headers = [("Nats-Incr", "3")] if kind == "counter" else [("A", "1"), ("B", ""), ("A", "2")]
    publisher.publish(
        Message(
            f"{base}{n % 5}",
            b"" if kind == "counter" else b"%d" % n * (n % 50),
            headers if n % 2 else headers[:1],
        )
        for n in range(1, 61)
    )
    if kind not in ("key-value bucket", "counter"):
        for sequence in (2, 3, 30, 60):
            there.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence, "no_erase": True})
    made = there.save(name, "b.tar" if name.startswith("KV_") else "b")
    restored = there.restore(made.path, copy, subjects=["elsewhere.>"])
    assert restored.differences == ()
    assert bool(restored.notes) == name.startswith(("KV_", "OBJ_"))
    assert there.state(copy) == there.state(name)
    after = there.api(f"STREAM.INFO.{copy}")["config"]
    assert after == {**before, "name": copy, "subjects": ["elsewhere.>"]}
    assert there.messages(copy) == there.messages(name)
    assert len([message for message in there.messages(name) if "missing" not in message]) >= 25


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("purged", [False, True])
def test_streams_of_almost_nothing_come_back(
    count: int, purged: bool, there: There, make_stream: Make, publisher: Publisher
) -> None:
    name = make_stream({})
    if purged:
        publisher.publish([Message(f"{name.lower()}.a", b"gone")] * 5)
        there.api(f"STREAM.PURGE.{name}", {})
    publisher.publish([Message(f"{name.lower()}.a", b"one")] * count)
    restored = there.restore(there.save(name, "b.tar").path, f"{name}2")
    assert restored.differences == ()
    assert restored.info.state.last_seq == 5 * purged + count
    assert there.state(f"{name}2") == there.state(name)


def test_consumers_come_back_where_they_were(
    there: There, make_stream: Make, publisher: Publisher, nats_server: NatsServer
) -> None:
    name = make_stream({})
    publisher.publish(Message(f"{name.lower()}.{n % 3}", b"x") for n in range(60))
    for consumer, more in (
        ("works", {}),
        ("filtered", {"filter_subject": f"{name.lower()}.1"}),
        ("idle", {}),
    ):
        config = {
            "durable_name": consumer,
            "name": consumer,
            "ack_policy": "explicit",
            "ack_wait": 10**12,
            **more,
        }
        there.api(
            f"CONSUMER.CREATE.{name}.{consumer}",
            {"stream_name": name, "config": config, "action": "create"},
        )

    async def work(js: JetStreamContext) -> None:
        for consumer in ("works", "filtered"):
            subscription = await js.pull_subscribe_bind(consumer, stream=name)
            messages = await subscription.fetch(8)
            for number in (0, 1, 5):
                await messages[number].ack_sync()

    ask(nats_server.url, work)
    info = {
        consumer: there.api(f"CONSUMER.INFO.{name}.{consumer}")
        for consumer in ("works", "filtered", "idle")
    }
    assert info["works"]["num_ack_pending"] == 5
    assert there.restore(there.save(name).path, "CONSUMED", storage="memory").differences == ()
    for consumer, before in info.items():
        after = there.api(f"CONSUMER.INFO.CONSUMED.{consumer}")
        assert still(after) == still(before)
        assert after["config"] == before["config"]
    without = there.save(name, "without", consumers=False)
    assert there.restore(without.path, "BARE").differences == ()
    assert there.api("CONSUMER.NAMES.BARE")["total"] == 0


def test_a_stream_with_three_replicas_comes_back_with_one_and_with_three(
    nats_cluster: NatsCluster, tmp_path: Path
) -> None:
    requests = Requester(options(nats_cluster.url))
    with Publisher(nats_cluster.urls[1]) as publisher:
        there = There(requests, publisher.api, tmp_path)
        config = {"name": "CLUSTERED", "subjects": ["clustered.>"], "num_replicas": 3}
        there.api("STREAM.CREATE.CLUSTERED", config)
        consumer = {"durable_name": "c", "name": "c", "ack_policy": "explicit"}
        there.api(
            "CONSUMER.CREATE.CLUSTERED.c",
            {"stream_name": "CLUSTERED", "config": consumer, "action": "create"},
        )
        publisher.publish(Message(f"clustered.{n}", b"%d" % n) for n in range(500))
        made = there.save("CLUSTERED")
        messages = table(requests.connection, nats_cluster.url, "CLUSTERED")
        assert messages.num_rows == 500

        def named(stream: str) -> list[str] | None:
            return there.api(f"CONSUMER.NAMES.{stream}")["consumers"] or None

        for name, replicas in (("ALONE", 1), ("AGAIN", 3)):
            restored = there.restore(made.path, name, num_replicas=replicas)
            assert restored.differences == ()
            assert restored.info.config.num_replicas == replicas
            # Its leader is chosen a moment later.
            poll(partial(named, name), 10, lambda: TimeoutError("the consumer is not there"))
            assert table(requests.connection, nats_cluster.url, name).equals(messages)
        (made.path / MANIFEST).unlink()
        data = bytearray((made.path / DATA).read_bytes())
        data[-20] ^= 1  # in its last message
        (made.path / DATA).write_bytes(data)
        for name, replicas in (("BROKEN1", 1), ("BROKEN3", 3)):
            with pytest.raises(BackupError, match="10062"):
                there.restore(made.path, name, num_replicas=replicas)
            # Any server may say that it is gone, before the one that lists streams knows.
            wait_until(lambda name=name: not there.has(name), f"{name} is gone")  # type: ignore[misc]


# -- the files of a backup --


def test_a_backup_has_the_layout_of_the_nats_tool(whole: Path, there: There) -> None:
    assert {path.name for path in whole.iterdir()} == {META, DATA, MANIFEST}
    text = (whole / META).read_text()
    info = there.api("STREAM.INFO.FILLED")
    assert text.startswith('{\n  "config": {\n    "name": "FILLED"')
    content = json.loads(text)
    assert set(content) == {"config", "state"}
    assert content["config"]["subjects"] == info["config"]["subjects"]
    assert content["state"] == info["state"]
    manifest = json.loads((whole / MANIFEST).read_text())
    assert manifest["data_sha256"] == hashlib.sha256((whole / DATA).read_bytes()).hexdigest()
    assert manifest["stream"] == "FILLED"
    assert manifest["chunks"] >= 4
    with opened(whole) as backup:
        assert checked(backup)
        assert (backup.config.name, backup.state.messages) == ("FILLED", TOTAL)


@pytest.mark.parametrize("data", [DATA, "stream.arc.s2"])
def test_a_backup_of_the_nats_tool_is_taken(data: str, saved: Path, there: There) -> None:
    (saved / MANIFEST).unlink()
    (saved / DATA).rename(saved / data)
    content = json.loads((saved / META).read_text())
    content["state"] |= {"deleted": None, "num_deleted": 0, "lost": None}
    (saved / META).write_text(json.dumps(content, indent=1))
    single = there.folder / "single.tar"
    with tarfile.open(single, "w") as archive:
        archive.add(saved, "saved")
    for source, name in ((saved, "TAKEN"), (single, "TAKEN1")):
        restored = there.restore(source, name)
        assert restored.differences == ()
        assert len(restored.notes) == 1
        assert str(source / MANIFEST) in restored.notes[0]


def test_only_its_owner_can_read_a_backup(
    there: There, nats_server_factory: Callable[..., NatsServer]
) -> None:
    """It has all messages, such as secrets in a bucket."""
    before = os.umask(0)
    try:
        made = [
            there.save("FILLED", "b").path,
            there.save("FILLED", "b.tar").path,
            there.folder / "all",
        ]
        with JetStreamAdmin(servers=nats_server_factory().url) as admin:
            admin.account.backup(made[-1])
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700", "0o600", "0o700"]


def test_a_single_file_is_a_tar_file_of_the_directory(there: There, tmp_path: Path) -> None:
    target = str(tmp_path / "deep" / "b.tar")
    steps: dict[str, tuple[int, int]] = {}

    def report(what: str) -> Progress:
        return lambda *step: steps.update({what: step})

    sizes: dict[str, Any] = {"chunk_size": 16384, "window_size": 32768}
    made = backup(there.requests, "FILLED", target, check=True, progress=report("saved"), **sizes)
    assert made.path == Path(target)
    size = int(made.manifest.data_bytes)
    assert made.manifest.chunks == -(-size // 16384)
    with tarfile.open(made.path) as archive:
        assert archive.getnames() == [DATA, META, MANIFEST]
        archive.extractall(tmp_path / "out", filter="data")
    assert (
        hashlib.sha256((tmp_path / "out" / DATA).read_bytes()).hexdigest()
        == made.manifest.data_sha256
    )
    restored = there.restore(
        tmp_path / "out", "UNPACKED", checking=report("checked"), progress=report("sent")
    )
    assert (restored.differences, restored.notes, restored.sha256) == (
        (),
        (),
        made.manifest.data_sha256,
    )
    assert steps == {
        "saved": (size, made.reply.state.bytes),
        "checked": (size, size),
        "sent": (size, size),
    }
    with tarfile.open(tmp_path / "again.tar", "w") as archive:
        archive.add(tmp_path / "out", "some/where")
    assert there.restore(tmp_path / "again.tar", "REPACKED").notes == ()
    with tarfile.open(tmp_path / "again.tar", "a") as archive:
        archive.add(tmp_path / "out", "some/other")
    with pytest.raises(
        BackupError, match=r"again\.tar has several backups, as some/other and some/where: unpack"
    ):
        there.restore(tmp_path / "again.tar", "TWICE")


def test_a_backup_never_overwrites_existing_files(
    there: There, saved: Path, tmp_path: Path
) -> None:
    before = sorted((path.name, path.read_bytes()) for path in saved.iterdir())
    (tmp_path / "file.tar").write_bytes(b"mine")
    for target in (saved, tmp_path / "file.tar"):
        with pytest.raises(OptionError, match=f"{target} exists already"):
            there.save("FILLED", target.name)
    assert sorted((path.name, path.read_bytes()) for path in saved.iterdir()) == before
    assert (tmp_path / "file.tar").read_bytes() == b"mine"
    with pytest.raises(BackupError, match=r"cannot write the backup .*file.tar/b"):
        there.save("FILLED", "file.tar/b")
    (tmp_path / "empty").mkdir()
    assert there.save("FILLED", "empty").path == tmp_path / "empty"


def test_a_whole_account(no_connection_left: None, tmp_path: Path) -> None:
    target, seen = tmp_path / "saved", []
    with NatsServer() as first, JetStreamAdmin(servers=first.url) as admin:
        admin.streams.create("A", subjects="a.>")
        admin.kv.create("SETTINGS", history=3)
        admin.consumers.create("A", "c", ack_policy="explicit")
        for number in range(3):
            admin.publish(f"a.{number}", b"%d" % number)
        (target / "other").mkdir(parents=True)
        with pytest.raises(OptionError, match=f"{target} exists already"):
            admin.account.backup(target)
        (target / "other").rmdir()
        saved = admin.account.backup(target, progress=lambda *done: seen.append(done))
        assert [(made.path, made.manifest.stream) for made in saved] == [
            (target / name, name) for name in ("A", "KV_SETTINGS")
        ]
        assert seen == [(1, 2), (2, 2)]
        with pytest.raises(
            JetStreamError, match="there is A, KV_SETTINGS already; nothing was restored"
        ):
            admin.account.restore(target)
    with NatsServer() as second, JetStreamAdmin(servers=second.url) as admin:
        (target / ".DS_Store").write_bytes(b"\0")
        (target / "NOTES.md").write_text("of the first server")
        with pytest.raises(BackupError, match=r"NOTES\.md"):
            admin.account.restore(target)
        assert list(admin.streams.names()) == []
        (target / "NOTES.md").unlink()
        restored = admin.account.restore(target, progress=lambda *done: seen.append(done))
        assert [(made.info.config.name, made.differences) for made in restored] == [
            ("A", ()),
            ("KV_SETTINGS", ()),
        ]
        assert seen[2:] == [(1, 2), (2, 2)]
        assert [message.data for message in admin.messages.read("A")] == [b"0", b"1", b"2"]
        assert list(admin.consumers.names("A")) == ["c"]
        admin.streams.delete("KV_SETTINGS")
        (target / "A" / DATA).write_bytes(b"")
        admin.streams.delete("A")
        with pytest.raises(BackupError, match="cut off at byte 0"):
            admin.account.restore(target)
        assert list(admin.streams.names()) == []


def test_a_cluster_says_that_a_stream_is_not_there(
    nats_cluster: NatsCluster, tmp_path: Path
) -> None:
    """Where it has no leader nobody answers."""
    with (
        JetStreamAdmin(servers=nats_cluster.url, requestTimeout="2s") as admin,
        pytest.raises(StreamNotFound, match="back up stream NOSUCH: stream not found"),
    ):
        admin.streams.backup("NOSUCH", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_an_account_backup_that_fails_keeps_what_is_complete(
    admin: JetStreamAdmin, name: str, tmp_path: Path
) -> None:
    admin.streams.create(f"{name}A")
    admin.streams.create(f"{name}Z")
    target = tmp_path / "saved"

    def stop(done: int, total: int) -> None:
        raise BackupError("enough")

    with pytest.raises(BackupError, match="enough"):
        admin.account.backup(target, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["saved.part"]
    (whole,) = (tmp_path / "saved.part").iterdir()
    with opened(whole) as saved:
        assert saved.config.name == whole.name
    with pytest.raises(OptionError, match=r"saved\.part exists already: choose another target"):
        admin.account.backup(target)


def test_a_stream_that_cannot_be_saved_does_not_keep_others_from_it(
    denied: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with JetStreamAdmin(
        **denied("$JS.API.STREAM.SNAPSHOT.B", "$JS.API.STREAM.SNAPSHOT.C")
    ) as admin:
        for name in "ABCD":
            admin.streams.create(name)
        with pytest.raises(BackupError, match=r"SNAPSHOT\.B.*; .*SNAPSHOT\.C"):
            admin.account.backup(tmp_path / "several")
        admin.streams.delete("C")
        with pytest.raises(PermissionDenied, match=r"SNAPSHOT\.B"):
            admin.account.backup(tmp_path / "one")
    for target in ("several.part", "one.part"):
        assert sorted(path.name for path in (tmp_path / target).iterdir()) == ["A", "D"]


def test_a_backup_that_may_not_acknowledge_breaks_off_no_other(
    denied: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    login = denied("$JS.SNAPSHOT.ACK.A.>")
    requests = Requester(options(login["servers"], user="u", password="p"))
    small: dict[str, Any] = {"chunk_size": 1024, "window_size": 2048}
    with JetStreamAdmin(**login) as admin:
        for name in "AB":
            admin.streams.create(name, subjects=name)
            admin.publish(name, random.randbytes(100_000))

    def fail() -> None:
        with pytest.raises(PermissionDenied, match=r"may not publish to \$JS\.SNAPSHOT\.ACK\.A\.>"):
            backup(requests, "A", tmp_path / "A", **small)

    backup(requests, "B", tmp_path / "B", progress=once(fail, after=0), **small)
    assert [path.name for path in tmp_path.iterdir()] == ["B"]


# -- interrupted backups --


@pytest.fixture
def behind(there: There, proxy: WireProxy) -> There:
    """The server behind a connection that can be disturbed."""
    return replace(there, requests=Requester(options(proxy.url)))


def ending(frame: bytes, head: bytes) -> bytes:
    """The message at the end of a backup with another header block, or none."""
    line = frame.split(b"\r\n")[0].split(b" ")
    if not head:
        return b"MSG %s 0\r\n\r\n" % b" ".join(line[1:-2])
    return b"%s %d %d\r\n%s\r\n" % (b" ".join(line[:-2]), len(head), len(head), head)


def instead_of(
    text: bytes, change: Callable[[bytes], bytes] = lambda frame: b""
) -> Callable[[bytes], bytes]:
    return lambda frame: change(frame) if text in frame else frame


END = b"NATS/1.0 204"


@pytest.mark.parametrize(
    ("disturb", "silence", "said"),
    [
        (instead_of(b"65536.3 65536"), SILENCE, "has a hole: chunk 3"),
        (instead_of(END), 0.5, r"sent nothing for 0\.5 s"),
        (
            instead_of(END, lambda frame: ending(frame, b"NATS/1.0 500 disk error\r\n\r\n")),
            SILENCE,
            "broken off by the server: 500 disk error",
        ),
        # An end without a status is one only where all of it fitted into one chunk.
        (instead_of(END, lambda frame: ending(frame, b"")), SILENCE, "an end without a status"),
    ],
    ids=["hole", "silence", "error", "no status"],
)
def test_a_backup_that_is_disturbed_leaves_nothing(
    disturb: Callable[[bytes], bytes], silence: float, said: str, proxy: WireProxy, behind: There
) -> None:
    proxy.drop(disturb)
    with pytest.raises(BackupError, match=said):
        behind.save("FILLED", chunk_size=65536, silence=silence)
    assert list(behind.folder.iterdir()) == []


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_a_cut_connection_leaves_nothing(suffix: str, proxy: WireProxy, behind: There) -> None:
    proxy.cut_after(300_000)
    with pytest.raises(ConnectionFailed):
        behind.save("FILLED", f"b{suffix}", chunk_size=65536, window_size=131072)
    assert list(behind.folder.iterdir()) == []


class FullDisk(io.FileIO):
    def write(self, data: object, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_a_full_disk_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    draft = Draft(tmp_path / f"b{suffix}")
    draft._file.close()
    draft._file = io.BufferedWriter(FullDisk(draft._file.name, "w"))
    draft.write(b"buffered")
    with pytest.raises(BackupError, match="No space left"):
        draft.write(bytes(1 << 20))
    draft.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_is_not_there_or_goes_away(
    there: There, make_stream: Make, publisher: Publisher
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(StreamNotFound):
        there.save("NOSUCH")
    name = make_stream({"name": "GOING"})
    publisher.pour(incompressible("going"), 1, Message("going.end"))
    with pytest.raises(KeyboardInterrupt):
        there.save(name, progress=interrupt)
    remove = once(lambda: there.api("STREAM.DELETE.GOING"), after=0)
    said = r"the backup of stream GOING was broken off: the server has sent nothing for 3 s"
    with pytest.raises(BackupError, match=said):
        there.save(name, window_size=1, silence=3, progress=remove)  # the first chunk must come
    assert list(there.folder.iterdir()) == []
    there.api("STREAM.CREATE.GOING", {"name": "GOING"})


# -- damaged backups --


def _last_chunk(data: bytes) -> int:
    at, last = 0, 0
    while at < len(data):
        at, last = at + 4 + int.from_bytes(data[at + 1 : at + 4], "little"), at
    return last


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _chunk(content: bytes) -> bytes:
    """A stream of one chunk that is not compressed."""
    return S2 + b"\x01" + (4 + len(content)).to_bytes(3, "little") + bytes(4) + content


S2 = b"\xff\x06\x00\x00S2sTwO"
OLD = _chunk(b"meta.inf")

#: Damages: the file, the damage, and a part of the error.
DAMAGES: tuple[tuple[str, Callable[[bytes], bytes | None], str], ...] = (
    (DATA, lambda data: data[:-1000], f"{DATA} is cut off at byte"),
    (DATA, lambda data: data[: _last_chunk(data)], f"{DATA} is not what was written"),
    (DATA, _flip, f"{DATA} is not what was written"),
    (DATA, lambda data: data + bytes(100), f"{DATA} has no valid chunk"),
    (META, lambda text: text.replace(b"FILLED", b"OTHER"), f"{META} is not what was"),
    (MANIFEST, lambda text: text[:-20], f"{MANIFEST} is not JSON"),
    (MANIFEST, lambda text: text.replace(b'n": 1', b'n": 2'), f"{MANIFEST} has version 2"),
    (MANIFEST, lambda text: text.replace(b"data_sha256", b"d"), f"{MANIFEST}: there is no"),
)
#: The same where there is no manifest.
UNSEEN: tuple[tuple[str, Callable[[bytes], bytes | None], str], ...] = (
    (DATA, lambda data: b"", f"{DATA} is cut off at byte 0"),
    (DATA, lambda data: data[:-1000], f"{DATA} is cut off at byte"),
    (DATA, lambda data: data[: _last_chunk(data)], "saved.*10062"),
    (DATA, _flip, "saved.*10062"),
    (DATA, lambda data: data + b"more", f"{DATA} has no valid chunk"),
    (DATA, lambda data: b"something else", f"{DATA} does not begin like"),
    (DATA, lambda data: _chunk(b"else"), f"{DATA} is not a backup of a stream"),
    (DATA, lambda data: OLD, f"{DATA} was made by a server before 2.15"),
    (DATA, lambda data: None, f"{DATA} is missing"),
    (META, lambda text: None, f"{META} is missing"),
    (META, lambda text: text[:-20], f"{META} is not JSON"),
    (META, lambda text: b"[]", f"{META} is not a JSON object"),
    (META, lambda text: text.replace(b'"state"', b'"stat"'), f"{META} has no config or no"),
    (
        META,
        lambda text: text.replace(b'"FILLED"', b"7"),
        f"^damaged backup: cannot read .*{META}: name must be",
    ),
    (
        META,
        lambda text: text.replace(b'"first_seq"', b'"first_seq": "1", "no"'),
        f"cannot read .*{META}: first_seq must",
    ),
)


@pytest.mark.parametrize("manifest", [True, False])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    manifest: bool, there: There, whole: Path
) -> None:
    for number, (name, change, said) in enumerate(DAMAGES if manifest else UNSEEN):
        saved = shutil.copytree(whole, there.folder / f"saved{number}")
        content = change((saved / name).read_bytes())
        if content is None:
            (saved / name).unlink()
        else:
            (saved / name).write_bytes(content)
        if not manifest:
            (saved / MANIFEST).unlink()
        with pytest.raises(BackupError, match=said) as caught:
            there.restore(saved, "DAMAGED")
        assert str(saved) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not there.has("DAMAGED")


def test_an_old_backup_for_another_storage_is_refused(there: There, saved: Path) -> None:
    (saved / MANIFEST).unlink()
    (saved / DATA).write_bytes(OLD)
    with pytest.raises(BackupError, match="can only be restored as file, not as memory"):
        there.restore(saved, "FILLED", storage="memory")


def test_single_files_that_are_damaged_are_refused(there: There) -> None:
    whole = there.save("FILLED", "b.tar").path.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "no header": bytes(512) + whole[512:],
        "flipped": _flip(whole),
        "text": b"not a tar file" * 100,
        "empty": b"",
    }
    for name, content in damaged.items():
        path = there.folder / f"{name}.tar"
        path.write_bytes(content)
        with pytest.raises(BackupError, match=str(path)):
            there.restore(path, "DAMAGED")
    with pytest.raises(BackupError, match=r"cannot read the backup .*nothing: No such file"):
        there.restore(there.folder / "nothing", "DAMAGED")


def _tar(*entries: tuple[bytes, bytes, int | bytes, bytes]) -> bytes:
    """A tar file of entries: kind, name, size (a number, or as it is in the header), content."""
    blocks = []
    for kind, name, size, content in entries:
        entry = tarfile.TarInfo(name.decode())
        entry.type = kind
        entry.size = size if isinstance(size, int) else 0
        head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
        if isinstance(size, bytes):
            head[124 : 124 + len(size)] = size
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        blocks.append(bytes(head) + content + bytes(-len(content) % 512))
    return b"".join(blocks) + bytes(1024)


def _pax(record: bytes) -> tuple[bytes, bytes, int, bytes]:
    return tarfile.XHDTYPE, b"x", len(record), record


def _plain_file(name: str, content: bytes) -> tuple[bytes, bytes, int, bytes]:
    return tarfile.REGTYPE, name.encode(), len(content), content


DEEP = b'{"config":' + b"[" * 100_000 + b"]" * 100_000 + b',"state":{}}'
SMALL = (_plain_file(META, b'{"config":{"name":"S"},"state":{}}'), _plain_file(DATA, OLD))

#: Tar files that nobody has made with a tool for backups, and what the error says.
CRAFTED: dict[str, tuple[bytes, str]] = {
    "PAX header without a length": (_tar(_pax(b"size=7\n"), *SMALL), "damaged backup"),
    "PAX size that is no number": (_tar(_pax(b"12 size=abc\n"), *SMALL), f"{DATA} is missing"),
    "PAX size below 0": (_tar(_pax(b"12 size=-99\n"), *SMALL), f"{DATA} is missing"),
    "PAX size of 10^30": (_tar(_pax(b"40 size=%d\n" % 10**30), *SMALL), "damaged backup"),
    "PAX offset of a sparse file": (
        _tar(_pax(b"24 GNU.sparse.map=1,2,x\n"), *SMALL),
        "damaged backup",
    ),
    "chain of PAX headers": (_tar(*[_pax(b"")] * 400, *SMALL), "damaged backup"),
    "long chain of PAX headers": (_tar(*[_pax(b"")] * 2000, *SMALL), "damaged backup"),
    "large PAX header": (_tar(_pax(b"9 a=bcde\n" * 200_000), *SMALL), "headers have more than"),
    "long name of 2^60 bytes": (
        _tar((b"L", b"l", b"\x80\0\0\0\x10" + bytes(7), b"")),
        "headers have more than",
    ),
    "long name below 0": (_tar((b"L", b"l", b"\xff" * 12, b"")), "damaged backup"),
    "file of 2^60 bytes": (
        _tar((b"0", META.encode(), b"\x80\0\0\0\x10" + bytes(7), b"")),
        "cannot read",
    ),
    "entry that leads back to itself": (
        _tar(SMALL[0], (b"0", b"x", b"\xff" * 10 + b"\xfe\0", b"")),
        "headers|missing",
    ),
    "links": (
        _tar((tarfile.SYMTYPE, META.encode(), 0, b""), SMALL[1]),
        f"{META} is missing, or no plain file",
    ),
    "sparse file": (
        _tar((tarfile.GNUTYPE_SPARSE, META.encode(), 0, b""), SMALL[1]),
        f"{META} is missing",
    ),
    "deep JSON": (_tar(_plain_file(META, DEEP), SMALL[1]), f"{META} is nested too deeply"),
    "deep manifest": (
        _tar(*SMALL, _plain_file(MANIFEST, DEEP)),
        f"{MANIFEST} is nested too deeply",
    ),
}


def _open(path: Path) -> None:
    with opened(path):
        pass


@pytest.mark.parametrize(("content", "said"), CRAFTED.values(), ids=CRAFTED.keys())
def test_crafted_single_files_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(content)
    with pytest.raises(BackupError, match=said) as caught:
        _open(path)
    assert str(path) in str(caught.value)


def test_opening_a_backup_refuses_special_files_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(BackupError, match=f"{path}: it is neither a directory nor a file"):
            _open(path)
    for name, other in ((META, DATA), (DATA, META)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / other).write_bytes(b"{}")
        for make in (os.mkfifo, os.mkdir):
            make(folder / name)
            with pytest.raises(BackupError, match=f"{name} is missing, or no plain file"):
                _open(folder)
            (folder / name).rmdir() if make is os.mkdir else (folder / name).unlink()
    folder = tmp_path / "sparse"
    folder.mkdir()
    for name in (META, DATA):
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(BackupError, match=f"{META} is not JSON"):
        _open(folder)


def test_compressed_data_tells_what_it_is() -> None:
    """In front of it are a checksum, the length of the content, and a tag with the length of its
    first literal.
    """
    literal = b"NATSARC1" + bytes(range(70))

    def fed(body: bytes) -> Framing:
        chunk = bytes(4) + body
        framing = Framing("x")
        framing.feed(S2 + b"\x00" + len(chunk).to_bytes(3, "little") + chunk)
        return framing

    for body in (
        bytes([100, (len(literal) - 1) << 2 & 0xFC]) + literal[:60],
        bytes([0xAC, 0x02, 60 << 2, len(literal) - 1]) + literal,
        b"\xac\x82\x80\x80\x01" + b"\xfc\x07\x00\x00\x00" + literal[:8],
    ):
        assert fed(body).finish()
    with pytest.raises(
        BackupError, match="x is not a backup of a stream: it does not begin like one"
    ):
        fed(b"\x64\x0cNATSARC2" + literal[8:]).finish()


# -- failed restores --


def test_a_stream_that_exists_is_left_alone(there: There, whole: Path) -> None:
    before = there.api("STREAM.INFO.FILLED")
    with pytest.raises(StreamExists, match="restore stream FILLED"):
        there.restore(whole, "FILLED")
    with pytest.raises(BackupError, match=r"its subject filled\.> overlaps those of stream FILLED"):
        there.restore(whole, "OTHER", subjects=["filled.>"])
    after = there.api("STREAM.INFO.FILLED")
    assert (after["created"], after["state"]) == (before["created"], before["state"])
    assert not there.has("OTHER")


def test_a_stream_made_by_others_meanwhile_is_left_alone(there: There, whole: Path) -> None:
    come_first = once(
        lambda: there.api("STREAM.CREATE.RACE", {"name": "RACE", "subjects": ["race.>"]}), after=0
    )
    with pytest.raises(StreamExists, match="already in use"):
        there.restore(whole, "RACE", progress=come_first)
    assert there.state("RACE")["messages"] == 0
    there.api("STREAM.DELETE.RACE")


def test_changes_are_checked_like_what_a_user_writes(there: There, whole: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"subject": ["a"]}, r"did you mean subjects\?"),
        ({"storage": "tape"}, "storage"),
        ({"name": "a.b"}, "stream must be the name"),
    ]
    for changes, said in wrong:
        with pytest.raises(OptionError, match=said):
            there.restore(whole, **{"name": "CHANGED", **changes})
    with pytest.raises(OptionError, match="stream must be the name of a stream"):
        there.save("a.b")
    assert list(there.folder.iterdir()) == []


def test_a_restore_that_is_broken_off_leaves_nothing(
    proxy: WireProxy, behind: There, whole: Path
) -> None:
    def stop() -> None:
        assert behind.has("HALF")
        raise KeyboardInterrupt

    cases: tuple[tuple[Callable[[], object], type[BaseException]], ...] = (
        (lambda: proxy.cut_after(1), ConnectionFailed),
        (stop, KeyboardInterrupt),
    )
    for disturb, error in cases:
        with pytest.raises(error):
            behind.restore(whole, "HALF", progress=once(disturb, after=0.5))
        assert not behind.has("HALF")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b'{"error":{"code":500,"err_code":10047,"description":"no space"}}',
            r"no space \(code 500, error 10047\)",
        ),
        (b"{}", "the server ended it after"),
    ],
)
def test_an_answer_to_a_chunk_ends_it(
    answer: bytes, said: str, proxy: WireProxy, behind: There, whole: Path
) -> None:
    def answered(frame: bytes) -> bytes:
        if not frame.endswith(b" 0\r\n\r\n"):
            return frame
        return b"%s %d\r\n%s\r\n" % (
            frame.split(b"\r\n")[0].removesuffix(b" 0"),
            len(answer),
            answer,
        )

    with pytest.raises(BackupError, match=said):
        behind.restore(whole, "ENDED", progress=once(lambda: proxy.drop(answered), after=0.5))
    assert not behind.has("ENDED")


def test_the_end_of_a_restore_takes_its_time(
    nats_server_factory: Callable[..., NatsServer], whole: Path
) -> None:
    """A server before 2.15 only then reads what it has received."""
    server = nats_server_factory()
    requests = Requester(options(server.url, requestTimeout="2s"))

    def work(done: int, total: int) -> None:
        if done == total:
            server.pause()
            threading.Timer(4, server.resume).start()

    restore(requests, whole, None, {}, progress=work, times=RestoreTimes(chunk=0.1))
    assert requests.account().streams == 1


@pytest.mark.full
def test_a_failed_restore_names_the_partial_stream_that_it_cannot_delete(
    there: There, proxy: WireProxy, whole: Path
) -> None:
    requests = Requester(options(proxy.url, requestTimeout="2s"))

    def away() -> None:
        proxy.refuse()
        proxy.cut()
        poll(
            lambda: None if requests.connection._login.is_up else True,
            10,
            lambda: TimeoutError("still up"),
        )

    with pytest.raises(BackupError, match="a part of stream AWAY may be left, delete it before"):
        replace(there, requests=requests).restore(whole, "AWAY", progress=once(away, after=0.5))
    there.api("STREAM.DELETE.AWAY")


def test_a_restore_returns_the_differences_from_the_backup(there: There, whole: Path) -> None:
    restored = there.restore(whole, "FEWER", max_msgs=100)
    assert restored.info.state.messages == 100
    assert f"messages was {TOTAL} and is 100" in restored.differences
    assert any(
        difference.startswith("first_seq was 1 and is ") for difference in restored.differences
    )
