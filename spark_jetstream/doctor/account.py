"""Logging in, and the account's JetStream: round trips, clocks, limits, and what its version lacks."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Iterator

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.account import AccountInfo, Tier
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, warning
from spark_jetstream.errors import (
    AuthenticationFailed,
    JetStreamError,
    JetStreamNotEnabled,
    NoResponders,
    PermissionDenied,
)
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol.jsapi import LEVELS
from spark_jetstream.protocol.units import parse_time

_WHO_AM_I = "$SYS.REQ.USER.INFO"
_ROUNDS = 5
_SLOW = 0.1  # seconds for a round trip
_CLOCKS = 5.0  # seconds that clocks may differ
_FULL = 0.9
_FEATURES = (
    (1, "readWith=direct"),
    (4, "moving a consumer (durable makes it anew instead)"),
    (5, "several filters on a work queue (durable)"),
)
"""API level -> what a server with a lower one cannot do."""


def check_login(options: ConnectionOptions) -> Iterator[Finding]:
    """Whether the credentials are accepted. Raises what connecting raises, behind its finding."""
    who = options.authentication_options
    try:
        connection = connect(options)
    except AuthenticationFailed as error:
        yield failed("login", str(error), f"correct {who}, or the users in the server's configuration")
        raise
    except JetStreamError as error:
        yield failed("login", str(error), "see above; the server's log knows more")
        raise
    version = ".".join(map(str, connection.server_version))
    yield ok("login", f"accepted by nats-server {version} ({who}), max_payload {connection.max_payload:,}")


def check_connection(connection: Connection) -> Iterator[Finding]:
    """Round trips, whether answers come, the account's name, and whether the clocks agree."""
    took = [_round_trip(connection) for _ in range(_ROUNDS)]
    median = statistics.median(took)
    said = f"{median * 1000:.1f} ms (median of {_ROUNDS})"
    if median > _SLOW:
        yield warning("round trip", said, "run Spark nearer to the servers, or raise fetchBatch and maxInFlight")
    else:
        yield ok("round trip", said)
    yield from _who(connection)


def _round_trip(connection: Connection) -> float:
    began = time.monotonic()
    connection.check(connection.options.request_timeout)
    return time.monotonic() - began


def _who(connection: Connection) -> Iterator[Finding]:
    """What the server says of the user, and its clock; users with few permissions may not ask."""
    before = time.time_ns()
    try:
        answer = json.loads(connection.request(_WHO_AM_I, b"", context="ask who I am"))
        user, account = str(answer["data"].get("user", "")), str(answer["data"]["account"])
        expires, clock = answer["data"].get("expires"), str(answer["server"]["time"])
    except PermissionDenied as error:
        if error.subject != _WHO_AM_I:
            yield failed("replies", str(error), f"allow subscribing to {error.subject}, or set option inboxPrefix")
            return
        yield unknown("account", f"may not ask at {_WHO_AM_I}, which is optional")
        return
    except (JetStreamError, ValueError, KeyError, AttributeError, TypeError) as error:
        yield unknown("account", f"the server does not say: {error}")
        return
    yield ok("account", f"{account}, user {user or 'not named'}")
    if isinstance(expires, int) and expires > 0:
        # nanoseconds, as Go writes a duration
        left = datetime.timedelta(seconds=expires // 1_000_000_000)
        if left < datetime.timedelta(days=30):
            yield warning("credentials", f"expire in {left}", "renew them (options credentialsFile, credentialsSecret)")
    yield clocks(parse_time(clock), before, time.time_ns())


def clocks(server: int, before: int, after: int) -> Finding:
    """Whether the server's clock was between two moments of this machine's, all in ns since the epoch."""
    off = max(before - server, server - after, 0) / 1e9
    if off < _CLOCKS:
        return ok("clock", "agrees with the server's")
    ahead = "behind" if server > after else "ahead of"
    said = f"this machine is {off:,.0f} s {ahead} the server"
    return warning("clock", said, "set both by NTP: startingTimestamp and endingTimestamp mean the server's clock")


def check_account(admin: JetStreamAdmin) -> Iterator[Finding]:
    """Whether the account has JetStream, what of its limits is used, and what the server is too old for."""
    options = admin.options
    try:
        info = admin.account.info()
    except JetStreamNotEnabled as error:
        yield failed("jetstream", str(error), "enable jetstream for the account, in the server's configuration")
        return
    except PermissionDenied as error:
        yield unknown("limits", f"{error}, which is optional")
        return
    except NoResponders:
        named = [name for name in ("domain", "apiPrefix") if name in options.given()]
        said = f"nobody answers at {options.api_prefix_resolved}.INFO"
        advice = f"correct option {named[0]}" if named else "enable jetstream on the server, or set domain or apiPrefix"
        yield failed("jetstream", said, advice)
        return
    except JetStreamError as error:
        yield failed("jetstream", str(error), "is a leader being elected? try again; then look into the server's log")
        return
    where = f", domain {info.domain}" if info.domain else ""
    yield ok("jetstream", f"{info.streams:,} streams, {info.consumers:,} consumers{where}")
    yield from _limits(info)
    yield _level(info)


def _limits(info: AccountInfo) -> Iterator[Finding]:
    full = [line for name, tier in (info.tiers or {"": info}).items() for line in _nearly_full(name, tier)]
    for said in full:
        yield warning("limits", said, "remove what is not needed, or raise the limits of the account")
    if not full:
        yield ok("limits", "less than 90 % of each is used")


def _nearly_full(name: str, tier: Tier) -> Iterator[str]:
    limits = tier.limits
    used = {
        "memory": (max(tier.memory, tier.reserved_memory), limits.max_memory),
        "storage": (max(tier.storage, tier.reserved_storage), limits.max_storage),
        "streams": (tier.streams, limits.max_streams),
    }
    for what, (amount, most) in used.items():
        if most > 0 and amount > most * _FULL:
            of = f" of {name}" if name else ""
            yield f"{amount:,} of {most:,} {'' if what == 'streams' else 'bytes of '}{what}{of} are used or reserved"


def _level(info: AccountInfo) -> Finding:
    level = info.api.level
    since = LEVELS.get(max((each for each in LEVELS if each <= level), default=0), "before 2.11")
    said = f"level {level} (nats-server {since})"
    lacking = [(needed, what) for needed, what in _FEATURES if level < needed]
    if not lacking:
        return ok("api", f"{said}: all options work")
    newest = LEVELS[lacking[-1][0]]
    words = "; ".join(f"{what}: {LEVELS[needed]}" for needed, what in lacking)
    if level < 1:
        return warning("api", f"{said} lacks {words}", f"upgrade to nats-server {newest}, or leave these options out")
    return ok("api", f"{said}; newer servers have {words}")
