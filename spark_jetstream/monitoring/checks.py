"""Health checks: numbers of servers, streams, consumers and buckets compared with thresholds.

docs/monitoring.md describes them.

`CRITERIA` names the thresholds: numbers, or durations such as ``5m`` (a number is seconds). 0 and
less compare nothing; only a lower limit may be 0. A check returns a `CheckResult` also if a request
fails: that is critical, and unknown if the account may not ask or an option is wrong. A threshold
that does not exist or cannot be read raises `OptionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter, ge, gt, itemgetter, le, lt, ne
from time import perf_counter, time
from typing import Any, NamedTuple

from pydantic import SecretStr

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.streams import ClusterInfo, StreamInfo, StreamSourceInfo, replicas
from spark_jetstream.client import pool
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.errors import (
    JetStreamError,
    NoResponders,
    OptionError,
    PermissionDenied,
    brief,
)
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.values import Kind, Seconds, Whole, did_you_mean
from spark_jetstream.protocol.units import Nanoseconds, Timestamp

STATUSES = OK, WARNING, CRITICAL, UNKNOWN = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
"""What a check finds, in the order of the exit codes of a plugin of Nagios."""
METADATA = "io.nats.monitor."
"""The prefix of thresholds in the metadata of an asset: ``io.nats.monitor.lag-critical``."""
_WORDS: Mapping[Any, str] = {
    ge: "{} or more",
    le: "{} or less",
    lt: "less than {}",
    gt: "more than {}",
    ne: "not {}",
}
# From the best to the worst: CRITICAL hides UNKNOWN, although its exit code is lower.
_SEVERITY = (OK, WARNING, UNKNOWN, CRITICAL)
# Servers answer this request in the system account only.
_META = "$SYS.REQ.SERVER.PING.JSZ"
_SPAN = Seconds("0s", "1000y")
# -1 turns a threshold off, as it does for `nats server check`.
_NUMBER = Whole(-1)

_Rule = Callable[[Any, Any], bool]
"""Takes a number and a limit, and returns whether the limit forbids the number."""


class Criterion(NamedTuple):
    """A number of a check, its unit (``s`` or none), and its thresholds: rules by name.

    ``either``: they are lower limits if the critical one is below the other, and upper limits if it
    is above.
    """

    check: str
    name: str
    help: str
    thresholds: Mapping[str, Callable[[Any, Any], bool]]
    unit: str = ""
    either: bool = False
    defaults: Mapping[str, str] = {}


def _pair(
    limit: str,
    rule: Callable[[Any, Any], bool] = ge,
) -> dict[str, Callable[[Any, Any], bool]]:
    return {f"{limit}_warn": rule, f"{limit}_critical": rule}


def _latency(name: str, help: str, limit: str) -> Criterion:
    # Those of `nats server check connection`.
    defaults = {f"{limit}_warn": "500ms", f"{limit}_critical": "1s"}
    return Criterion("connection", name, help, _pair(limit), "s", defaults=defaults)


CRITERIA = (
    _latency("connect_time", "the time to connect and log in", "connect"),
    _latency("rtt", "the time from PING to PONG", "rtt"),
    _latency("request_time", "the time of a request to the JetStream API", "req"),
    Criterion("stream", "messages", "the number of messages", _pair("msgs", le), either=True),
    Criterion("stream", "subjects", "the number of subjects", _pair("subjects"), either=True),
    Criterion("stream", "sources", "the number of sources", {"min_sources": lt, "max_sources": gt}),
    Criterion("stream", "lag", "the number of messages that a mirror or source lags", _pair("lag")),
    Criterion("stream", "active", "the time since a mirror or source was seen", _pair("seen"), "s"),
    Criterion("stream", "peers", "the number of servers", {"peer_expect": ne}),
    Criterion(
        "stream",
        "peer_lag",
        "the number of operations that a server lags",
        _pair("peer_lag"),
    ),
    Criterion("stream", "peer_active", "the time since a server was seen", _pair("peer_seen"), "s"),
    Criterion(
        "consumer",
        "ack_pending",
        "the number of messages that wait for their ack",
        _pair("outstanding_ack"),
    ),
    Criterion("consumer", "pull_waiting", "the number of waiting pulls", _pair("waiting")),
    Criterion(
        "consumer",
        "pending",
        "the number of messages yet to be delivered",
        _pair("unprocessed"),
    ),
    Criterion(
        "consumer",
        "redelivered",
        "the number of messages delivered again",
        _pair("redelivery"),
    ),
    Criterion(
        "consumer",
        "last_delivery",
        "the time since the last delivery",
        _pair("last_delivery"),
        "s",
    ),
    Criterion("consumer", "last_ack", "the time since the last ack", _pair("last_ack"), "s"),
    Criterion("kv", "values", "the number of revisions", _pair("values"), either=True),
    Criterion("credential", "expiry", "the time until the JWT expires", _pair("validity", le), "s"),
    Criterion("meta", "peers", "the number of servers", {"expect": ne}),
    Criterion("meta", "peer_lag", "the number of operations that a server lags", _pair("lag")),
    Criterion("meta", "peer_active", "the time since a server was seen", _pair("seen"), "s"),
)
"""The numbers that the checks compare.

