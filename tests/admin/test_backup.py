"""Backups against the real server: what comes back, and that a damaged or broken one leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.client import JetStreamContext

from spark_jetstream.admin.backup import Backup, backup
from spark_jetstream.admin.backup_files import DATA, MANIFEST, META, EntryKind, Framing, checked, opened
from spark_jetstream.admin.restore import Restored, restore
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all, connect
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
from tests.support.backups import POUR, incompressible, still, table
from tests.support.client import ask
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import options

KINDS = ("default", "compressed", "memory", "workqueue", "key-value bucket", "object bucket", "counter", "ttl")
MESSAGES = 300
TOTAL = MESSAGES + POUR + 1


@pytest.fixture
def connection(nats_server: NatsServer) -> Connection:
    return connect(options(nats_server.url))


@pytest.fixture
def restored(connection: Connection, api: Api) -> Iterator[Callable[..., Restored]]:
    """`restore` on the shared server; the streams are gone after the test."""
    made: list[str] = []

    def make(source: Path, name: str, **given: Any) -> Restored:
        found = restore(connection, source, name=name, **given)
        made.append(name)
        return found

    yield make
    for name in made:
        api(f"STREAM.DELETE.{name}")


@pytest.fixture
def filled(make_stream: Make, publisher: Publisher) -> str:
    """A stream of a few messages, which take several chunks of 16 KiB."""
    name = make_stream({"name": "FILLED"})
    publisher.publish(Message(f"filled.{n % 3}", b"%d" % n * 40, [("N", str(n)), ("N", "x")]) for n in range(MESSAGES))
    publisher.pour(incompressible("filled"), 1, Message("filled.end", b"end"))
    return name


@pytest.fixture
def saved(connection: Connection, filled: str, tmp_path: Path) -> Path:
    """A backup of it in a directory."""
    return backup(connection, filled, tmp_path / "saved").path


def left(api: Api) -> set[str]:
    """The streams that tests have made or left."""
    return set(api("STREAM.NAMES")["streams"]) - {"KEPT", "ORIGIN", "FILLED"}


def state(api: Api, stream: str) -> dict[str, Any]:
    """What a stream holds.

    Where the last message was deleted, its time does not come back. A stream that never had any begins with 0 or 1.
    """
    found = api(f"STREAM.INFO.{stream}")["state"]
    first = max(1, found["first_seq"])
    return {**{key: value for key, value in found.items() if key != "last_ts"}, "first_seq": first}


def messages(api: Api, stream: str) -> list[dict[str, Any]]:
    """All messages of a small stream, as the server tells them one by one."""
    found = []
    for sequence in range(1, api(f"STREAM.INFO.{stream}")["state"]["last_seq"] + 1):
        try:
            found.append(api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})["message"])
        except Refused as error:
            found.append({"missing": error.err_code})
    return found


def same(connection: Connection, url: str, one: str, other: str) -> int:
    """How many messages two streams have, which are the same."""
    messages, copies = table(connection, url, one), table(connection, url, other)
    assert copies.equals(messages)
    return int(messages.num_rows)


# -- what comes back --


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_comes_back(
    kind: str,
    connection: Connection,
    api: Api,
    make_stream: Make,
    publisher: Publisher,
    restored: Callable[..., Restored],
    tmp_path: Path,
) -> None:
    name = make_stream(STREAMS[kind])
    base = api(f"STREAM.INFO.{name}")["config"]["subjects"][0].removesuffix(">")
    headers = [("Nats-Incr", "3")] if kind == "counter" else [("A", "1"), ("B", ""), ("A", "2")]
    publisher.publish(
        Message(f"{base}{n % 5}", b"" if kind == "counter" else b"%d" % n * (n % 50), headers if n % 2 else headers[:1])
        for n in range(1, 61)
    )
    if kind not in ("key-value bucket", "counter"):
        for sequence in (2, 3, 30, 60):
            api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence, "no_erase": True})
    made = backup(connection, name, tmp_path / ("b.tar" if name.startswith("KV_") else "b"))
    assert made.kind is EntryKind.ARCHIVE
    found = restored(made.path, f"{name}2", changes={"subjects": ["elsewhere.>"]})
    assert found.differences == ()
    assert bool(found.notes) == name.startswith(("KV_", "OBJ_"))
    assert state(api, f"{name}2") == state(api, name)
    before, after = (api(f"STREAM.INFO.{each}")["config"] for each in (name, f"{name}2"))
    assert after == {**before, "name": f"{name}2", "subjects": ["elsewhere.>"]}
    assert messages(api, f"{name}2") == messages(api, name)
    assert len([each for each in messages(api, name) if "missing" not in each]) >= 25


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("purged", [False, True])
def test_streams_of_almost_nothing_come_back(
    count: int,
    purged: bool,
    connection: Connection,
    api: Api,
    make_stream: Make,
    publisher: Publisher,
    restored: Callable[..., Restored],
    tmp_path: Path,
) -> None:
    name = make_stream({})
    if purged:
        publisher.publish([Message(f"{name.lower()}.a", b"gone")] * 5)
        api(f"STREAM.PURGE.{name}", {})
    publisher.publish([Message(f"{name.lower()}.a", b"one")] * count)
    backup(connection, name, tmp_path / "b.tar")
    found = restored(tmp_path / "b.tar", f"{name}2", changes={"subjects": ["almost"]})
    assert found.differences == ()
    assert found.info.state.last_seq == 5 * purged + count
    assert state(api, f"{name}2") == state(api, name)


def test_mirrors_come_back_as_mirrors(
    connection: Connection, api: Api, make_stream: Make, restored: Callable[..., Restored], tmp_path: Path
) -> None:
    name = make_stream(STREAMS["mirror"])
    found = restored(backup(connection, name, tmp_path / "m").path, "MIRROR2")
    assert found.info.config.mirror is not None
    assert found.info.config.mirror.name == "ORIGIN"


def test_consumers_come_back_where_they_were(
    connection: Connection,
    api: Api,
    filled: str,
    nats_server: NatsServer,
    restored: Callable[..., Restored],
    tmp_path: Path,
) -> None:
    for consumer, more in (("works", {}), ("filtered", {"filter_subject": "filled.1"}), ("idle", {})):
        config = {"durable_name": consumer, "name": consumer, "ack_policy": "explicit", "ack_wait": 10**12, **more}
        api(f"CONSUMER.CREATE.{filled}.{consumer}", {"stream_name": filled, "config": config, "action": "create"})

    async def work(js: JetStreamContext) -> None:
        for consumer in ("works", "filtered"):
            subscription = await js.pull_subscribe_bind(consumer, stream=filled)
            messages = await subscription.fetch(8)
            for number in (0, 1, 5):
                await messages[number].ack_sync()

    ask(nats_server.url, work)
    info = {name: api(f"CONSUMER.INFO.{filled}.{name}") for name in ("works", "filtered", "idle")}
    assert info["works"]["num_ack_pending"] == 5
    made = backup(connection, filled, tmp_path / "b")
    found = restored(made.path, "CONSUMED", changes={"subjects": ["consumed.>"], "storage": "memory"})
    assert found.differences == ()
    for name, before in info.items():
        after = api(f"CONSUMER.INFO.CONSUMED.{name}")
        assert still(after) == still(before)
        assert after["config"] == before["config"]
    without = backup(connection, filled, tmp_path / "without", consumers=False)
    assert restored(without.path, "BARE", changes={"subjects": ["bare.>"]}).differences == ()
    assert api("CONSUMER.NAMES.BARE")["total"] == 0


@pytest.mark.full
def test_a_stream_of_100_mb_comes_back_message_by_message(
    connection: Connection,
    api: Api,
    make_stream: Make,
    publisher: Publisher,
    restored: Callable[..., Restored],
    nats_server: NatsServer,
    tmp_path: Path,
) -> None:
    name = make_stream({"name": "LARGE", "subjects": ["large.>"]})
    times = 50
    publisher.pour(incompressible("large"), times, Message("large.end", b"end"))
    seen: list[tuple[int, int]] = []
    made = backup(connection, name, tmp_path / "large.tar", progress=lambda done, total: seen.append((done, total)))
    assert made.manifest.data_bytes > 95_000_000
    assert seen == sorted(seen)
    assert seen[-1] == (made.manifest.data_bytes, made.reply.state.bytes)
    seen.clear()
    found = restored(
        made.path, "LARGE2", changes={"subjects": ["l2.>"]}, progress=lambda done, total: seen.append((done, total))
    )
    assert found.differences == ()
    assert seen[-1] == (made.manifest.data_bytes, made.manifest.data_bytes)
    assert same(connection, nats_server.url, name, "LARGE2") == POUR * times + 1


def test_a_stream_with_three_replicas_comes_back_with_one_and_with_three(
    nats_cluster: NatsCluster, tmp_path: Path
) -> None:
    connection = connect(options(nats_cluster.url))
    with Publisher(nats_cluster.urls[1]) as publisher:
        config = {"name": "CLUSTERED", "subjects": ["clustered.>"], "num_replicas": 3}
        publisher.api("STREAM.CREATE.CLUSTERED", config)
        consumer = {"durable_name": "c", "name": "c", "ack_policy": "explicit"}
        publisher.api(
            "CONSUMER.CREATE.CLUSTERED.c", {"stream_name": "CLUSTERED", "config": consumer, "action": "create"}
        )
        publisher.publish(Message(f"clustered.{n}", b"%d" % n) for n in range(500))
        made = backup(connection, "CLUSTERED", tmp_path / "b")
        for name, replicas in (("ALONE", 1), ("AGAIN", 3)):
            changes = {"subjects": [f"{name}.>"], "num_replicas": replicas}
            found = restore(connection, made.path, name=name, changes=changes)
            assert found.differences == ()
            assert found.info.config.num_replicas == replicas
            # Its leader is chosen a moment later.
            poll(
                partial(named, publisher, name),
                10,
                lambda: TimeoutError("the consumer is not there"),
            )
            assert same(connection, nats_cluster.url, "CLUSTERED", name) == 500
        damage = flipped(made.path)
        for name, replicas in (("BROKEN1", 1), ("BROKEN3", 3)):
            changes = {"subjects": [f"{name}.>"], "num_replicas": replicas}
            with pytest.raises(BackupError, match="10062"):
                restore(connection, damage, name=name, changes=changes)
            assert name not in publisher.api("STREAM.NAMES")["streams"]


def named(publisher: Publisher, stream: str) -> list[str] | None:
    return publisher.api(f"CONSUMER.NAMES.{stream}")["consumers"] or None


# -- files --


def test_a_backup_has_the_layout_of_the_nats_tool(saved: Path, api: Api) -> None:
    assert {path.name for path in saved.iterdir()} == {META, DATA, MANIFEST}
    text = (saved / META).read_text()
    info = api("STREAM.INFO.FILLED")
    assert text.startswith('{\n  "config": {\n    "name": "FILLED"')
    content = json.loads(text)
    assert set(content) == {"config", "state"}
    assert content["config"]["subjects"] == info["config"]["subjects"]
    assert content["state"] == info["state"]
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["data_sha256"] == hashlib.sha256((saved / DATA).read_bytes()).hexdigest()
    assert manifest["stream"] == "FILLED"
    assert manifest["chunks"] >= 4


def test_a_backup_of_the_nats_tool_is_taken(saved: Path, restored: Callable[..., Restored]) -> None:
    (saved / MANIFEST).unlink()
    content = json.loads((saved / META).read_text())
    content["state"] |= {"deleted": None, "num_deleted": 0, "lost": None}
    (saved / META).write_text(json.dumps(content, indent=1))
    found = restored(saved, "TAKEN", changes={"subjects": ["taken.>"]})
    assert found.differences == ()
    assert len(found.notes) == 1
    assert str(saved / MANIFEST) in found.notes[0]


def test_a_single_file_is_a_tar_file_of_the_directory(
    connection: Connection, filled: str, restored: Callable[..., Restored], tmp_path: Path
) -> None:
    made = backup(connection, filled, tmp_path / "deep" / "b.tar")
    with tarfile.open(made.path) as archive:
        assert archive.getnames() == [DATA, META, MANIFEST]
        archive.extractall(tmp_path / "out", filter="data")
    assert hashlib.sha256((tmp_path / "out" / DATA).read_bytes()).hexdigest() == made.manifest.data_sha256
    assert restored(tmp_path / "out", "UNPACKED", changes={"subjects": ["unpacked.>"]}).notes == ()
    with tarfile.open(tmp_path / "again.tar", "w") as archive:
        archive.add(tmp_path / "out", "some/where")
    assert restored(tmp_path / "again.tar", "REPACKED", changes={"subjects": ["repacked.>"]}).notes == ()


def test_what_is_there_is_never_overwritten(connection: Connection, filled: str, saved: Path, tmp_path: Path) -> None:
    before = sorted((path.name, path.read_bytes()) for path in saved.iterdir())
    (tmp_path / "file.tar").write_bytes(b"mine")
    for target in (saved, tmp_path / "file.tar"):
        with pytest.raises(OptionError, match=f"{target} exists already"):
            backup(connection, filled, target)
    assert sorted((path.name, path.read_bytes()) for path in saved.iterdir()) == before
    assert (tmp_path / "file.tar").read_bytes() == b"mine"
    with pytest.raises(BackupError, match=r"cannot write the backup .*file.tar/b"):
        backup(connection, filled, tmp_path / "file.tar" / "b")
    (tmp_path / "empty").mkdir()
    assert backup(connection, filled, tmp_path / "empty").path == tmp_path / "empty"


# -- backups that are broken off --


@pytest.fixture
def proxied(nats_server: NatsServer) -> Iterator[tuple[WireProxy, Connection]]:
    """A connection that can be disturbed."""
    with WireProxy(nats_server.url) as proxy:
        yield proxy, connect(options(proxy.url))
        close_all()


def without_answer_to(text: bytes) -> Callable[[bytes], bytes]:
    return lambda frame: b"" if text in frame else frame


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_a_cut_connection_leaves_nothing(
    suffix: str, proxied: tuple[WireProxy, Connection], filled: str, tmp_path: Path
) -> None:
    proxy, connection = proxied
    proxy.cut_after(300_000)
    with pytest.raises(ConnectionFailed):
        backup(connection, filled, tmp_path / f"b{suffix}", chunk_size=65536, window_size=131072)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (b"65536.3 65536", "has a hole: chunk 3"),
        (b"NATS/1.0 204", "sent nothing for 1 s"),
    ],
)
def test_what_is_lost_on_the_way_is_noticed(
    lost: bytes, said: str, proxied: tuple[WireProxy, Connection], filled: str, tmp_path: Path
) -> None:
    proxy, connection = proxied
    proxy.drop(without_answer_to(lost))
    with pytest.raises(BackupError, match=said):
        backup(connection, filled, tmp_path / "b", chunk_size=65536, silence=1)
    assert proxy.dropped
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_backup_is_not_taken_for_granted(
    proxied: tuple[WireProxy, Connection], filled: str, tmp_path: Path
) -> None:
    proxy, connection = proxied
    said = b"NATS/1.0 500 disk error\r\n\r\n"

    def failing(frame: bytes) -> bytes:
        if b"NATS/1.0 204" not in frame:
            return frame
        line = frame.split(b"\r\n")[0].split(b" ")
        return b"%s %d %d\r\n%s\r\n" % (b" ".join(line[:-2]), len(said), len(said), said)

    proxy.drop(failing)
    with pytest.raises(BackupError, match="broken off by the server: 500 disk error"):
        backup(connection, filled, tmp_path / "b")
    # An end without a status is one only where all of it fitted into one chunk.
    proxy.drop(lambda frame: frame if b"NATS/1.0 204" not in frame else bare(frame))
    with pytest.raises(BackupError, match="an end without a status"):
        backup(connection, filled, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def bare(frame: bytes) -> bytes:
    line = frame.split(b"\r\n")[0].split(b" ")
    return b"MSG %s 0\r\n\r\n" % b" ".join(line[1:-2])


def test_a_stream_that_is_not_there_or_goes_away(
    connection: Connection, api: Api, make_stream: Make, publisher: Publisher, tmp_path: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(StreamNotFound):
        backup(connection, "NOSUCH", tmp_path / "b")
    name = make_stream({"name": "GOING"})
    publisher.pour(incompressible("going"), 5, Message("going.end"))
    with pytest.raises(KeyboardInterrupt):
        backup(connection, name, tmp_path / "b", progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    going = [name]

    def remove(done: int, total: int) -> None:
        if going:
            api(f"STREAM.DELETE.{going.pop()}")

    with pytest.raises(
        BackupError, match="the backup of stream GOING is broken off: the server has sent nothing for 1 s"
    ):
        backup(connection, name, tmp_path / "b", window_size=1, silence=1, progress=remove)
    assert list(tmp_path.iterdir()) == []
    api("STREAM.CREATE.GOING", {"name": "GOING"})


# -- damage --


def flipped(source: Path) -> Path:
    """The backup without its manifest, and with another byte in its last message."""
    (source / MANIFEST).unlink()
    data = bytearray((source / DATA).read_bytes())
    data[-20] ^= 1
    (source / DATA).write_bytes(data)
    return source


def _data(change: Callable[[bytes], bytes], keep: bool = True) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        path = source / DATA
        path.write_bytes(change(path.read_bytes()))
        if not keep:
            (source / MANIFEST).unlink()

    return damage


def _json(name: str, change: Callable[[str], str], keep: bool = True) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        path = source / name
        path.write_text(change(path.read_text()))
        if not keep:
            (source / MANIFEST).unlink()

    return damage


def _last_chunk(data: bytes) -> int:
    at, last = 0, 0
    while at < len(data):
        at, last = at + 4 + int.from_bytes(data[at + 1 : at + 4], "little"), at
    return last


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_data(lambda data: data[:-1000]), f"{DATA} is cut off at byte"),
    "cut between chunks": (_data(lambda data: data[: _last_chunk(data)]), f"{DATA} is not what was written"),
    "flipped": (_data(_flip), f"{DATA} is not what was written"),
    "longer": (_data(lambda data: data + bytes(100)), f"{DATA} has no valid chunk"),
    "empty": (_data(lambda data: b""), f"{DATA} is cut off at byte 0"),
    "cut, no manifest": (_data(lambda data: data[:-1000], keep=False), f"{DATA} is cut off at byte"),
    "cut between chunks, no manifest": (_data(lambda data: data[: _last_chunk(data)], keep=False), "saved.*10062"),
    "flipped, no manifest": (_data(_flip, keep=False), "saved.*10062"),
    "longer, no manifest": (_data(lambda data: data + b"more", keep=False), f"{DATA} has no valid chunk"),
    "something else": (_data(lambda data: b"something else", keep=False), f"{DATA} does not begin like"),
    "something else compressed": (
        _data(lambda data: b"\xff\x06\x00\x00S2sTwO\x01\x08\x00\x00\0\0\0\0else", keep=False),
        f"{DATA} is not a backup of a stream",
    ),
    "old, other name": (
        _data(lambda data: b"\xff\x06\x00\x00S2sTwO\x01\x0c\x00\x00\0\0\0\0meta.inf", keep=False),
        f"{DATA} was made by a server before 2.15",
    ),
    "another configuration": (_json(META, lambda text: text.replace("FILLED", "OTHER")), f"{META} is not what was"),
    "no JSON": (_json(META, lambda text: text[:-20], keep=False), f"{META} is not JSON"),
    "no object": (_json(META, lambda _: "[]", keep=False), f"{META} is not a JSON object"),
    "no state": (
        _json(META, lambda text: text.replace('"state"', '"stat"'), keep=False),
        f"{META} has no config or no",
    ),
    "wrong type": (_json(META, lambda text: text.replace('"FILLED"', "7"), keep=False), f"{META}.*name"),
    "manifest no JSON": (_json(MANIFEST, lambda text: text[:-20]), f"{MANIFEST} is not JSON"),
    "later version": (_json(MANIFEST, lambda text: text.replace('n": 1', 'n": 2')), f"{MANIFEST} has version 2"),
    "no version": (_json(MANIFEST, lambda text: text.replace('n": 1', 'n": 0')), f"{MANIFEST}: there is no version 0"),
    "manifest without a sum": (
        _json(MANIFEST, lambda text: text.replace("data_sha256", "d")),
        f"{MANIFEST}: there is no",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    damage: str, connection: Connection, saved: Path, api: Api
) -> None:
    change, said = DAMAGES[damage]
    change(saved)
    before = left(api)
    with pytest.raises(BackupError, match=said) as caught:
        restore(connection, saved, name="DAMAGED", changes={"subjects": ["damaged.>"]})
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left(api) == before


def test_a_backup_with_a_missing_file_or_for_another_storage_is_refused(connection: Connection, saved: Path) -> None:
    with opened(saved) as content:
        assert checked(content) is EntryKind.ARCHIVE
        assert (content.meta.config.name, content.meta.state.messages) == ("FILLED", TOTAL)
    DAMAGES["old, other name"][0](saved)
    with pytest.raises(BackupError, match="can only be restored as file, not as memory"):
        restore(connection, saved, changes={"storage": "memory"})
    for name in (DATA, META):
        (saved / name).unlink()
        with pytest.raises(BackupError, match=f"{saved / name} is missing"):
            restore(connection, saved, name="DAMAGED")


def test_single_files_that_are_damaged_are_refused(connection: Connection, filled: str, tmp_path: Path) -> None:
    whole = backup(connection, filled, tmp_path / "b.tar").path.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "no header": bytes(512) + whole[512:],
        "flipped": _flip(whole),
        "text": b"not a tar file" * 100,
        "empty": b"",
    }
    for name, content in damaged.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(content)
        with pytest.raises(BackupError, match=str(path)):
            restore(connection, path, name="DAMAGED")
    with pytest.raises(BackupError, match=r"cannot read the backup .*nothing: No such file"):
        restore(connection, tmp_path / "nothing")


def test_any_cut_and_any_pieces_of_the_data_are_seen(saved: Path) -> None:
    data = (saved / DATA).read_bytes()[-(1 << 16) :]
    whole = b"\xff\x06\x00\x00S2sTwO\x01\x0d\x00\x00\0\0\0\0NATSARC1x\x00\x06\x00\x00abcdef\x99\x02\x00\x00ab"
    ends = {27, 37, 43}

    @given(st.integers(0, len(whole)), st.lists(st.integers(0, len(whole)), max_size=6))
    def check(end: int, cuts: list[int]) -> None:
        framing = Framing("x")
        places = sorted({0, end, *(cut for cut in cuts if cut < end)})
        for start, stop in pairwise(places):
            framing.feed(whole[start:stop])
        if end in ends:
            assert framing.finish() is EntryKind.ARCHIVE
        else:
            with pytest.raises(BackupError, match="x is cut off at byte"):
                framing.finish()

    check()
    with pytest.raises(BackupError, match="does not begin"):
        Framing("x").feed(data)


def test_compressed_data_tells_what_it_is() -> None:
    literal = b"NATSARC1" + bytes(range(70))
    for body in (
        bytes([100, (len(literal) - 1) << 2 & 0xFC]) + literal[:60],
        bytes([0xAC, 0x02, 60 << 2, len(literal) - 1]) + literal,
        bytes([0xAC, 0x02, 61 << 2, len(literal) - 1, 0]) + literal,
    ):
        chunk = bytes(4) + body
        framing = Framing("x")
        framing.feed(b"\xff\x06\x00\x00S2sTwO\x00" + len(chunk).to_bytes(3, "little") + chunk)
        assert framing.finish() is EntryKind.ARCHIVE


# -- restores that fail --


def test_a_stream_that_exists_is_left_alone(connection: Connection, saved: Path, api: Api) -> None:
    before = api("STREAM.INFO.FILLED")
    with pytest.raises(StreamExists, match="restore stream FILLED"):
        restore(connection, saved)
    with pytest.raises(BackupError, match=r"its subject filled\.> overlaps those of stream FILLED"):
        restore(connection, saved, name="OTHER")
    after = api("STREAM.INFO.FILLED")
    assert (after["created"], after["state"]) == (before["created"], before["state"])
    assert "OTHER" not in left(api)


def test_a_stream_made_by_others_meanwhile_is_left_alone(connection: Connection, saved: Path, api: Api) -> None:
    sent: list[int] = []

    def come_first(done: int, total: int) -> None:
        if not sent:
            api("STREAM.CREATE.RACE", {"name": "RACE", "subjects": ["race.>"]})
        sent.append(done)

    with pytest.raises(StreamExists, match="already in use"):
        restore(
            connection, saved, name="RACE", changes={"subjects": ["race.>"]}, chunk_size=200_000, progress=come_first
        )
    assert state(api, "RACE")["messages"] == 0
    api("STREAM.DELETE.RACE")


def test_changes_are_checked_like_what_a_user_writes(connection: Connection, saved: Path) -> None:
    for changes, said in (
        ({"subject": ["a"]}, "subjects"),
        ({"storage": "tape"}, "storage"),
        ({"name": "X"}, "give it as name"),
    ):
        with pytest.raises(OptionError, match=said):
            restore(connection, saved, name="CHANGED", changes=changes)


def test_a_restore_that_is_broken_off_leaves_nothing(connection: Connection, saved: Path, api: Api) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            assert "HALF" in left(api)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(connection, saved, name="HALF", changes={"subjects": ["half.>"]}, chunk_size=65536, progress=stop)
    assert "HALF" not in left(api)


def test_a_connection_that_is_cut_while_restoring_leaves_nothing(
    proxied: tuple[WireProxy, Connection], saved: Path, api: Api
) -> None:
    proxy, connection = proxied
    done: list[int] = []

    def cut(sent: int, total: int) -> None:
        if sent > total // 2 and not done:
            done.append(sent)
            proxy.cut_after(1)

    with pytest.raises(ConnectionFailed):
        restore(connection, saved, name="CUT", changes={"subjects": ["cut.>"]}, chunk_size=65536, progress=cut)
    assert done
    assert "CUT" not in left(api)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error":{"code":500,"err_code":10047,"description":"no space"}}', r"no space \(code 500, error 10047\)"),
        (b"{}", "the server ended it after"),
    ],
)
def test_an_answer_to_a_chunk_ends_it(
    answer: bytes, said: str, proxied: tuple[WireProxy, Connection], saved: Path, api: Api
) -> None:
    proxy, connection = proxied

    def answered(frame: bytes) -> bytes:
        if not frame.endswith(b" 0\r\n\r\n"):
            return frame
        return b"%s %d\r\n%s\r\n" % (frame.split(b"\r\n")[0].removesuffix(b" 0"), len(answer), answer)

    def disturb(sent: int, total: int) -> None:
        if sent > total // 2:
            proxy.drop(answered)

    with pytest.raises(BackupError, match=said):
        restore(connection, saved, name="ENDED", changes={"subjects": ["ended.>"]}, chunk_size=65536, progress=disturb)
    assert "ENDED" not in left(api)


@pytest.mark.full
def test_what_cannot_be_taken_back_is_said(proxied: tuple[WireProxy, Connection], saved: Path, api: Api) -> None:
    proxy, _ = proxied
    connection = connect(options(proxy.url, requestTimeout="1s"))

    def away(sent: int, total: int) -> None:
        if sent > total // 2:
            proxy.refuse()
            proxy.cut()
            poll(lambda: None if connection._is_up else True, 10, lambda: TimeoutError("still up"))

    with pytest.raises(BackupError, match="a part of stream AWAY may be left, delete it before"):
        restore(connection, saved, name="AWAY", changes={"subjects": ["away.>"]}, chunk_size=65536, progress=away)
    api("STREAM.DELETE.AWAY")


def test_what_differs_afterwards_is_said(saved: Path, restored: Callable[..., Restored]) -> None:
    found = restored(saved, "FEWER", changes={"subjects": ["fewer.>"], "max_msgs": 100})
    assert found.info.state.messages == 100
    assert f"messages was {TOTAL} and is 100" in found.differences
    assert any(each.startswith("first_seq was 1 and is ") for each in found.differences)


# -- permissions --

NEEDED = {
    "backup": ["$JS.API.STREAM.SNAPSHOT.S", "$JS.SNAPSHOT.ACK.S.>"],
    "restore": [
        "$JS.API.STREAM.RESTORE.T",
        "$JS.API.STREAM.NAMES",
        "$JS.SNAPSHOT.RESTORE.T.*",
        "$JS.API.STREAM.INFO.T",
        "$JS.API.STREAM.DELETE.T",
    ],
}


@pytest.mark.full
def test_these_permissions_are_enough_and_each_is_needed(
    nats_server_factory: Callable[..., NatsServer], tmp_path: Path
) -> None:
    def user(name: str, allowed: list[str]) -> str:
        publish = json.dumps(allowed)
        return f'{{user: {name}, password: p, permissions: {{publish: {publish}, subscribe: ["_INBOX.>"]}}}}'

    without = {
        f"{kind}{number}": ([each for each in subjects if each != subject], kind, subject)
        for kind, subjects in NEEDED.items()
        for number, subject in enumerate(subjects)
    }
    users = [user(name, allowed) for name, (allowed, _, _) in without.items()]
    users += [user(kind, subjects) for kind, subjects in NEEDED.items()]
    users.append("{user: admin, password: p}")
    server = nats_server_factory(config=f"authorization {{ users: [{', '.join(users)}] }}")

    def to(name: str) -> Connection:
        return connect(options(server.url, user=name, password="p"))

    def carry_out(kind: str, connection: Connection, where: str) -> None:
        if kind == "backup":
            backup(connection, "S", tmp_path / where, window_size=1024)
        else:
            restore(connection, tmp_path / "backup", name="T", changes={"subjects": ["t"]}, progress=progress)

    def progress(done: int, total: int) -> None:
        # The server makes the stream when it has all of what was compressed together, 1 MiB.
        if failing and done > 1_200_000:
            raise KeyError("stop")

    failing: list[bool] = []
    admin = server.url.replace("//", "//admin:p@")
    with Publisher(admin) as publisher:
        publisher.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        publisher.pour(incompressible("s"), 1, Message("s.end"))
        for kind in NEEDED:
            carry_out(kind, to(kind), kind)
        publisher.api("STREAM.DELETE.T")
        failing.append(True)
        for name, (_, kind, subject) in without.items():
            with pytest.raises(JetStreamError, match=r"\$JS") as caught:
                carry_out(kind, to(name), name)
            named = str(caught.value)
            assert subject.removesuffix("*").removesuffix(">") in named
            assert isinstance(caught.value, (PermissionDenied, BackupError))
            if "T" in (publisher.api("STREAM.NAMES").get("streams") or []):
                publisher.api("STREAM.DELETE.T")
        with pytest.raises(KeyError):
            carry_out("restore", to("restore"), "")
        with pytest.raises(Refused):
            publisher.api("STREAM.INFO.T")
    close_all()


def test_a_backup_says_where_it_is(connection: Connection, filled: str, tmp_path: Path) -> None:
    made = backup(connection, filled, str(tmp_path / "b"), check=True, chunk_size=1024, window_size=4096)
    assert isinstance(made, Backup)
    assert made.path == tmp_path / "b"
    assert made.manifest.chunks == -(-made.manifest.data_bytes // 1024)
