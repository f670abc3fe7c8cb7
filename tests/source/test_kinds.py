"""The kinds of datasets that options choose."""

from __future__ import annotations

import pytest

from spark_jetstream.options.source import DATASETS, SourceOptions
from spark_jetstream.source.kinds.choice import KINDS, kind_of
from spark_jetstream.source.kinds.counters import CounterValues
from spark_jetstream.source.kinds.dead_letters import GivenUp
from spark_jetstream.source.kinds.keys import BucketKeys
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.kinds.messages import StreamMessages
from spark_jetstream.source.kinds.objects import BucketObjects
from spark_jetstream.source.kinds.past import PastKeys


def test_every_dataset_has_a_class_that_reads_it() -> None:
    assert KINDS.keys() == DATASETS.keys()
    # The first field with a value counts: one that needs another one stands before it.
    assert list(DATASETS).index("as_of_timestamp") < list(DATASETS).index("bucket")
    assert list(DATASETS)[-1] == "streams"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stream": "S"}, StreamMessages),
        ({"streamPattern": "S*"}, StreamMessages),
        ({"stream": "S", "counters": "false"}, StreamMessages),
        ({"stream": "S", "counters": "true"}, CounterValues),
        ({"streamPattern": "S*", "counters": "true"}, CounterValues),
        ({"bucket": "b"}, BucketKeys),
        ({"bucket": "b", "history": "true"}, BucketKeys),
        ({"bucket": "b", "asOfRevision": "3"}, PastKeys),
        # A time of 0 is given too.
        ({"bucket": "b", "asOfTimestamp": "1970-01-01T00:00:00Z"}, PastKeys),
        ({"objectBucket": "o"}, BucketObjects),
        ({"objectBucket": "o", "contentOff": "true"}, BucketObjects),
        ({"deadLettersOf": "S"}, GivenUp),
    ],
)
def test_the_options_choose_the_kind(given: dict[str, str], expected: type[ReadKind]) -> None:
    kind = kind_of(SourceOptions.from_spark(given, streaming=False))
    assert type(kind) is expected
