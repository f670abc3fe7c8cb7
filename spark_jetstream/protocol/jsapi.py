"""The JetStream API as data: endpoints, bodies, replies, and the meaning of each status of a pull.

Pure.

Durations are int64 nanoseconds and times RFC 3339 text. Servers since 2.12 refuse unknown fields,
so a body has only fields that the oldest supported server knows.

Each fact about an endpoint stands in the table of `Endpoint` alone: requests of the administration,
permissions and docs/admin.md follow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from spark_jetstream.errors import (
    ApiError,
    ConsumerLost,
    ProtocolError,
    RequestTimeout,
    api_error,
    pull_refused,
)
from spark_jetstream.protocol import features
from spark_jetstream.protocol.features import PEER_EVACUATION, PINNED_CLIENTS, Feature
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.units import INT64_MAX, shown, whole_number

if TYPE_CHECKING:
    from spark_jetstream.protocol.wire import Status

T = TypeVar("T")
Answer = TypeVar("Answer", bound=ApiError)

DEFAULT_PREFIX = "$JS.API"
LONGEST_NAME = 255
"""How many characters the name of a stream has at most."""

FILTER_TAKEN = frozenset({10099, 10100})
"""Error codes: another consumer of a work queue has the filter, or part of it."""
CONSUMER_EXISTS = 10148
"""Error code: a consumer of that name exists with another configuration."""
RESET_REFUSED = 10204
"""Error code: a consumer cannot be moved to a sequence."""
END_OF_BATCH = 204
"""Status: all messages of the answer to a Direct Get are sent."""
NOT_FOUND = 404
"""Status: no message matches."""
NO_RESPONDERS = 503
"""Status: no server listens at the subject of the request."""


@dataclass(frozen=True)
class Endpoint:
    """A kind of request to the JetStream API, and what is known of it before it is sent."""

    template: str
    """The subject without the prefix of the API; `subject` fills in ``{stream}`` and the like."""
    repeatable: bool = False
    """A request changes nothing, and may be sent again while the servers are busy."""
    gathers: bool = False
    """A server waits for the others of its cluster, up to four seconds, before it replies."""
    counts: bool = False
    """A server goes through all subjects of a stream before it replies: seconds for a million."""
    pages: bool = False
    """A reply is one page of a list, and says where the next one begins."""
    clustered: bool = False
    """A request is of use only where the stream or the consumer has replicas in a cluster."""
    system: bool = False
    """Servers reply only to the system account, and only in a cluster."""
    since: Feature | None = None
    """The first servers that know the subject; None for all. An older server does not reply."""


ACCOUNT_INFO = Endpoint("INFO", repeatable=True)
ACCOUNT_PURGE = Endpoint("ACCOUNT.PURGE.{account}", system=True)
META_STEP_DOWN = Endpoint("META.LEADER.STEPDOWN", system=True)
META_RESCUE = Endpoint("META.RESCUE", system=True, since=features.QUORUM_RESCUE)
SERVER_REMOVE = Endpoint("SERVER.REMOVE", system=True)
SERVER_EVACUATE = Endpoint("SERVER.EVACUATE", system=True, since=PEER_EVACUATION)
ACCOUNT_STREAM_MOVE = Endpoint("ACCOUNT.STREAM.MOVE.{account}.{stream}", system=True)
ACCOUNT_CANCEL_MOVE = Endpoint("ACCOUNT.STREAM.CANCEL_MOVE.{account}.{stream}", system=True)

STREAM_NAMES = Endpoint("STREAM.NAMES", repeatable=True, pages=True)
STREAM_LIST = Endpoint("STREAM.LIST", repeatable=True, gathers=True, pages=True)
STREAM_INFO = Endpoint("STREAM.INFO.{stream}", repeatable=True)
STREAM_SUBJECTS = Endpoint("STREAM.INFO.{stream}", repeatable=True, counts=True, pages=True)
STREAM_CREATE = Endpoint("STREAM.CREATE.{stream}")
STREAM_UPDATE = Endpoint("STREAM.UPDATE.{stream}")
STREAM_DELETE = Endpoint("STREAM.DELETE.{stream}")
STREAM_SNAPSHOT = Endpoint("STREAM.SNAPSHOT.{stream}")
STREAM_RESTORE = Endpoint("STREAM.RESTORE.{stream}")
STREAM_PURGE = Endpoint("STREAM.PURGE.{stream}")
STREAM_STEP_DOWN = Endpoint("STREAM.LEADER.STEPDOWN.{stream}", clustered=True)
STREAM_PEER_REMOVE = Endpoint("STREAM.PEER.REMOVE.{stream}", clustered=True)
PEER_EVACUATE = Endpoint("STREAM.PEER.EVACUATE.{stream}", clustered=True, since=PEER_EVACUATION)
CANCEL_MOVE = Endpoint("STREAM.CANCEL_MOVE.{stream}", clustered=True, since=PEER_EVACUATION)

ASK_SERVERS = "$SYS.REQ.ACCOUNT.PING.STATZ"
"""Where an account asks all servers, each of which replies with its version (server/events.go)."""

MESSAGE_GET = Endpoint("STREAM.MSG.GET.{stream}", repeatable=True)
MESSAGE_DELETE = Endpoint("STREAM.MSG.DELETE.{stream}")
DIRECT_GET = Endpoint("DIRECT.GET.{stream}", repeatable=True)
DIRECT_GET_LAST = Endpoint("DIRECT.GET.{stream}.{subject}", repeatable=True)

CONSUMER_NAMES = Endpoint("CONSUMER.NAMES.{stream}", repeatable=True, pages=True)
CONSUMER_LIST = Endpoint("CONSUMER.LIST.{stream}", repeatable=True, gathers=True, pages=True)
CONSUMER_INFO = Endpoint("CONSUMER.INFO.{stream}.{consumer}", repeatable=True)
CONSUMER_CREATE = Endpoint("CONSUMER.CREATE.{stream}")
CONSUMER_CREATE_NAMED = Endpoint("CONSUMER.CREATE.{stream}.{consumer}")
CONSUMER_CREATE_FILTERED = Endpoint("CONSUMER.CREATE.{stream}.{consumer}.{filter}")
CONSUMER_CREATE_DURABLE = Endpoint("CONSUMER.DURABLE.CREATE.{stream}.{consumer}")
CONSUMER_DELETE = Endpoint("CONSUMER.DELETE.{stream}.{consumer}")
CONSUMER_PAUSE = Endpoint("CONSUMER.PAUSE.{stream}.{consumer}", since=features.CONSUMER_PAUSE)
CONSUMER_RESET = Endpoint("CONSUMER.RESET.{stream}.{consumer}", since=features.CONSUMER_RESET)
CONSUMER_UNPIN = Endpoint("CONSUMER.UNPIN.{stream}.{consumer}", since=PINNED_CLIENTS)
CONSUMER_NEXT = Endpoint("CONSUMER.MSG.NEXT.{stream}.{consumer}")
CONSUMER_STEP_DOWN = Endpoint("CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}", clustered=True)
CONSUMER_PEER_REMOVE = Endpoint(
    "CONSUMER.PEER.REMOVE.{stream}.{consumer}",
    clustered=True,
    since=features.CONSUMER_PEER_REMOVAL,
)
CONSUMER_PEER_EVACUATE = Endpoint(
    "CONSUMER.PEER.EVACUATE.{stream}.{consumer}", clustered=True, since=PEER_EVACUATION
)


def subject(
    prefix: str, endpoint: Endpoint, stream: str = "", consumer: str = "", **names: str
) -> str:
    """Return the subject of a request: that of an endpoint, with its placeholders filled in."""
    filled = endpoint.template.format(stream=stream, consumer=consumer, **names)
    return f"{prefix}.{filled}"


def request_body(**fields: Any) -> bytes:
    """Body of a request with these fields, for requests that are no more than a few of them."""
    return json.dumps(fields).encode()


def direct_request(sequence: int, subject: str | None, *, batch: int, max_bytes: int) -> bytes:
    """Body that asks for messages from a sequence on, as a batch (server 2.11).

    They are those on a subject, None for all.
    """
    if subject is None:
        return request_body(seq=sequence, batch=batch, max_bytes=max_bytes)
    return request_body(seq=sequence, batch=batch, max_bytes=max_bytes, next_by_subj=subject)


def consumer_create(prefix: str, stream: str, name: str, filters: Sequence[str]) -> str:
    """Subject that creates a consumer; a single filter is part of it, for permissions to name.

    ``filters`` holds one filter where the configuration has ``filter_subject``. The server refuses
    one of ``filter_subjects`` in the subject (error 10137), also when that list has one element.
    """
    if len(filters) == 1:
        return subject(prefix, CONSUMER_CREATE_FILTERED, stream, name, filter=filters[0])
    return subject(prefix, CONSUMER_CREATE_NAMED, stream, name)


def purge_request(end: int, filter_subject: str | None) -> bytes:
    """Body that removes messages below a sequence: all, or those that match a filter.

    `ValueError` for an `end` below 2: there is nothing to remove, and without a sequence everything
    would go.
    """
    if end < 2:
        raise ValueError(f"a purge below sequence {end} removes nothing")
    if filter_subject is None:
        return request_body(seq=end)
    return request_body(seq=end, filter=filter_subject)


def purge_subject_request(subject: str) -> bytes:
    """Body that removes all messages on a subject.

    Not a purge below some far sequence: a server counts up to it, for hours, where the stream is in
    memory (2.15).
    """
    if not subject:
        raise ValueError("without a subject all messages would be removed")
    return request_body(filter=subject)


def nanoseconds(seconds: float) -> int:
    """Return a duration in seconds as nanoseconds, in whole microseconds."""
    return round(seconds * 1_000_000) * 1000


def reader_config(
    name: str,
    filters: Sequence[str],
    *,
    start_sequence: int | None = None,
    start_time: str | None = None,
    last: bool = False,
    last_per_subject: bool = False,
    headers_only: bool = False,
    inactive_threshold: float | None = 30.0,
    replicas: int | None = 1,
) -> dict[str, Any]:
    """Configuration of an ephemeral pull consumer that acknowledges nothing and lives in memory.

    It begins at a stream sequence, at a time (RFC 3339), or at the last matching message. With
    `last_per_subject`, which needs a filter, it delivers the last message of each subject, and then
    what is stored later. `inactive_threshold` is in seconds. None leaves `replicas` and
    `inactive_threshold` to the stream, as interest streams and streams with limits for their
    consumers demand.
    """
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "mem_storage": True,
    }
    if inactive_threshold is not None:
        config["inactive_threshold"] = nanoseconds(inactive_threshold)
    if replicas is not None:
        config["num_replicas"] = replicas
    if last:
        config["deliver_policy"] = "last"
    elif last_per_subject:
        config["deliver_policy"] = "last_per_subject"
    elif start_time is not None:
        config |= {"deliver_policy": "by_start_time", "opt_start_time": start_time}
    # `all` begins at the first message anyway.
    elif start_sequence is not None and start_sequence > 1:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start_sequence}
    if headers_only:
        config["headers_only"] = True
    return config | filter_fields(filters)


def filter_fields(filters: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a consumer's configuration with its filters; none for all subjects."""
    if len(filters) == 1:
        return {"filter_subject": filters[0]}
    if filters:
        return {"filter_subjects": list(filters)}
    return {}


