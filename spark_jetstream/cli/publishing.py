"""Messages of a command, stored as the sink stores rows.

Commands need what the sink does with rows: many messages in flight, answers that prove each of them
stored, and after an outage the rest sent again. A second publisher would decide all of that once
more. So this module uses the sink, and no other module of the commands does, but for `bench`, which
measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from spark_jetstream.cli.templates import Fill

if TYPE_CHECKING:  # the sink takes long to import, and few commands need it
    import pyarrow as pa

    from spark_jetstream.client.requests import Connect
    from spark_jetstream.options import SinkOptions
    from spark_jetstream.options.connection import ConnectionOptions
    from spark_jetstream.sink.report import TaskReport, Totals
    from spark_jetstream.sink.rows import Rows


def sink_options(
    connection: ConnectionOptions,
    given: Mapping[str, str | None] | None = None,
) -> SinkOptions:
    """Return options of the sink with the connection of a command. Raises `OptionError`."""
    from spark_jetstream.options import SinkOptions

    # Options of the sink have their defaults, so a command stores messages as a job does.
    options = SinkOptions.from_spark(given or {}, streaming=False)
    return options.model_copy(update={"connection": connection})


def store_messages(
    connect: Connect,
    connection: ConnectionOptions,
    subject: Fill,
    headers: list[tuple[str, Fill]],
    payloads: Iterator[list[bytes]],
    tell: Callable[[int], None],
    *,
    at_once: bool,
) -> Totals:
    """Publish portions of messages, and return the totals.

    ``tell`` gets the number of stored messages. ``at_once``: the next portion may be long in
    coming, so this one is stored, or refused, before it is waited for. Raises what
    `Publisher.publish` raises.
    """
    from spark_jetstream.sink.publisher import Publisher
    from spark_jetstream.sink.target import Target

    options = sink_options(connection)
    target = Target(domain=connection.domain, noun="message")
    first = 1
    with Publisher(connect, options, target, "this command") as publisher:
        refused = []
        for data in payloads:
            rows = _rows(first, subject, headers, data)
            first += len(data)
            publisher.publish(rows, None, None, publisher.totals)
            # tail -f may never send another line: without `flush` the refusal of the last one would
            # not be noticed. test_pub.py, test_a_refused_line_is_not_found_out_with_the_next_one,
            # holds it.
            refused = publisher.flush() if at_once else publisher.take_refused()
            tell(publisher.totals.stored)
            if refused:
                break
        # The server has answered the rest before the command reports the totals.
        refused = refused or publisher.flush()
        if refused:
            raise publisher.failure(refused[0])
        return publisher.totals


def _rows(first: int, subject: Fill, headers: list[tuple[str, Fill]], data: list[bytes]) -> Rows:
    """Return a portion of messages as rows of the sink. ``first`` is the number of the first."""
    import numpy as np
    import pyarrow as pa

    from spark_jetstream.admin.api import publish_subject
    from spark_jetstream.sink.rows import Rows

    def header_block(number: int) -> bytes:
        lines = [b"%s: %s\r\n" % (name.encode(), value(number)) for name, value in headers]
        return b"".join(lines)

    numbers = range(first, first + len(data))
    subjects = pa.array(map(subject, numbers), pa.binary())
    for octets in subjects.unique().to_pylist():
        # A subject on the wire with a blank or a line end would be another command of the protocol.
        publish_subject(octets.decode("utf-8", "surrogateescape"))
    blocks = pa.array(map(header_block, numbers), pa.binary())
    payloads = pa.array(data, pa.binary())
    # One element for each message: its number, subject, payload, and header lines without the
    # version line and the blank line.
    return Rows.of_messages(np.array(numbers, np.int64), subjects, payloads, blocks)


def store_batches(
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
    options: SinkOptions,
    names: tuple[str, ...],
) -> TaskReport:
    """Store record batches with these columns as one task of the sink. Raises as `write_task`."""
    from spark_jetstream.sink.columns import SinkColumns
    from spark_jetstream.sink.task import WriteTask, write_task

    columns = SinkColumns(names, options.subject)
    # Without a run: the rows have message ids of their own.
    return write_task(batches, connect, options, columns, WriteTask("", 0, 0))
