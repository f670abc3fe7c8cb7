"""The subjects of the JetStream API that administration uses, without their prefix, and since which server. Pure.

``{stream}`` and the like are what `Api.ask` fills in. A server gives no reply at all on a subject that it does not
know, so `NEEDED` says which subjects an older server lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

ACCOUNT_INFO = "INFO"

STREAM_NAMES = "STREAM.NAMES"
STREAM_LIST = "STREAM.LIST"
STREAM_INFO = "STREAM.INFO.{stream}"
STREAM_CREATE = "STREAM.CREATE.{stream}"
STREAM_UPDATE = "STREAM.UPDATE.{stream}"
STREAM_DELETE = "STREAM.DELETE.{stream}"
STREAM_PURGE = "STREAM.PURGE.{stream}"
STREAM_STEP_DOWN = "STREAM.LEADER.STEPDOWN.{stream}"
STREAM_PEER_REMOVE = "STREAM.PEER.REMOVE.{stream}"

MESSAGE_GET = "STREAM.MSG.GET.{stream}"
MESSAGE_DELETE = "STREAM.MSG.DELETE.{stream}"
DIRECT_GET = "DIRECT.GET.{stream}"
DIRECT_GET_LAST = "DIRECT.GET.{stream}.{subject}"

CONSUMER_NAMES = "CONSUMER.NAMES.{stream}"
CONSUMER_LIST = "CONSUMER.LIST.{stream}"
CONSUMER_INFO = "CONSUMER.INFO.{stream}.{consumer}"
CONSUMER_CREATE = "CONSUMER.CREATE.{stream}"
CONSUMER_CREATE_NAMED = "CONSUMER.CREATE.{stream}.{consumer}"
CONSUMER_CREATE_FILTERED = "CONSUMER.CREATE.{stream}.{consumer}.{filter}"
CONSUMER_CREATE_DURABLE = "CONSUMER.DURABLE.CREATE.{stream}.{consumer}"
CONSUMER_DELETE = "CONSUMER.DELETE.{stream}.{consumer}"
CONSUMER_PAUSE = "CONSUMER.PAUSE.{stream}.{consumer}"
CONSUMER_RESET = "CONSUMER.RESET.{stream}.{consumer}"
CONSUMER_UNPIN = "CONSUMER.UNPIN.{stream}.{consumer}"
CONSUMER_NEXT = "CONSUMER.MSG.NEXT.{stream}.{consumer}"
CONSUMER_STEP_DOWN = "CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}"

LOOKING = frozenset(
    {
        ACCOUNT_INFO,
        STREAM_NAMES,
        STREAM_LIST,
        STREAM_INFO,
        MESSAGE_GET,
        CONSUMER_NAMES,
        CONSUMER_LIST,
        CONSUMER_INFO,
    }
)
"""Subjects where a request changes nothing, and can be made again."""

GATHERED = frozenset({STREAM_LIST, CONSUMER_LIST})
"""Subjects where a server waits for the others of its cluster, up to four seconds, before it answers."""

NEEDED: Mapping[str, int] = {CONSUMER_PAUSE: 1, CONSUMER_UNPIN: 1, CONSUMER_RESET: 4}
"""Subjects that not every supported server knows -> the API level from which on one does."""

LEVELS: Mapping[int, str] = {1: "2.11", 2: "2.12", 4: "2.14", 5: "2.15"}
"""API level -> the first server that has it (ADR-44)."""
