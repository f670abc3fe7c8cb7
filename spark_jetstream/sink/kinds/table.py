"""Which kind of dataset a write stores rows in."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jetstream.sink.kinds.keys import KeySink
from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.kinds.objects import ObjectSink

_BUCKETS: tuple[type[KeySink] | type[ObjectSink], ...] = (KeySink, ObjectSink)


def sink_kind(names: Iterable[str]) -> type[KeySink] | type[ObjectSink] | type[MessageSink]:
    """Return the kind that options with these names choose. As in Spark, case does not matter."""
    given = {name.lower() for name in names}
    for kind in _BUCKETS:
        if kind.option.lower() in given:
            return kind
    return MessageSink
