"""The kinds of datasets that options choose."""

from __future__ import annotations

from itertools import combinations

import pytest

from spark_jetstream.errors import OptionError
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


#: For each field of `DATASETS`, an option that chooses it.
CHOOSING = {
    "as_of_revision": {"asOfRevision": "3"},
    "as_of_timestamp": {"asOfTimestamp": "1970-01-01T00:00:00Z"},
    "bucket": {"bucket": "b"},
    "object_bucket": {"objectBucket": "o"},
    "dead_letters_of": {"deadLettersOf": "S"},
    "counters": {"counters": "true"},
    "share": {"share": "c"},
    "streams": {"stream": "S"},
}
#: Fields that change how the dataset of another field is read.
CHANGING = {
    ("as_of_revision", "bucket"),
    ("as_of_timestamp", "bucket"),
    ("counters", "streams"),
    ("share", "streams"),
}


def test_no_dataset_hides_another_one() -> None:
    assert CHOOSING.keys() == DATASETS.keys()
    for pair in set(combinations(DATASETS, 2)) - CHANGING:
        given = CHOOSING[pair[0]] | CHOOSING[pair[1]]
        with pytest.raises(OptionError):
            SourceOptions.from_spark(given, streaming=False)
        # Nor beside the streams or the bucket that the two change.
        for named in ({"stream": "S"}, {"bucket": "b"}):
            with pytest.raises(OptionError):
                SourceOptions.from_spark(named | given, streaming=False)