def filters_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subject filters of a consumer's configuration, empty for all subjects."""
    several = config.get("filter_subjects")
    # An empty list is none: the single filter counts.
    if isinstance(several, list) and several:
        return tuple(str(subject) for subject in several)
    one = config.get("filter_subject")
    if isinstance(one, str) and one:
        return (one,)
    return ()


def consumer_request(stream: str, config: Mapping[str, Any], *, action: str = "create") -> bytes:
    """Body that creates a consumer.

    The request fails where a consumer of that name has another configuration. With the action
    `update` it gives an existing consumer a configuration; what is left out of it becomes the
    default.
    """
    return request_body(stream_name=stream, config=config, action=action)


def next_request(batch: int, *, expires: float, heartbeat: float = 0.0, **fields: Any) -> bytes:
    """Body of one pull (ADR-37, ADR-42) for at most `batch` messages; times in seconds.

    `fields` are as the server names them; a field that is 0, false or None is left out. With
    `no_wait` a pull that has brought something ends where the stream does. With `no_wait` and
    without `expires` it ends at once.
    """
    fields |= {"expires": nanoseconds(expires), "idle_heartbeat": nanoseconds(heartbeat)}
    given = {name: value for name, value in fields.items() if value}
    return request_body(batch=batch, **given)


def reworded(error: Answer, text: str) -> Answer:
    """Return an error of the API with a sentence of our own."""
    return type(error)(
        text, code=error.code, err_code=error.err_code, description=error.description
    )


