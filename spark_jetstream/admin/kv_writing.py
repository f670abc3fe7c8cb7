"""How a revision of a key gets into a Key-Value bucket, and what it means that it does not."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.admin.api import Api
from spark_jetstream.admin.kv_models import KEY_VALUE, BucketInfo
from spark_jetstream.admin.messages import PubAck
from spark_jetstream.connection import Connection
from spark_jetstream.deadline import Backoff, Deadline
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    NoResponders,
    OptionError,
    ServerBusy,
    StreamNotFound,
    WrongRevision,
)
from spark_jetstream.kv import EXPECTED, WRONG_REVISION, Origin, last_revision
from spark_jetstream.units import Nanoseconds, minutes_or_months, shown

log = logging.getLogger(__name__)

_TTL = "Nats-TTL"
_NEVER = "never"
_SECOND = 1_000_000_000
_DOMAIN = re.compile(r"\$JS\.([^.]+)\.API")
_LOOK = 0.5  # seconds: while a leader is elected nobody answers
_HEADER_BYTES = len("NATS/1.0\r\n\r\n")


def revision_number(what: str, revision: Any) -> int:
    """A revision, or `OptionError`: to a server 0 may mean none."""
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, not {shown(revision)}")
    return revision


def ttl_header(ttl: Any, info: BucketInfo | None) -> dict[str, str]:
    """The header for a time to live: a duration, ``never``, or None for no header. `OptionError`.

    So it is for one that the server would silently take for a longer one (seen with 2.15.1): where a bucket keeps
    several revisions of a key, none goes by itself before ``limit_marker_ttl``. ``info`` is
    None where nobody may see it.
    """
    if ttl is None:
        return {}
    if ttl == _NEVER:
        return {_TTL: _NEVER}
    try:
        span = Nanoseconds.of(ttl)
    except ValueError:
        span = Nanoseconds(0)
    if span < _SECOND or span % _SECOND:
        raise OptionError(
            "ttl must be a duration of whole seconds such as 90s or 5m, or never, "
            f"not {shown(ttl)}{minutes_or_months(ttl)}"
        )
    if info is not None and span < info.limit_marker_ttl and info.history != 1:
        raise OptionError(
            f"ttl must be at least limit_marker_ttl of bucket {info.bucket} ({info.limit_marker_ttl}) where it keeps "
            f"more than one revision, not {shown(ttl)}"
        )
    return {_TTL: f"{span // _SECOND}s"}


def octets(value: Any) -> bytes:
    """A value as bytes: text is UTF-8. `OptionError` for anything else."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise OptionError("the value is no text that can be written as UTF-8") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise OptionError(f"a value must be text or bytes, not {type(value).__name__}")


def store(
    api: Api, bucket: str, origin: Origin, key: str, value: str | bytes, headers: Mapping[str, str], what: str
) -> int:
    """Store a message of a key in the ``origin`` of a bucket; its revision.

    ``what`` is what is done, an infinitive. Where nobody is there to store it (an election) it is sent again, for as
    long as option ``requestTimeout`` says. Raises `WrongRevision`, `StreamNotFound` when there is no such bucket,
    `ApiError` with what to change for what the bucket refuses, and what `Connection.request` raises.
    """
    context = f"{what} key {key} of bucket {bucket}"
    data = octets(value)
    connection = api.connection
    size = len(data) + sum(len(f"{name}: {text}\r\n") for name, text in headers.items())
    size += _HEADER_BYTES if headers else 0
    if size > connection.max_payload:
        raise JetStreamError(
            f"cannot {context}: with its headers the value has {size:,} bytes, and the server takes no more than "
            f"{connection.max_payload:,} (its max_payload)"
        )
    # No header says which stream it is for: that would be stored, and count as a part of the value.
    deadline, backoff = Deadline(api.options.request_timeout), Backoff()
    while True:
        try:
            payload = connection.request(
                f"{origin.write_prefix}{key}", data, context=context, headers=dict(headers) or None
            )
            ack = PubAck.from_server(jsapi.reply(payload, context), context)
            break
        except (NoResponders, ServerBusy) as error:
            # Nothing was stored.
            if isinstance(error, NoResponders):
                _look_for(connection, origin, context, deadline.within(_LOOK))
            if deadline.expired:
                raise _unheard(error, origin, context) from error
            backoff.pause(deadline)
        except ApiError as error:
            raise _refusal(error, bucket, origin, key, headers, context) from error
    _check(ack, connection, origin, context)
    return ack.seq


def _look_for(connection: Connection, origin: Origin, context: str, seconds: float) -> None:
    """Raise `StreamNotFound` when the bucket is not there; where nobody says so within so many seconds it may be."""
    subject = jsapi.stream_info(origin.api_prefix or connection.prefix, origin.stream)
    try:
        with KEY_VALUE.naming(origin.bucket, context):
            jsapi.reply(connection.request(subject, b"", context=context, timeout=seconds), context)
    except StreamNotFound:
        raise
    except JetStreamError as error:
        log.info("cannot see whether bucket %s is there: %s", origin.bucket, error)


def _unheard(error: JetStreamError, origin: Origin, context: str) -> JetStreamError:
    if isinstance(error, NoResponders):
        return NoResponders(
            f"cannot {context}: nobody answers at {origin.write_prefix}>: the bucket has no leader, or what is "
            "published there does not reach it"
        )
    return error


def _check(ack: PubAck, connection: Connection, origin: Origin, context: str) -> None:
    """Raise `JetStreamError` for a confirmation that is not that of this message in this bucket."""
    domain = _DOMAIN.fullmatch(origin.api_prefix or connection.prefix)
    elsewhere = domain is not None and ack.domain != domain[1]
    if ack.stream != origin.stream or elsewhere:
        place = f"stream {ack.stream}" + (f" of domain {ack.domain}" if ack.domain else "")
        raise JetStreamError(f"cannot {context}: {place} has stored it (sequence {ack.seq}), not {origin.stream}")
    if ack.duplicate or not ack.seq:
        raise JetStreamError(f"cannot {context}: the server took it for a duplicate, and has stored nothing")


def _refusal(error: ApiError, bucket: str, origin: Origin, key: str, sent: Mapping[str, str], context: str) -> ApiError:
    if error.err_code in WRONG_REVISION and EXPECTED in sent:
        expected, found = int(sent[EXPECTED]), last_revision(error.description)
        there = "another one" if found is None else "none" if found == 0 else f"revision {found}"
        wanted = f"revision {expected} was expected" if expected else "none was expected"
        return WrongRevision(
            f"cannot {context}: {wanted}, but it has {there}",
            bucket=bucket,
            key=key,
            expected=expected,
            found=found,
            err_code=error.err_code,
        )
    advice = {
        10054: f"with its headers the value is larger than max_value_size of bucket {origin.bucket}",
        10077: f"bucket {origin.bucket} takes nothing more: it is full (max_bytes)",
        10109: f"bucket {origin.bucket} is sealed",
        10111: f"a purge needs allow_rollup_hdrs on stream {origin.stream}",
        10166: f"a ttl needs limit_marker_ttl of bucket {origin.bucket}",
    }
    why = advice.get(error.err_code)
    if why is None:
        return error
    said = f"cannot {context}: {why}: {error.description} (code {error.code}, error {error.err_code})"
    return type(error)(said, code=error.code, err_code=error.err_code, description=error.description)