A threshold is critical, unless its name ends in ``_warn``.
"""


def thresholds(check: str) -> Iterator[tuple[str, str, str]]:
    """Yield the thresholds of a check: name, meaning, and unit of the number."""
    for criterion in CRITERIA:
        # Two checks may have a number of the same name, such as peers.
        if criterion.check != check:
            continue
        for name, rule in criterion.thresholds.items():
            status = _status(name).capitalize()
            meaning = f"{status} when {criterion.help} is {_WORDS[rule].format('this')}."
            if name in criterion.defaults:
                meaning += f" [default: {criterion.defaults[name]}]"
            yield name, meaning, criterion.unit


def _status(threshold: str) -> str:
    """Return the status of a number that a threshold forbids."""
    return WARNING if threshold.endswith("_warn") else CRITICAL


class CheckFinding(NamedTuple):
    """A finding of a check in words.

    For a number also its name, its value (None for never), its unit, and its thresholds.
    """

    status: str
    text: str
    name: str = ""
    value: float | None = None
    unit: str = ""
    thresholds: Mapping[str, float] = {}


class _Limit(NamedTuple):
    """A threshold, and the value that a number is compared with."""

    threshold: str
    rule: _Rule
    value: float

    def forbids(self, number: float | None) -> bool:
        """Return whether a number is beyond the limit; never (None) is beyond any."""
        # An ack that never was is later than any limit.
        return number is None or self.rule(number, self.value)


class CheckResult:
    """The findings about an ``item``, such as a stream.

    As a context it takes errors for findings.
    """

    def __init__(self, check: str, item: str, given: Mapping[str, Any]) -> None:
        self.check = check
        self.item = item
        self.findings: list[CheckFinding] = []
        self._criteria = {of.name: of for of in CRITERIA if of.check == check}
        self._kinds: dict[str, Kind] = {}
        limits: dict[str, Any] = {}
        for criterion in self._criteria.values():
            kind = _SPAN if criterion.unit else _NUMBER
            self._kinds |= dict.fromkeys(criterion.thresholds, kind)
            limits |= criterion.defaults
        for name, value in given.items():
            if name not in self._kinds:
                hint = did_you_mean(name, self._kinds)
                raise OptionError(f"check {check} has no threshold {name}{hint}")
            # The command line passes None for an option that is not on it.
            if value is not None:
                limits[name] = value
        self._limits = {name: checked(self._kinds[name], name, limits[name]) for name in limits}

    def __enter__(self) -> CheckResult:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not isinstance(error, JetStreamError):
            return False
        unknown = isinstance(error, (OptionError, PermissionDenied))
        # A request that may not be sent says nothing about the health of what it asks for.
        self.add_fault(str(error), UNKNOWN if unknown else CRITICAL)
        return True

    @property
    def status(self) -> str:
        """The worst status of a finding."""
        return max((finding.status for finding in self.findings), key=_SEVERITY.index, default=OK)

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        """Take the thresholds that the caller has not given from metadata."""
        # A threshold that the caller has given stays.
        for name in self._kinds.keys() - self._limits.keys():
            key = f"{METADATA}{name.replace('_', '-')}"
            if key in metadata:
                self._limits[name] = checked(self._kinds[name], key, metadata[key])

    def add_fault(self, text: str, status: str = CRITICAL) -> None:
        """Add a finding that does not depend on thresholds."""
        self.findings.append(CheckFinding(status, text))

    def add(self, name: str, value: Any) -> None:
        """Add a number (None is never), or the highest of several by the names of their parts."""
        criterion = self._criteria[name]
        noun = name.replace("_", " ")
        if isinstance(value, Mapping):
            if not value:
                return  # such as the lag of a stream without sources
            part, value = max(value.items(), key=itemgetter(1))
            noun += f" of {part}"
        status = OK
        text = f"{noun}: {_shown(value, criterion.unit)}"
        why = ""
        limits = self._limits_of(criterion)
        # The critical limit comes after the warning, and replaces it.
        for limit in limits:
            if limit.forbids(value):
                status = _status(limit.threshold)
                rule = _WORDS[limit.rule].format(_shown(limit.value, criterion.unit))
                why = f", {status.lower()} if {rule}"
        compared = {limit.threshold: limit.value for limit in limits}
        found = CheckFinding(status, text + why, name, value, criterion.unit, compared)
        self.findings.append(found)

    def _limits_of(self, criterion: Criterion) -> list[_Limit]:
        """Return the limits that compare a number with something."""
        values = {}
        for name in criterion.thresholds:
            # -1 is off; a limit that nobody has set counts as -1.
            if self._limits.get(name, -1) >= 0:
                values[name] = self._limits[name]
        rules = criterion.thresholds
        # Two equal limits do not say which of them is beyond the other.
        if criterion.either and len({*values.values()}) > 1:
            warning, critical = values.values()
            rules = dict.fromkeys(values, le if critical < warning else ge)
        limits = []
        for name, value in values.items():
            # Only a lower limit may be 0.
            if value or rules[name] is le:
                limits.append(_Limit(name, rules[name], value))
        return limits

    def add_servers(self, cluster: ClusterInfo) -> None:
        """Add the numbers of servers that keep copies.

        A server offline and no leader are critical.
        """
        self.add("peers", len(replicas(cluster)))
        self.add("peer_lag", {peer.name: peer.lag for peer in cluster.replicas})
        # The server has nanoseconds.
        self.add("peer_active", {peer.name: peer.active / 1e9 for peer in cluster.replicas})
        # Critical without any threshold, so that a user who forgot to set one hears of it.
        if not cluster.leader:
            self.add_fault("there is no leader")
        for peer in cluster.replicas:
            if peer.offline:
                self.add_fault(f"{peer.name} is offline")


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "never"
    if not unit:
        return f"{value:,}"
    microseconds = round(value * 1e6)
    return str(Nanoseconds(microseconds * 1000))


def _age(info: StreamInfo | ConsumerInfo, at: Timestamp) -> float:
    """Return the seconds since a time, by the server's clock."""
    # `ts` is the time of the reply at the server, whose clock may differ from the one here.
    return (info.ts.nanoseconds - at.nanoseconds) / 1e9


