"""The doctor finds a fault of a stream where source and sink refuse it, and nowhere else."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.buckets.object_stream import writing_fault
from spark_jetstream.doctor import checks
from spark_jetstream.doctor.permissions import Job
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.protocol.fitness import (
    Read,
    StreamFault,
    Write,
    faults,
    forgets,
    refuses_commits,
)
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.sink.fitness import refuse_key_stream, refuse_unfit, refuse_unwritable
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.source.positions import check_retention, read_use

#: Settings of a stream; the table has all pairs of them.
SETTINGS: dict[str, dict[str, Any]] = {
    "sound": {},
    "mirror": {"mirror": {"name": "ORIGIN"}, "subjects": None},
    "sealed": {"sealed": True, "deny_purge": True},
    "no_ack": {"no_ack": True},
    "elsewhere": {"subjects": ["elsewhere.>"]},
    "deny_purge": {"deny_purge": True},
    "interest": {"retention": "interest"},
    "workqueue": {"retention": "workqueue"},
    "few": {"max_msgs_per_subject": 1},
    "async": {"persist_mode": "async"},
    "allow_direct": {"allow_direct": True},
}
PAIRS = [" and ".join(sorted({one, other})) for one, other in product(SETTINGS, repeat=2)]
CONFIGS = sorted(set(PAIRS))
CONNECTION = ConnectionOptions()
#: The findings that say whether a stream can be read, or written to.
OF_READING = {"retention", "allow_direct", "deny_purge"}
OF_WRITING = {"writing", "delivery"}


def answer(settings: str) -> dict[str, Any]:
    """The reply to STREAM.INFO for a stream with these settings."""
    config: dict[str, Any] = {
        "name": "S",
        "subjects": ["s.>", "$KV.b.>", "$O.b.C.>", "$O.b.M.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": 120_000_000_000,
    }
    for name in settings.split(" and "):
        config |= SETTINGS[name]
    given = {name: value for name, value in config.items() if value is not None}
    state = {"messages": 1, "bytes": 9, "first_seq": 1, "last_seq": 1, "consumer_count": 1}
    return {"config": given, "created": "2026-02-03T04:05:06Z", "state": state}


def failures(settings: str, job: Job, names: set[str]) -> list[str]:
    """The checks of the doctor that fail for a job."""
    info = StreamInfo.from_server(answer(settings))
    found = checks.check_stream(info, job, None, CONNECTION)
    return [
        finding.check for finding in found if finding.status == "failed" and finding.check in names
    ]


def summary(settings: str) -> StreamSummary:
    return stream_summary(answer(settings), "read the stream")


def refuses_read(state: StreamSummary, options: SourceOptions) -> bool:
    try:
        check_retention(state, options, read_use(options))
    except JetStreamError:
        return True
    return options.durable is not None and refuses_commits(state)


def refuses_rows(state: StreamSummary, options: SinkOptions) -> bool:
    try:
        refuse_unwritable(state, options)
        if options.delivery == "exactly-once":
            refuse_unfit(state)
    except JetStreamError:
        return True
    return False


def refuses_values(state: StreamSummary) -> bool:
    try:
        refuse_key_stream(state, KeyBucket.of("b", "$JS.API"))
    except JetStreamError:
        return True
    return False


@pytest.mark.parametrize(
    ("purposes", "given", "streaming"),
    [
        (("read",), {}, False),
        (("direct",), {"readWith": "direct"}, False),
        (("read", "durable"), {"durable": "d"}, True),
        (("direct", "durable"), {"durable": "d", "readWith": "direct"}, True),
        (("share",), {"share": "c"}, True),
    ],
)
def test_the_doctor_and_the_source_agree(
    purposes: tuple[str, ...], given: dict[str, str], streaming: bool
) -> None:
    options = SourceOptions.from_spark({"stream": "S", **given}, streaming=streaming)
    job = Job(purposes, "S")
    refused = [each for each in CONFIGS if refuses_read(summary(each), options)]
    assert [each for each in CONFIGS if failures(each, job, OF_READING)] == refused
    assert 0 < len(refused) < len(CONFIGS)


@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_the_doctor_and_the_sink_agree_about_rows(delivery: str) -> None:
    given = {"stream": "S", "subject": "s.a", "delivery": delivery}
    options = SinkOptions.from_spark(given, streaming=False)
    purpose = "exactly-once" if delivery == "exactly-once" else "write"
    job = Job((purpose,), "S", subject="s.a")
    refused = [each for each in CONFIGS if refuses_rows(summary(each), options)]
    assert [each for each in CONFIGS if failures(each, job, OF_WRITING)] == refused
    assert 0 < len(refused) < len(CONFIGS)


def test_the_doctor_and_the_sink_agree_about_buckets() -> None:
    # Rows for a mirror of a bucket go to the bucket that it mirrors: the doctor says which.
    own = [each for each in CONFIGS if "mirror" not in each.split(" and ")]
    refused = [each for each in own if refuses_values(summary(each))]
    assert [each for each in own if failures(each, Job(("write",), bucket="b"), OF_WRITING)] == (
        refused
    )
    refused = [each for each in CONFIGS if writing_fault(summary(each), "b")]
    job = Job(("write",), object_bucket="b")
    assert [each for each in CONFIGS if failures(each, job, OF_WRITING)] == refused


def test_the_doctor_lists_all_faults_and_the_sink_raises_the_first() -> None:
    settings = "no_ack and sealed"
    job = Job(("write",), "S", subject="nowhere.a")
    assert failures(settings, job, OF_WRITING) == ["writing"] * 3
    options = SinkOptions.from_spark({"stream": "S", "subject": "nowhere.a"}, streaming=False)
    with pytest.raises(JetStreamError, match="option stream: S is sealed and takes no more"):
        refuse_unwritable(summary(settings), options)


@pytest.mark.parametrize("fault", StreamFault)
def test_each_fault_is_one_of_some_use_in_the_table(fault: StreamFault) -> None:
    uses: list[Read | Write] = [
        checks.read_use(frozenset({"read"})),
        checks.read_use(frozenset({"share"})),
        checks.write_use(Job(("write",), "S", subject="s.a"), CONNECTION),
        checks.write_use(Job(("write",), object_bucket="b"), CONNECTION),
    ]
    found = {fault for each in CONFIGS for use in uses for fault in faults(summary(each), use)}
    # The ledger asks apart why a stream is not fit for exactly-once.
    found.update(fault for each in CONFIGS for fault in forgets(summary(each)))
    assert fault in found
