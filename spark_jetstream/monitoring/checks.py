"""Health checks: numbers of servers, streams, consumers and buckets compared with thresholds. See docs/monitoring.md.

`CRITERIA` names the thresholds: numbers, or durations such as ``5m`` (a number is seconds). 0 and
less compare nothing; only a lower limit may be 0. A check returns a `CheckResult` also if a request
fails: that is critical, and unknown if the account may not ask or an option is wrong. A threshold
that does not exist or cannot be read raises `OptionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import ge, gt, itemgetter, le, lt, ne
from time import perf_counter, time
from typing import Any, NamedTuple

from pydantic import SecretStr

from spark_jetstream.admin.api import checked
from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.consumers import ConsumerInfo
from spark_jetstream.admin.models.streams import ClusterInfo, StreamInfo, replicas
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
from spark_jetstream.options.values import Seconds, Whole, did_you_mean
from spark_jetstream.protocol.units import Nanoseconds, Timestamp

STATUSES = OK, WARNING, CRITICAL, UNKNOWN = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
"""What a check finds, in the order of the exit codes of a plugin of Nagios."""
METADATA = "io.nats.monitor."
"""The prefix of thresholds in the metadata of streams and consumers: ``io.nats.monitor.lag-critical``."""
_WORDS: Mapping[Any, str] = {
    ge: "{} or more",
    le: "{} or less",
    lt: "less than {}",
    gt: "more than {}",
    ne: "not {}",
}
_SEVERITY = (OK, WARNING, UNKNOWN, CRITICAL)
_META = "$SYS.REQ.SERVER.PING.JSZ"
_SPAN, _NUMBER = Seconds("0s", "1000y"), Whole(-1)


class Criterion(NamedTuple):
    """A number of a check, its unit (``s`` or none), and its thresholds: rules by name, and the defaults, if any.

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
"""What the checks compare. A threshold is critical, unless its name ends in ``_warn``."""


def thresholds(check: str) -> Iterator[tuple[str, str, str]]:
    """Yield the thresholds of a check: name, meaning, and unit of the number."""
    for of in (of for of in CRITERIA if of.check == check):
        for at, rule in of.thresholds.items():
            status = "Warning" if at.endswith("_warn") else "Critical"
            default = f" [default: {of.defaults[at]}]" if at in of.defaults else ""
            yield at, f"{status} when {of.help} is {_WORDS[rule].format('this')}.{default}", of.unit


class CheckFinding(NamedTuple):
    """What a check has found, in words; for a number also its name, value (None for never), unit and thresholds."""

    status: str
    text: str
    name: str = ""
    value: float | None = None
    unit: str = ""
    thresholds: Mapping[str, float] = {}


