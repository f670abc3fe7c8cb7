"""Objects in trouble, on the real server: damaged, replaced while they are read, cut off while they
are put.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spark_jetstream.admin import JetStreamAdmin, ObjectBucket, object_reader
from spark_jetstream.admin.watch import settings
from spark_jetstream.buckets.object_store import ObjectUploads
from spark_jetstream.buckets.objects import chunk_subject
from spark_jetstream.buckets.upload_notes import note_body, note_subject
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    JetStreamError,
    MessageNotFound,
    OptionError,
    OutageError,
)
from tests.admin.conftest import CHUNK, Made
from tests.support.objects import content
from tests.support.proxy import Acks, WireProxy, answer, is_ack
from tests.support.publish import Message, Publisher
from tests.support.reading import QUICK

T = TypeVar("T")

SMALL = 1000  # bytes of a chunk, where there are to be many


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server says every half of this that a chunk that has gone does not come: 5 seconds, for
    slow connections.
    """
    monkeypatch.setattr(
        object_reader, "settings", lambda api, batch: replace(settings(api, batch), expires=0.4)
    )


@pytest.fixture
def behind(store: Made, proxy: WireProxy) -> Iterator[ObjectBucket]:
    """The bucket, as one sees it whose connection can be cut."""
    with JetStreamAdmin(servers=proxy.url, **QUICK) as admin:
        yield admin.objects.bucket(store.name)


# -- damage --


def one_removed(store: Made, publisher: Publisher, subject: str) -> None:
    store.admin.messages.delete(store.stream, store.admin.messages.next(store.stream, subject).seq)


def one_bit_changed(store: Made, publisher: Publisher, subject: str) -> None:
    """Store other chunks under the same id, and the meta message as it was behind them."""
    meta = store.admin.messages.last(store.stream, f"$O.{store.name}.M.>")
    first, *others = [message.data for message in store.admin.messages.read(store.stream, subject)]
    store.api(f"STREAM.PURGE.{store.stream}", {"filter": subject})
    publisher.publish(
        Message(subject, chunk) for chunk in (bytes([first[0] ^ 1]) + first[1:], *others)
    )
    publisher.publish([Message(meta.subject, meta.data, [("Nats-Rollup", "sub")])])


@pytest.mark.parametrize("damage", [one_removed, one_bit_changed])
def test_damage_is_an_error_and_no_file(
    store: Made,
    publisher: Publisher,
    tmp_path: Path,
    damage: Callable[[Made, Publisher, str], None],
) -> None:
    """Never fewer bytes, or others, without a word.

    `tests/buckets` has all that content can lack.
    """
    info = store.objects.put("a", content("a", 1, 5 * SMALL), chunk_size=SMALL)
    damage(store, publisher, chunk_subject(store.name, info.nuid))
    said = (
        rf"object 'a' of bucket {store.name} is damaged: its (meta message says|content has "
        r"another digest)"
    )
    with pytest.raises(DataLossError, match=said):
        store.objects.get("a")
    with pytest.raises(DataLossError, match=said):
        list(store.objects.read("a"))
    (tmp_path / "there").write_bytes(b"old")
    for name in ("new", "there"):
        with pytest.raises(DataLossError, match=said):
            store.objects.get_file("a", tmp_path / name, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"there": b"old"}


# -- files --


