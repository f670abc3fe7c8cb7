"""The options of a sink: where rows go, how often at most, and what happens to refused ones."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import SideOptions
from spark_jetstream.options.names import Identifier, Name, PublishSubject
from spark_jetstream.options.specs import (
    ENSURE_STREAM,
    NOT_MADE,
    ON_CONFLICT,
    OnConflict,
    Side,
    option,
)
from spark_jetstream.options.values import Choice, Seconds, Whole
from spark_jetstream.protocol.units import shown

_NOT_FOR_BUCKETS = {
    "subject": "column key says where a row goes",
    "stream": "the bucket's own stream stores the rows",
    "serverHeaders": "its rows have no column headers",
    "messageIds": "the order of the rows of a key counts",
    "ensureStream": NOT_MADE.format("kv"),
}
_REPLACED = "an object is replaced as a whole, so writing it again changes nothing"
_NOT_FOR_OBJECTS = {
    "subject": "column name says what an object is called",
    "stream": "the bucket's own stream stores the objects",
    "delivery": _REPLACED,
    "messageIds": _REPLACED,
    "writeId": _REPLACED,
    "deadLetterSubject": "an object that cannot be stored fails the task",
    "serverHeaders": "the headers of an object are no headers of a message",
    "ensureStream": NOT_MADE.format("object"),
}

Delivery = Literal["at-least-once", "deduplicated", "exactly-once"]
ServerHeaders = Literal["error", "drop"]
MessageIds = Literal["position", "content"]


class SinkOptions(SideOptions):
    """Where rows go, how often at most, and what happens to those that are refused."""

    side: ClassVar[Side] = "sink"

    # Where the rows go.
    subject: str | None = option(
        "publish every row to this subject; wins over column `subject`",
        PublishSubject(),
    )
    stream: str | None = option(
        "the only stream that may store the rows, or the path of `save()` or `start()` in its "
        "place",
        Name("stream", single=True),
    )
    # How often a row may be stored.
    delivery: Delivery = option(
        "how often a row may be stored when a task or query runs again after a failure: "
        "`at-least-once` several times, `deduplicated` once within the stream's duplicate window, "
        "`exactly-once` once",
        Choice(get_args(Delivery)),
        "deduplicated",
    )
    message_ids: MessageIds = option(
        "how message ids recognize a row when a task or query runs again: by `position` or by "
        "`content`. `position` tells equal rows apart by the message they were read from (columns "
        "`stream` and `sequence`), or by their partition. `content` stores equal rows once, and is "
        "for rows that are distinct in any case",
        Choice(get_args(MessageIds)),
        "position",
    )
    # Sending, and sending again.
    max_in_flight: int = option(
        "maximum messages per task that are sent and not yet acknowledged",
        Whole(1, 100_000),
        "8000",
    )
    ack_timeout: float = option(
        "time to wait for a message's acknowledgement before it is sent again",
        Seconds("100ms", "10m"),
        "10s",
    )
    max_retries: int = option(
        "how often a message is sent again before the task fails",
        Whole(0, 1000),
        "5",
    )
    # Rows that the server refuses, or acts on.
    dead_letter_subject: str | None = option(
        "publish rows that can never be stored to this subject; without it one of these rows "
        "fails the task",
        PublishSubject(),
    )
    server_headers: ServerHeaders = option(
        "how to treat rows with the headers `Nats-Schedule*`, `Nats-Rollup` or `Nats-Incr`, on "
        "which the server acts: `error` fails the write, `drop` stores the rows without these "
        "headers",
        Choice(get_args(ServerHeaders)),
        "error",
    )
    # Buckets, in place of a stream.
    bucket: str | None = option(
        "the Key-Value bucket that rows are written to: columns `key`, `value`",
        Identifier(252),  # with `KV_` the 255 characters that a stream's name may have
    )
    object_bucket: str | None = option(
        "the Object Store bucket that rows are written to: columns `name`, `content`",
        Identifier(251),  # with `OBJ_` as many
    )
    write_id: str | None = option(
        "name of this write; message ids contain it, so a failed write can run again under the "
        "same name",
        Identifier(100),
        only="batch",
        instead="the query's own id and its batch numbers are used",
    )
    ensure_stream: str | None = ENSURE_STREAM
    ensure_stream_on_conflict: OnConflict = ON_CONFLICT

    @model_validator(mode="after")
    def _check_together(self) -> SinkOptions:
        if self.bucket is not None:
            self._refuse_with("bucket", _NOT_FOR_BUCKETS)
        if self.object_bucket is not None:
            self._refuse_with("objectBucket", _NOT_FOR_OBJECTS)
        # For an Object Store bucket the table above refuses any delivery.
        if self.bucket is not None and self.delivery == "exactly-once":
            raise OptionError(
                "option delivery cannot be exactly-once with bucket: a bucket forgets revisions, "
                "and with them which rows are stored; set deduplicated or at-least-once, with which a "
                "row that is written again only makes one more revision with the same value",
                option="delivery",
            )
        # A refused row would go where it was refused.
        if self.dead_letter_subject is not None and self.dead_letter_subject == self.subject:
            raise OptionError(
                "option deadLetterSubject must differ from subject, and both are "
                f"{shown(self.subject)}",
                option="deadLetterSubject",
            )
        if self.delivery == "at-least-once":
            self._refuse_ids()
        return self

    def _refuse_ids(self) -> None:
        """Refuse options about message ids."""
        if self.message_ids != "position":
            raise OptionError(
                "option messageIds has no meaning with delivery at-least-once, "
                f"which gives messages no ids: remove messageIds={self.message_ids}, "
                "or set delivery to deduplicated",
                option="messageIds",
            )
        if self.write_id is not None:
            raise OptionError(
                "option writeId has no meaning with delivery at-least-once, which gives messages "
                "no ids",
                option="writeId",
            )
