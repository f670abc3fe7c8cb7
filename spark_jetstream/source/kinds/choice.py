"""Which kind of dataset the options of a query choose."""

from __future__ import annotations

from collections.abc import Mapping

from spark_jetstream.options.source import SourceOptions, dataset_of
from spark_jetstream.source.kinds.counters import CounterValues
from spark_jetstream.source.kinds.dead_letters import GivenUp
from spark_jetstream.source.kinds.keys import BucketKeys
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.kinds.messages import StreamMessages
from spark_jetstream.source.kinds.objects import BucketObjects
from spark_jetstream.source.kinds.past import PastKeys
from spark_jetstream.source.kinds.shared import SharedMessages

#: A key of `options.source.DATASETS` -> the class that reads the dataset.
KINDS: Mapping[str, type[ReadKind]] = {
    "as_of_revision": PastKeys,
    "as_of_timestamp": PastKeys,
    "bucket": BucketKeys,
    "object_bucket": BucketObjects,
    "dead_letters_of": GivenUp,
    "counters": CounterValues,
    "share": SharedMessages,
    "streams": StreamMessages,
}


def kind_of(options: SourceOptions) -> ReadKind:
    """Return the kind of dataset that the options choose."""
    return KINDS[dataset_of(options)](options)
