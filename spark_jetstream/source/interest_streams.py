"""Interest streams that a server may purge by mistake, when it deletes consumers.

A server that deletes a consumer looks for messages that nobody needs any more. If another consumer
is deleted before the server comes to that, the server compacts the stream to 0, which purges it:
all messages are lost, whoever needs them (`PURGE_OF_LONG_STREAMS`).
"""

from __future__ import annotations

from spark_jetstream.protocol.stream import StreamSummary

LONG = 50_000
"""In an interest stream of more sequences, consumers are not created or deleted without need.

Beyond 100,000 sequences a server looks for them in the background (`checkInterestState`;
tests/source/test_planner.py, test_a_long_interest_stream). Half of that leaves room for messages
that are published meanwhile.
"""
PAST_THE_END = 2
"""A consumer must not begin this many sequences, or more, past the end of an interest stream.

The server takes the distance from there to the end, which is below zero, for more than 100,000
sequences. When it deletes the consumer, it does the same as for a `LONG` stream. Two of these
consumers that are deleted together purge the stream (`cleanupNoInterestMessages` in
server/consumer.go; 59 of 60 tries with 2.15.1). Only a stream that lost its tail is shorter than
the part that was read of it.
"""


def is_long(state: StreamSummary, longest: int = LONG) -> bool:
    """Whether deleting consumers of the stream is a danger (see `LONG`).

    An interest stream of at most `longest` sequences is not in danger.
    """
    return state.retention == "interest" and state.last_seq + 1 - state.first_kept > longest