def _unseen(info: StreamInfo, origin: StreamSourceInfo) -> float:
    """Return the seconds since a mirror or source was seen, or else since it was made."""
    if origin.active >= 0:
        return origin.active / 1e9
    # Its first heartbeat comes a second after the stream was created.
    return _age(info, info.created)


def check_connection(admin: JetStreamAdmin, **thresholds: Any) -> CheckResult:
    """Check how long it takes to log in, to get a PONG and a reply.

    A process that is logged in stays so: 0 s.
    """
    options = admin.options
    with CheckResult("connection", options.display_servers, thresholds) as result:
        with _timed(result, "connect_time"):
            # `connect` would wait for a server that is starting.
            connection = pool.connect_at_once(options)
        with _timed(result, "rtt"):
            connection.check(options.request_timeout)
        with _timed(result, "request_time"):
            admin.account.info()
    return result


@contextmanager
def _timed(result: CheckResult, name: str) -> Iterator[None]:
    """Add the seconds that the block takes, unless it raises."""
    begun = perf_counter()
    # A step that fails has no time: the error is the finding.
    yield
    result.add(name, perf_counter() - begun)


def check_stream(admin: JetStreamAdmin, stream: str, **thresholds: Any) -> CheckResult:
    """Check messages, subjects, mirror or sources, and servers of a stream.

    Thresholds of its metadata count, too. No leader, a server that is offline, and an error of a
    mirror or source are critical.
    """
    with CheckResult("stream", stream, thresholds) as result:
        info = admin.streams.load(stream)
        result.read_metadata(info.config.metadata)
        result.add("messages", info.state.messages)
        result.add("subjects", info.state.num_subjects)
        result.add("sources", len(info.sources))
        # Sources with other filters, or in other domains, may have one name: the worst one counts,
        # which is the last.
        by_lag = sorted(info.origins, key=attrgetter("lag"))
        result.add("lag", {origin.name: origin.lag for origin in by_lag})
        by_age = sorted((_unseen(info, origin), origin.name) for origin in info.origins)
        result.add("active", {name: age for age, name in by_age})
        for origin in info.origins:
            if origin.error:
                result.add_fault(f"{origin.name}: {brief(origin.error.description)}")
        result.add_servers(info.cluster or ClusterInfo())
    return result