def reply(payload: bytes, context: str) -> dict[str, Any]:
    """Return the JSON object of the reply to the request `context`.

    Raises `ApiError`, and `ProtocolError`.
    """
    try:
        body = json_object(payload)
    except ValueError as fault:
        raise ProtocolError(f"cannot {context}: the server's reply {fault}") from None
    error = body.get("error")
    if isinstance(error, dict):
        raise api_error(error, context)
    return body


def field(
    body: Mapping[str, Any],
    path: str,
    kind: type[T],
    context: str,
    default: T | None = None,
    *,
    what: str = "the server's reply",
) -> T:
    """Return the value of type ``kind`` at a dotted path of a reply, else the default.

    Raises `ProtocolError` without a default; its text says that ``what`` does not have the field.
    """
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    # To Python a `bool` is an `int`.
    if isinstance(value, kind) and (kind is not int or _is_number(value)):
        return value
    if default is None:
        raise ProtocolError(f"cannot {context}: {what} has no usable field {path}")
    return default


def _is_number(value: Any) -> bool:
    """Return whether an integer is a number of some type of the server, and no truth value."""
    return not isinstance(value, bool) and value.bit_length() <= 64


def whole(
    body: Mapping[str, Any],
    path: str,
    context: str,
    *,
    least: int = 0,
    what: str = "the server's reply",
) -> int:
    """Return the number at a dotted path of a reply.

    Raises `ProtocolError`, about ``what``, unless it is from `least` to 2^63-1.
    """
    number = field(body, path, int, context, what=what)
    if not least <= number <= INT64_MAX:
        raise ProtocolError(f"cannot {context}: {what} has {shown(number)} for {path}")
    return number


