"""The imports of a worker that writes: Spark looks for garbage in all of them, after each later
task.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from spark_jetstream.testing import NatsServer
from tests.support.jobs import run_python
from tests.support.reading import api, create
from tests.support.sinking import batch

TEXTS = [f"text {number}" for number in range(6)]
SUBJECTS = [f"s.{number}" for number in range(6)]
IDS = ["a", None, "b", "bad id", None, "c"]
HEADERS = [
    [("A", ["1", "2"]), ("Nats-Msg-Id", ["x"])],
    None,
    [],
    [("B:", ["bad name"])],
    [("C", ["bad\n"])],
    None,
]
BY_KEY = {
    "key": ["a", "b", "a", "c", "."],
    "value": [*TEXTS[:4], None],
    "expected_revision": [0, None, None, None, -1],
}
#: Rows, the options to write them with, and how many are stored and become dead letters. Each kind
#: has bad ones.
CASES: dict[str, tuple[pa.RecordBatch, dict[str, str], tuple[int, int]]] = {
    "plain": (batch(data=["same"] * 6, subject=["s.1"] * 6), {"delivery": "at-least-once"}, (6, 0)),
    "full": (
        batch(data=[None, *TEXTS[1:]], subject=[*SUBJECTS[:5], "s.*"], headers=HEADERS, msg_id=IDS),
        {"delivery": "exactly-once"},
        (2, 4),
    ),
    "repeated": (
        batch(data=["same"] * 6, subject=["s.1"] * 6),
        {"delivery": "exactly-once"},
        (6, 0),
    ),
    "lasting": (
        batch(data=TEXTS, subject=SUBJECTS, ttl=["1h", None, "never", " ", None, None]),
        {},
        (5, 1),
    ),
    "expecting": (
        batch(
            data=TEXTS,
            subject=[f"e.{text[5]}" for text in TEXTS],
            expected_last_subject_sequence=[0, -1, None] * 2,
        ),
        {},
        (4, 2),
    ),
    "rolled": (
        batch(data=TEXTS, subject=["r.1"] * 6, rollup=["sub", None, "sub", "sub", "none", None]),
        {},
        (5, 1),
    ),
    "timed": (
        batch(
            data=TEXTS,
            subject=SUBJECTS,
            schedule=["@daily", None, " "] * 2,
            schedule_target=["s.due"] * 6,
        ),
        {},
        (4, 2),
    ),
    "grouped": (
        batch(
            data=TEXTS, subject=SUBJECTS, msg_id=IDS, atomic_group=["x", "y", None, "z", "x", "y"]
        ),
        {},
        (5, 1),
    ),
    "counted": (
        batch(subject=["c.1"] * 6, incr=["1", "+2", "-3", "x", None, "5"]),
        {"stream": "C"},
        (4, 2),
    ),
    "keyed": (
        batch(**BY_KEY, operation=["PUT", None, "DELETE", "PURGE", "PUT"]),
        {"bucket": "B"},
        (4, 1),
    ),
    "objects": (
        batch(name=["a", "b"], content=[b"x", b""], headers=HEADERS[:2]),
        {"objectBucket": "O"},
        (2, 0),
    ),
}
WRITE = """
import json
import sys
import pyarrow as pa
from spark_jetstream.sink.task import WriteTask
from tests.support.sinking import Died, Sink
def dying():
    yield rows
    raise Died
for number, (path, options) in enumerate(json.loads(sys.argv[1])):
    sink, task = Sink(**options).started(), WriteTask("q", number, 0)
    rows = pa.ipc.open_stream(path).read_next_batch()
    if "exactly-once" in options.values():
        try:
            sink.write(dying(), task, names=rows.schema.names)
        except Died:
            pass
    report = sink.write([rows], task)
    print(json.dumps([report.stored, report.dead_letters, "pandas" in sys.modules]))
"""
WORK = """
import gc
import sys
import pyarrow as pa
from spark_jetstream.protocol.columns import repeated
from tests.support.calls import store, writer_of
rows = pa.record_batch([repeated("s", 1)] * 2, names=["data", "subject"])
store(writer_of("b", {"servers": sys.argv[1], "stream": "ONE"}, rows.schema), [rows])
pa.array(["the result, by pyspark/sql/worker/write_into_data_source.py"])
print(any(one is sys.modules["pandas"].__dict__ for one in gc.get_objects()))
"""


def test_writing_imports_no_pandas(server: NatsServer, tmp_path: Path) -> None:
    allowed = dict.fromkeys(
        ("allow_msg_ttl", "allow_rollup_hdrs", "allow_msg_schedules", "allow_atomic"), True
    )
    create(server.url, "S", subjects=["s.*", "e.*", "r.*"], **allowed)
    create(server.url, "C", subjects=["c.*"], allow_msg_counter=True)
    create(server.url, "KV_B", subjects=["$KV.B.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    create(server.url, "OBJ_O", subjects=["$O.O.C.>", "$O.O.M.>"], allow_rollup_hdrs=True)
    create(server.url, "DEAD", subjects=["dead"])
    given = []
    for name, (rows, options, _) in CASES.items():
        path = str(tmp_path / name)
        with pa.ipc.new_stream(path, rows.schema) as writer:
            writer.write_batch(rows)
        others = {} if "objectBucket" in options else {"deadLetterSubject": "dead"}
        if options.keys().isdisjoint({"bucket", "objectBucket"}):
            others["stream"] = "S"
        given.append((path, {"servers": server.url, **others, **options}))
    said = [json.loads(line) for line in run_python("-c", WRITE, json.dumps(given)).splitlines()]
    assert said == [[*counts, False] for _, _, counts in CASES.values()]
    assert api(server.url, "STREAM.INFO.DEAD")["state"]["messages"] == sum(
        dead for _, _, (_, dead) in CASES.values()
    )


def test_garbage_is_not_looked_for_in_what_spark_imports(server: NatsServer) -> None:
    """Spark itself imports pandas, when the first task of a worker has ended."""
    create(server.url, "ONE", subjects=["s"])
    assert run_python("-c", WORK, server.url) == "False\n"