def test_files_are_not_overwritten_unasked(store: Made, tmp_path: Path) -> None:
    store.objects.put("a", b"new")
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(OptionError, match=f"{target} exists already"):
        store.objects.get_file("a", target)
    assert target.read_bytes() == b"old"
    target.chmod(0o600)
    store.objects.get_file("a", target, overwrite=True)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"new", 0o600)
    with pytest.raises(OptionError, match=f"{tmp_path} exists already"):
        store.objects.get_file("a", tmp_path, overwrite=True)
    for path in (target / "inside", tmp_path / "nowhere" / "file", tmp_path / ("a" * 300)):
        with pytest.raises(JetStreamError, match=f"cannot write {path}: "):
            store.objects.get_file("a", path)
    store.objects.get_file("a", tmp_path / ("日" * 84))

    def appears(done: int, total: int) -> None:
        (tmp_path / "late").write_bytes(b"of somebody else")

    with pytest.raises(OptionError, match="late exists already"):
        store.objects.get_file("a", tmp_path / "late", progress=appears)
    assert (tmp_path / "late").read_bytes() == b"of somebody else"
    with pytest.raises(OptionError, match=r"cannot read .*missing: No such file"):
        store.objects.put_file(tmp_path / "missing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "late", "日" * 84]


# -- replaced while it is read --


def test_the_new_version_comes_whole(store: Made, tmp_path: Path) -> None:
    """An object that is replaced while it is read comes in its new version, and no byte of the old
    one is left.
    """
    old, new = (content("a", version, 200 * SMALL) for version in (1, 2))
    store.objects.put("a", old, chunk_size=SMALL)
    totals: list[int] = []

    def replace_once(done: int, total: int) -> None:
        if not totals:
            store.objects.put("a", new[: 150 * SMALL], chunk_size=SMALL)
        totals.append(total)

    info = store.objects.get_file("a", tmp_path / "a", progress=replace_once)
    assert (tmp_path / "a").read_bytes() == new[: 150 * SMALL]
    assert info == store.objects.info("a")
    assert {totals[0], totals[-1]} == {200 * SMALL, 150 * SMALL}
    store.check()


def test_replaced_or_deleted_between_chunks(store: Made) -> None:
    """A reader that has begun the old version does not mix it with the new one."""
    old, new = (content("a", version, 500 * SMALL) for version in (1, 2))
    store.objects.put("a", old, chunk_size=SMALL)
    reading = store.objects.read("a")
    came = [next(reading)]
    store.objects.put("a", new, chunk_size=SMALL)
    with pytest.raises(
        JetStreamError, match=rf"object 'a' of bucket {store.name} was replaced while it was read"
    ):
        came.extend(reading)
    assert old.startswith(b"".join(came))
    assert b"".join(store.objects.read("a")) == new
    reading = store.objects.read("a")
    next(reading)
    store.objects.delete("a")
    with pytest.raises(MessageNotFound, match="no object 'a'"):
        list(reading)


# -- a put that does not end well --


def broken(error: BaseException) -> Iterator[bytes]:
    yield from [b"x" * CHUNK] * 3
    raise error


@pytest.mark.parametrize(
    "error",
    [OSError("disk"), KeyboardInterrupt(), OptionError("own"), ZeroDivisionError()],
    ids=repr,
)
def test_content_that_cannot_be_had(store: Made, error: BaseException) -> None:
    """The error of the source is raised unchanged, the old object stays, and nothing else does."""
    store.objects.put("a", content("a", 1, 2 * CHUNK))
    with pytest.raises(type(error)) as raised:
        store.objects.put("a", broken(error))
    assert raised.value is error
    assert store.objects.get("a") == content("a", 1, 2 * CHUNK)
    with pytest.raises(type(error)):
        store.objects.put("b", broken(error))
    with pytest.raises(MessageNotFound):
        store.objects.info("b", deleted=True)
    store.check()


def test_a_file_that_cannot_be_read(store: Made, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"cannot read {tmp_path}: Is a directory"):
        store.objects.put_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(store.objects.put_file, tmp_path / "pipe", "piped")
        (tmp_path / "pipe").write_bytes(content("a", 1, 3 * CHUNK))
        assert putting.result(60).size == 3 * CHUNK
    assert store.objects.get("piped") == content("a", 1, 3 * CHUNK)


def test_a_full_bucket(store: Made) -> None:
    store.objects.put("a", content("a", 1, 3 * CHUNK))
    store.admin.objects.update(store.name, max_bytes=5 * CHUNK)
    said = (
        rf"cannot store object 'a' in bucket {store.name}: maximum bytes exceeded .*: the bucket "
        r"is full"
    )
    with pytest.raises(ApiError, match=said) as raised:
        store.objects.put("a", iter([content("a", 2, 3 * CHUNK)]))
    assert raised.value.err_code == 10077
    assert store.objects.get("a") == content("a", 1, 3 * CHUNK)
    store.check()


def test_a_cut_while_it_is_put(store: Made, proxy: WireProxy, behind: ObjectBucket) -> None:
    """When the answer to the note or to a chunk is lost, bytes are put again, and stored once; an
    iterator is not.
    """
    data = content("a", 1, 2 * CHUNK)
    for passing in (0, 2):
        assert cut_in_the_middle(proxy, passing, lambda: behind.put("a", data)).size == len(data)
        assert store.objects.get("a") == data
        store.check()
    once = iter([content("a", 2, 5 * CHUNK)])
    said = (
        rf"cannot store object 'a' in bucket {store.name}: .*; what its content is made of cannot "
        r"be read a second"
    )
    with pytest.raises(OutageError, match=said):
        cut_in_the_middle(proxy, 3, lambda: behind.put("a", once))
    assert store.objects.get("a") == content("a", 1, 2 * CHUNK)
    store.objects.put("a", b"next")  # removes what the cut has left
    assert store.objects.get("a") == b"next"
    store.check()


@pytest.mark.parametrize(
    "hidden", [{1, 2}, {1, 3}], ids=["nothing is there", "refused when it is sent again"]
)
def test_a_meta_message_that_is_stored_and_not_shown_yet(
    store: Made, proxy: WireProxy, behind: ObjectBucket, hidden: set[int]
) -> None:
    """As by a leader that has not applied its log yet.

    The chunks of an object that may be there must stay.
    """
    store.objects.put("a", content("a", 1, CHUNK))
    new = content("a", 2, 2 * CHUNK)
    answers = acks = 0

    def lose(frame: bytes) -> bytes:
        nonlocal answers, acks
        acks += is_ack(frame)
        if acks == 4 and is_ack(frame):  # after those of the note and of two chunks
            return b""
        shown = acks < 4 or b"stream_msg_get_response" not in frame
        answers += not shown
        if shown or answers not in hidden:
            return frame
        return answer(
            frame, b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'
        )

    proxy.drop(lose)
    with pytest.raises(JetStreamError, match="cannot be read a second time"):
        behind.put("a", iter([new]))
    proxy.drop(None)
    assert answers == max(hidden)
    assert store.objects.get("a") == new
    store.objects.put("a", b"next")
    assert store.objects.get("a") == b"next"
    store.check()


def test_a_cut_when_an_object_is_stored(
    store: Made, proxy: WireProxy, behind: ObjectBucket
) -> None:
    """The put has not failed then: it asks again for the time of the object."""
    stored, lost = threading.Event(), threading.Event()

    def lose(frame: bytes) -> bytes:
        if b"stream_purge_response" in frame:
            stored.set()
        if not stored.is_set() or b"stream_msg_get_response" not in frame:
            return frame
        lost.set()
        return b""

    proxy.drop(lose)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(behind.put, "a", b"x")
        assert lost.wait(60)
        proxy.drop(None)
        proxy.cut()
        assert putting.result(60) == store.objects.info("a")


def cut_in_the_middle(proxy: WireProxy, passing: int, work: Callable[[], T]) -> T:
    """Cut the connection after `passing` acknowledgements; return the result of ``work``."""
    acks = Acks(proxy, passing)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert acks.lost.wait(60)
        acks.end()
        proxy.cut()
        return working.result(60)


# -- several at the same time --


CHANGES: dict[str, Callable[[ObjectBucket], object]] = {
    "put": lambda objects: objects.put("a", b"between"),
    "rename": lambda objects: objects.update_meta("a", "b"),
    "delete": lambda objects: objects.delete("a"),
    "describe": lambda objects: objects.update_meta("a", description="between"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_the_middle_of_a_put(store: Made, change: str) -> None:
    """The put begins anew, on top of what is there by then.

    An object that has got another name keeps its content.
    """
    old, new = content("a", 1, 3 * CHUNK), content("a", 2, 3 * CHUNK)
    store.objects.put("a", old)
    pending = [CHANGES[change]]

    def progress(done: int, total: int) -> None:
        while pending:
            pending.pop()(store.objects)

    store.objects.put("a", new, progress=progress)
    contents = {info.name: store.objects.get(info.name) for info in store.objects.list()}
    assert contents == ({"b": old, "a": new} if change == "rename" else {"a": new})
    store.check()


def test_a_killed_put_does_not_take_content_away_that_was_renamed(
    store: Made, publisher: Publisher
) -> None:
    """It has noted that what it was to replace may go.

    The next put under that name must not believe it.
    """
    old = content("a", 1, 3 * CHUNK)
    info = store.objects.put("a", old)
    note = note_subject(store.name, "a")
    publisher.publish(
        [
            Message(note, note_body([info.nuid, "killed"])),
            Message(chunk_subject(store.name, "killed")),
        ]
    )
    store.objects.update_meta("a", "b")
    store.objects.put("a", b"new")
    assert (store.objects.get("a"), store.objects.get("b")) == (b"new", old)
    store.check()


@pytest.mark.full
def test_renamed_before_a_put_notes_what_it_replaces(
    store: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put's note is wrong already when it is written.

    When the put finds that, it must not remove the object that has another name now.
    """
    old = content("a", 1, 3 * CHUNK)
    store.objects.put("a", old)
    note = ObjectUploads._note

    def after_a_rename(uploads: ObjectUploads, *arguments: Any) -> None:
        monkeypatch.setattr(ObjectUploads, "_note", note)
        store.objects.update_meta("a", "b")
        note(uploads, *arguments)

    monkeypatch.setattr(ObjectUploads, "_note", after_a_rename)
    store.objects.put("a", b"new")
    assert (store.objects.get("a"), store.objects.get("b")) == (b"new", old)
    store.check()


def test_a_name_that_was_taken_and_given_up_before_a_put_ends(
    store: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after there is no meta message, so the put's own is stored; but its chunks were
    removed in between.
    """
    new = content("a", 1, 3 * CHUNK)
    store_meta = ObjectUploads._store_meta

    def after_another_object(uploads: ObjectUploads, *arguments: Any) -> int:
        monkeypatch.setattr(ObjectUploads, "_store_meta", store_meta)
        store.objects.put("a", b"between")
        store.objects.update_meta("a", "b")
        return store_meta(uploads, *arguments)

    monkeypatch.setattr(ObjectUploads, "_store_meta", after_another_object)
    store.objects.put("a", new)
    assert (store.objects.get("a"), store.objects.get("b")) == (new, b"between")
    store.check()


def test_replaced_at_the_moment_of_a_rename(store: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new name goes again: its content is about to go."""
    old = content("a", 1, 3 * CHUNK)
    store.objects.put("a", old)
    there = store.admin.objects.bucket(store.name)
    uploads = there._uploads

    def with_somebody_else(what: str) -> Any:
        if what.startswith("rename"):
            store.objects.put("a", b"new")
        return uploads(what)

    monkeypatch.setattr(there, "_uploads", with_somebody_else)
    with pytest.raises(
        JetStreamError, match=rf"object 'a' of bucket {store.name} keeps its name: another writer"
    ):
        there.update_meta("a", "b")
    assert [(info.name, info.size) for info in store.objects.list(deleted=True)] == [("a", 3)]
    store.check()
