"""Where rows go, how often at most, and what happens to those that are refused: the options of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.base import Options, build, fields_of
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.specs import (
    CONNECTION_OPTIONS,
    NOT_MADE,
    SINK_OPTIONS,
    OnConflict,
    given_options,
    refuse_elsewhere,
)
from spark_jetstream.options.values import hidden
from spark_jetstream.protocol.units import shown

_NOT_FOR_BUCKETS = {
    "subject": "column key says where a row goes",
    "stream": "the bucket's own stream stores the rows",
    "ensureStream": NOT_MADE.format("kv"),
}
_REPLACED = "an object is replaced as a whole, so writing it again changes nothing"
_NOT_FOR_OBJECTS = {
    "subject": "column name says what an object is called",
    "stream": "the bucket's own stream stores the objects",
    "delivery": _REPLACED,
    "writeId": _REPLACED,
    "deadLetterSubject": "an object that cannot be stored fails the task",
    "ensureStream": NOT_MADE.format("object"),
}

Delivery = Literal["at-least-once", "deduplicated", "exactly-once"]


class SinkOptions(Options):
    """Where rows go, how often at most, and what happens to those that are refused.

    ``subject``, when set, wins over the column of that name. ``stream`` is the one that must store the rows.
    ``max_retries`` counts the times a message is sent again. ``write_id`` is None on a stream. ``ensure_stream`` is
    JSON, or the path of a file.
    """

    connection: ConnectionOptions = Field(default_factory=ConnectionOptions)
    streaming: bool
    subject: str | None = None
    stream: str | None = None
    delivery: Delivery = "deduplicated"
    max_in_flight: int = 8000
    ack_timeout: float = 10.0
    max_retries: int = 5
    dead_letter_subject: str | None = None
    write_id: str | None = None
    bucket: str | None = None
    object_bucket: str | None = None
    ensure_stream: str | None = None
    ensure_stream_on_conflict: OnConflict = "error"

    @classmethod
    def from_spark(cls, mapping: Mapping[str, object], *, streaming: bool) -> SinkOptions:
        """The options of a sink, ``connection`` included, for a stream or for a batch.

        Names match in any case. Raises `OptionError` for whatever is wrong, unknown names first.
        """
        mapping = hidden(mapping)
        given = given_options(mapping, (*CONNECTION_OPTIONS, *SINK_OPTIONS))
        refuse_elsewhere(given, "sink", streaming=streaming)
        connection = ConnectionOptions.from_given(given)
        return build(cls, {**fields_of(given, SINK_OPTIONS), "streaming": streaming, "connection": connection})

    @model_validator(mode="after")
    def _check_kind(self) -> SinkOptions:
        given = self.given()
        kind, refused = ("bucket", _NOT_FOR_BUCKETS) if self.bucket is not None else ("objectBucket", _NOT_FOR_OBJECTS)
        if self.bucket is None and self.object_bucket is None:
            return self
        for name, why in refused.items():
            if name in given:
                raise OptionError(f"option {name} has no meaning with {kind}: {why}", option=name)
        if self.delivery == "exactly-once":
            raise OptionError(
                "option delivery cannot be exactly-once with bucket: a bucket forgets revisions, and with them what is "
                "stored already; writing a row again only makes one more revision with the same value",
                option="delivery",
            )
        return self

    @model_validator(mode="after")
    def _check_together(self) -> SinkOptions:
        if self.dead_letter_subject is not None and self.dead_letter_subject == self.subject:
            raise OptionError(
                f"option deadLetterSubject must differ from subject, and both are {shown(self.subject)}",
                option="deadLetterSubject",
            )
        if self.write_id is not None and self.delivery == "at-least-once":
            raise OptionError(
                "option writeId has no meaning with delivery at-least-once, which gives messages no ids",
                option="writeId",
            )
        return self