class CheckResult:
    """What a check has found about an ``item``, such as a stream. As a context it takes errors for findings."""

    def __init__(self, check: str, item: str, given: Mapping[str, Any]) -> None:
        self.check, self.item = check, item
        self.findings: list[CheckFinding] = []
        self._criteria = {of.name: of for of in CRITERIA if of.check == check}
        self._kinds = {at: _SPAN if of.unit else _NUMBER for of in self._criteria.values() for at in of.thresholds}
        for at in given.keys() - self._kinds.keys():
            raise OptionError(f"check {check} has no threshold {at}{did_you_mean(at, self._kinds)}")
        limits: dict[str, Any] = {at: value for of in self._criteria.values() for at, value in of.defaults.items()}
        limits |= {at: value for at, value in given.items() if value is not None}
        self._limits = {at: checked(self._kinds[at], at, value) for at, value in limits.items()}

    def __enter__(self) -> CheckResult:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, JetStreamError):
            self.add_fault(
                str(error),
                UNKNOWN if isinstance(error, (OptionError, PermissionDenied)) else CRITICAL,
            )
        return isinstance(error, JetStreamError)

    @property
    def status(self) -> str:
        """The worst status of a finding."""
        return max((finding.status for finding in self.findings), key=_SEVERITY.index, default=OK)

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        """Take the thresholds that the caller has not given from metadata."""
        for at in self._kinds.keys() - self._limits.keys():
            key = f"{METADATA}{at.replace('_', '-')}"
            if key in metadata:
                self._limits[at] = checked(self._kinds[at], key, metadata[key])

    def add_fault(self, text: str, status: str = CRITICAL) -> None:
        """Add what does not depend on thresholds."""
        self.findings.append(CheckFinding(status, text))

    def add(self, name: str, value: Any) -> None:
        """Add a number (None is never), or the highest of several by the names of their parts, if there is one."""
        criterion, part, status, why = self._criteria[name], "", OK, ""
        if isinstance(value, Mapping):
            if not value:
                return
            part, value = max(value.items(), key=itemgetter(1))
        rules = {at: rule for at, rule in criterion.thresholds.items() if self._limits.get(at, -1) >= 0}
        if criterion.either and len({self._limits[at] for at in rules}) > 1:
            warning, critical = (self._limits[at] for at in rules)
            rules = dict.fromkeys(rules, le if critical < warning else ge)
        limits = {at: self._limits[at] for at, rule in rules.items() if self._limits[at] or rule is le}
        for at, limit in limits.items():
            if value is None or rules[at](value, limit):
                status = WARNING if at.endswith("_warn") else CRITICAL
                why = f", {status.lower()} if {_WORDS[rules[at]].format(_shown(limit, criterion.unit))}"
        text = f"{name.replace('_', ' ')}{part and f' of {part}'}: {_shown(value, criterion.unit)}{why}"
        self.findings.append(CheckFinding(status, text, name, value, criterion.unit, limits))

    def add_servers(self, cluster: ClusterInfo) -> None:
        """Add the numbers of servers that keep copies. No leader, and one that is offline, are critical."""
        self.add("peers", len(replicas(cluster)))
        self.add("peer_lag", {peer.name: peer.lag for peer in cluster.replicas})
        self.add("peer_active", {peer.name: peer.active / 1e9 for peer in cluster.replicas})
        if not cluster.leader:
            self.add_fault("there is no leader")
        for peer in cluster.replicas:
            if peer.offline:
                self.add_fault(f"{peer.name} is offline")


def _shown(value: float | None, unit: str) -> str:
    if value is None or not unit:
        return "never" if value is None else f"{value:,}"
    return str(Nanoseconds(round(value * 1e6) * 1000))  # in microseconds


def _age(info: StreamInfo | ConsumerInfo, at: Timestamp) -> float:
    return (info.ts.nanoseconds - at.nanoseconds) / 1e9  # by the server's clock


def check_connection(admin: JetStreamAdmin, **thresholds: Any) -> CheckResult:
    """Check how long it takes to log in, to get a PONG and a reply. A process that is logged in stays so: 0 s."""
    options = admin.options
    with CheckResult("connection", options.display_servers, thresholds) as result:
        for name, work in (
            ("connect_time", lambda: pool.connect_at_once(options)),
            ("rtt", lambda: pool.connect_at_once(options).check(options.request_timeout)),
            ("request_time", admin.account.info),
        ):
            begun = perf_counter()
            work()
            result.add(name, perf_counter() - begun)
    return result