def check_consumer(
    admin: JetStreamAdmin, stream: str, consumer: str, *, pinned: bool = False, **thresholds: Any
) -> CheckResult:
    """Check what waits at a consumer, its last delivery and its last ack.

    Thresholds of its metadata count, too. ``pinned``: a priority group without a pinned client is
    critical.
    """
    with CheckResult("consumer", f"{stream}.{consumer}", thresholds) as result:
        info = admin.consumers.load(stream, consumer)
        result.read_metadata(info.config.metadata)
        result.add("ack_pending", info.num_ack_pending)
        result.add("pull_waiting", info.num_waiting)
        result.add("pending", info.num_pending)
        result.add("redelivered", info.num_redelivered)
        # The server leaves the time out when there was no delivery, or no ack: that is never.
        for name, position in (("last_delivery", info.delivered), ("last_ack", info.ack_floor)):
            result.add(name, position.last_active and _age(info, position.last_active))
        groups = len(info.config.priority_groups)
        served = len([group for group in info.priority_groups if group.pinned_client_id])
        needs_pins = pinned or info.config.metadata.get(f"{METADATA}pinned") == "true"
        if needs_pins and (groups == 0 or served != groups):
            result.add_fault(f"{served} of {groups} priority groups have a pinned client")
    return result


def check_kv(
    admin: JetStreamAdmin,
    bucket: str,
    *,
    key: str | None = None,
    **thresholds: Any,
) -> CheckResult:
    """Check that a Key-Value bucket exists, its number of revisions, and the value of ``key``."""
    with CheckResult("kv", bucket, thresholds) as result:
        result.add("values", admin.kv.load(bucket).values)
        if key is not None:
            # A key without a value raises `KeyNotFound`, which becomes a finding.
            admin.kv.bucket(bucket).get(key)
    return result


def check_credential(
    credential: str,
    *,
    require_expiry: bool = True,
    **thresholds: Any,
) -> CheckResult:
    """Check when the JWT of a ``.creds`` file expires, without a server.

    With ``require_expiry`` it is critical that it never does.
    """
    with CheckResult("credential", credential, thresholds) as result:
        options = ConnectionOptions.from_given({"credentialsFile": SecretStr(credential)})
        expires = connect_arguments(options)["user_credentials"].expires
        # 0: the JWT never expires.
        if expires:
            result.add("expiry", expires - time())
            if expires <= time():
                result.add_fault("the JWT has expired")
        elif require_expiry:
            result.add_fault("the JWT never expires")
    return result


def check_meta(admin: JetStreamAdmin, **thresholds: Any) -> CheckResult:
    """Check the servers of the meta group, which manages all streams of a cluster.

    Needs the system account.
    """
    with CheckResult("meta", admin.options.display_servers, thresholds) as result:
        context = "look at the meta group"
        try:
            reply = pool.connect_at_once(admin.options).ask(
                _META,
                # Then only the leader of the meta group answers (nats-server: server/monitor.go,
                # Jsz), so there is one reply.
                b'{"leader_only": true}',
                context=context,
            )
        except NoResponders:
            # In other accounts no server listens on the subject.
            raise PermissionDenied(
                f"cannot {context}: log in to the system account",
                subject=_META,
            ) from None
        meta = (reply.get("data") or {}).get("meta_cluster")
        # A single server answers too, as no other leads. test_check.py,
        # test_a_server_of_no_cluster_has_no_meta_group, holds the finding.
        if not meta:
            result.add_fault("the server is in no cluster, and has no meta group")
            return result
        group = ClusterInfo.from_server(meta, context)
        result.add_servers(group)
        for peer in group.replicas:
            if not peer.current:
                result.add_fault(f"{peer.name} is not current")
    return result
