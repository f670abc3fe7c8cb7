"""An engine that does not number its tasks, as Sail: which ids the sink can make, and which not."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from spark_jetstream.errors import DeliveryError, OptionError
from spark_jetstream.sink.message_ids import UNKNOWN, MessageIds, Scheme, WriteTask
from tests.support.calls import data_source
from tests.support.sinking import batch as rows_of
from tests.support.sinking import read
from tests.support.streams import MakeStream

DATA = pa.schema([("data", pa.binary())])


@pytest.fixture
def sail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysail._native", ModuleType("pysail._native"))


WRITES: dict[str, tuple[dict[str, str], list[str], str]] = {
    "default": ({}, ["data"], "option delivery cannot be deduplicated on Sail"),
    "write id": ({"writeId": "w"}, ["data"], "option delivery cannot be deduplicated on Sail"),
    "exactly once": (
        {"delivery": "exactly-once"},
        ["data", "msg_id"],
        "option delivery cannot be exactly-once on Sail",
    ),
    "bucket": ({"bucket": "B"}, ["key", "value"], "cannot be deduplicated with bucket on Sail"),
}


@pytest.mark.parametrize(("options", "columns", "message"), WRITES.values(), ids=WRITES)
@pytest.mark.usefixtures("sail")
def test_ids_that_need_a_number_are_refused_before_a_server_is_asked(
    options: dict[str, str], columns: list[str], message: str
) -> None:
    kinds = {"data": pa.binary(), "value": pa.binary()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    if "bucket" not in options:
        options = {"subject": "a", **options}
    with pytest.raises(OptionError) as caught:
        data_source({"servers": "nats://127.0.0.1:1", **options}).writer(schema, False)
    assert message in str(caught.value)
    assert "at-least-once" in str(caught.value)


def write(options: dict[str, Any], *batches: pa.RecordBatch) -> list[Any]:
    """Write batches as Sail does, each with a copy of the writer; what the tasks return."""
    pickled = pickle.dumps(data_source(options).writer(batches[0].schema, False))
    done = [pickle.loads(pickled).write(iter([batch])) for batch in batches]
    pickle.loads(pickled).commit([pickle.loads(pickle.dumps(message)) for message in done])
    return done


@pytest.mark.usefixtures("sail")
def test_equal_rows_of_two_tasks_are_stored_unless_they_have_one_id(stream: MakeStream) -> None:
    s = stream(storage="memory")
    options = {"servers": s.url, "subject": f"{s.subject}.a", "stream": s.name}
    batch = pa.RecordBatch.from_pydict({"data": [b"x", b"x"]}, DATA)
    write({**options, "delivery": "at-least-once"}, batch, batch)
    assert s.state()["messages"] == 4
    write({**options, "messageIds": "content", "writeId": "w"}, batch, batch)
    assert s.state()["messages"] == 5
    own = batch.append_column("msg_id", pa.array(["1", "2"]))
    [first, again] = write(options, own, own)
    assert s.state()["messages"] == 7
    assert (first.report.duplicates, again.report.duplicates) == (0, 2)


@pytest.mark.usefixtures("sail")
def test_a_row_without_an_id_of_its_own_fails_its_task(stream: MakeStream) -> None:
    s = stream(storage="memory")
    options = {"servers": s.url, "subject": f"{s.subject}.a", "stream": s.name}
    batch = pa.RecordBatch.from_pydict({"data": [b"x", b"y"], "msg_id": ["1", None]})
    with pytest.raises(DeliveryError, match="the engine does not number its tasks"):
        write(options, batch)
    assert s.state()["messages"] == 0


def test_no_id_is_made_of_a_number_that_is_not_known() -> None:
    task = WriteTask("w", 0, UNKNOWN)
    assert task.part == "a task"
    assert task.where == "a task of batch 0"
    rows = read(rows_of(subject=["a"], data=[b"x"]))
    with pytest.raises(DeliveryError, match="the engine does not number its tasks"):
        MessageIds(task).ids(rows)
    MessageIds(task, Scheme(partition=False, number=False)).ids(rows)


@pytest.mark.usefixtures("sail")
def test_a_column_without_any_id_is_refused_before_the_first_row(stream: MakeStream) -> None:
    s = stream(storage="memory")
    options = {"servers": s.url, "subject": f"{s.subject}.a", "stream": s.name}
    batch = pa.RecordBatch.from_pydict({"data": [b"x"], "msg_id": pa.nulls(1)})
    with pytest.raises(OptionError, match="option delivery cannot be deduplicated on Sail"):
        write(options, batch)