def check_stream(admin: JetStreamAdmin, stream: str, **thresholds: Any) -> CheckResult:
    """Check messages, subjects, mirror or sources, and servers of a stream. Thresholds of its metadata count, too.

    No leader, a server that is offline, and an error of a mirror or source are critical.
    """
    with CheckResult("stream", stream, thresholds) as result:
        info = admin.streams.load(stream)
        result.read_metadata(info.config.metadata)
        result.add("messages", info.state.messages)
        result.add("subjects", info.state.num_subjects)
        result.add("sources", len(info.sources))
        # Several sources may have one name, with other filters or in other domains: the last one in
        # a mapping counts.
        result.add(
            "lag",
            {origin.name: origin.lag for origin in sorted(info.origins, key=lambda at: at.lag)},
        )
        # One that was never seen counts from the creation of the stream: its first heartbeat comes
        # a second later.
        ages = [(at.active / 1e9 if at.active >= 0 else _age(info, info.created), at.name) for at in info.origins]
        result.add("active", {name: age for age, name in sorted(ages)})
        for origin in info.origins:
            if origin.error:
                result.add_fault(f"{origin.name}: {brief(origin.error.description)}")
        result.add_servers(info.cluster or ClusterInfo())
    return result


def check_consumer(
    admin: JetStreamAdmin, stream: str, consumer: str, *, pinned: bool = False, **thresholds: Any
) -> CheckResult:
    """Check what waits at a consumer, its last delivery and its last ack. Thresholds of its metadata count, too.

    ``pinned``: a priority group without a pinned client is critical.
    """
    with CheckResult("consumer", f"{stream}.{consumer}", thresholds) as result:
        info = admin.consumers.load(stream, consumer)
        result.read_metadata(info.config.metadata)
        result.add("ack_pending", info.num_ack_pending)
        result.add("pull_waiting", info.num_waiting)
        result.add("pending", info.num_pending)
        result.add("redelivered", info.num_redelivered)
        for name, position in (("last_delivery", info.delivered), ("last_ack", info.ack_floor)):
            result.add(name, position.last_active and _age(info, position.last_active))
        groups, served = (
            len(info.config.priority_groups),
            sum(bool(at.pinned_client_id) for at in info.priority_groups),
        )
        if (pinned or info.config.metadata.get(f"{METADATA}pinned") == "true") and not 0 < groups == served:
            result.add_fault(f"{served} of {groups} priority groups have a pinned client")
    return result


def check_kv(
    admin: JetStreamAdmin,
    bucket: str,
    *,
    key: str | None = None,
    **thresholds: Any,
) -> CheckResult:
    """Check that a Key-Value bucket exists, how many revisions it holds, and that ``key`` has a value."""
    with CheckResult("kv", bucket, thresholds) as result:
        result.add("values", admin.kv.load(bucket).values)
        if key is not None:
            admin.kv.bucket(bucket).get(key)
    return result


def check_credential(
    credential: str,
    *,
    require_expiry: bool = True,
    **thresholds: Any,
) -> CheckResult:
    """Check when the JWT of a ``.creds`` file expires, without a server. Never is critical with ``require_expiry``."""
    with CheckResult("credential", credential, thresholds) as result:
        options = ConnectionOptions.from_given({"credentialsFile": SecretStr(credential)})
        expires = connect_arguments(options)["user_credentials"].expires
        if expires:
            result.add("expiry", expires - time())
        if expires <= time() and (expires or require_expiry):
            result.add_fault("the JWT has expired" if expires else "the JWT never expires")
    return result


def check_meta(admin: JetStreamAdmin, **thresholds: Any) -> CheckResult:
    """Check the servers of the meta group, which manages all streams of a cluster. Needs the system account."""
    with CheckResult("meta", admin.options.display_servers, thresholds) as result:
        context = "look at the meta group"
        try:
            reply = pool.connect_at_once(admin.options).ask(
                _META,
                b'{"leader_only": true}',
                context=context,
            )
        except NoResponders:
            raise PermissionDenied(
                f"cannot {context}: log in to the system account",
                subject=_META,
            ) from None
        meta = (reply.get("data") or {}).get("meta_cluster")
        if not meta:
            result.add_fault("the server is in no cluster, and has no meta group")
            return result
        group = ClusterInfo.from_server(meta, context)
        result.add_servers(group)
        for peer in group.replicas:
            if not peer.current:
                result.add_fault(f"{peer.name} is not current")
    return result