_HEARTBEAT = 100
#: Statuses that end a pull request, and those whose consumer cannot serve any more: the code, and
#: the beginning of the description in lower case. Any other status refuses the request as it is.
_ENDED = (
    (404, ""),
    (408, ""),
    (409, "batch completed"),
    (409, "message size exceeds maxbytes"),
    (409, "exceeded maxwaiting"),
)
_LOST = ((409, "consumer deleted"), (409, "leadership change"), (409, "server shutdown"), (503, ""))


@dataclass(frozen=True)
class PullEnd:
    """How a status changes the account of what is outstanding."""

    over: bool
    """The request is over, and what it did not deliver may be asked for again.

    A heartbeat says that it is alive.
    """
    undelivered: int | None
    """Messages of the request that were not delivered; None when the status does not say."""
    unused_bytes: int | None
    """Bytes of its `max_bytes` that no message took; None when the status does not say."""
    too_large: bool
    """If nothing was delivered, the next message alone is larger than the request's byte limit."""


def pull_status(status: Status, stream: str) -> PullEnd:
    """Return the meaning of a status that answers a pull request.

    Raises `ConsumerLost` if a new consumer is needed, and `PullRefused` for a request that is
    refused for good.
    """
    description = status.description.lower()
    text = f"{status.code} {status.description}".strip()

    def is_one(statuses: Sequence[tuple[int, str]]) -> bool:
        return any(
            status.code == code and description.startswith(begin) for code, begin in statuses
        )

    if is_one(_LOST):
        raise ConsumerLost(f"the pull consumer on stream {stream} cannot serve any more: {text}")
    # An unknown status must not pass for the end of a request, or messages would be left out.
    over = status.code != _HEARTBEAT
    if over and not is_one(_ENDED):
        problem = f"the server refused a pull request on stream {stream}: {text}"
        raise pull_refused(problem, status.code, status.description)
    # A 404 has neither number.
    undelivered = whole_number(status.headers.get("Nats-Pending-Messages", ""))
    unused_bytes = whole_number(status.headers.get("Nats-Pending-Bytes", ""))
    return PullEnd(over, undelivered, unused_bytes, description.startswith("message size exceeds"))


def no_reply(context: str, seconds: float, advice: str = "") -> RequestTimeout:
    """Return the error of a request without a reply; `advice` may say what sets the time."""
    return RequestTimeout(f"cannot {context}: no reply within {seconds:g} s {advice}".rstrip())
