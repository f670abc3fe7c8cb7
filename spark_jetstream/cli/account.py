"""``spark-jetstream account``: limits and usage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.output import as_data
from spark_jetstream.protocol.units import Bytes, rough

if TYPE_CHECKING:
    from spark_jetstream.admin.models.account import AccountInfo

account = group("account", "The JetStream account: limits and usage.")


@dataclass(frozen=True)
class _Usage:
    """A row of the table. ``reserved`` is what streams with ``max_bytes`` have set aside."""

    tier: str
    what: str
    used: int
    limit: int
    reserved: int | None = None

    @property
    def allowed(self) -> str:
        """The limit for people. A limit of consumers applies to each stream."""
        if self.limit < 0:
            return "no limit"
        number = rough(self.limit) if isinstance(self.limit, Bytes) else f"{self.limit:,}"
        return f"{number} each stream" if self.what == "consumers" else number

    def share(self, amount: int | None) -> str:
        """Return the share of the limit; "" if no limit applies to the sum."""
        if amount is None or self.limit < 0 or self.what == "consumers":
            return ""
        return f"{100 * amount / self.limit:.1f}%" if self.limit else "none allowed"


@command(account, "info", example="account info")
def info(run: Run) -> None:
    """Show limits and usage of the account, for each tier of replicas if it has tiers, and which server answers.

    Streams reserve what they have as max_bytes, whether they use it or not.
    """
    account_info = run.admin.account.info()
    server = run.admin.account.server(account_info)
    data = {**as_data(account_info), "server": {"version": server.version, "max_payload": server.max_payload}}
    since = server.api_since if server.api_since.startswith("before") else f"server {server.api_since}"
    pairs = {
        "server": server.version,
        "API level": f"{server.api_level} ({since})",
        "domain": server.domain,
        "largest message": Bytes(server.max_payload),
        "API requests": account_info.api.total,
        "failed API requests": f"{account_info.api.errors:,}",
        "API requests in progress": f"{account_info.api.inflight:,}",
        **dict(_rules(account_info)),
    }
    run.out.record(pairs, data=data)
    columns = {
        "used": lambda usage: usage.used,
        "reserved": lambda usage: usage.reserved,
        "limit": lambda usage: usage.allowed,
        "% used": lambda usage: usage.share(usage.used),
        "% reserved": lambda usage: usage.share(usage.reserved),
    }
    tiers = {"tier": lambda usage: usage.tier} if account_info.tiers else {}
    run.out.text("")
    run.out.table(_usage(account_info), {**tiers, "": lambda usage: usage.what, **columns})


def _usage(info: AccountInfo) -> Iterator[_Usage]:
    for name, tier in (info.tiers or {"": info}).items():
        limits = tier.limits
        yield _Usage(name, "storage", tier.storage, limits.max_storage, tier.reserved_storage)
        yield _Usage(name, "memory", tier.memory, limits.max_memory, tier.reserved_memory)
        yield _Usage(name, "streams", tier.streams, limits.max_streams)
        yield _Usage(name, "consumers", tier.consumers, limits.max_consumers)


def _rules(info: AccountInfo) -> Iterator[tuple[str, object]]:
    """Yield the limits of single streams and consumers."""
    for name, tier in (info.tiers or {"": info}).items():
        limits = tier.limits
        of = f" of {name}" if name else ""
        for text, limit in (
            ("one stream on disk", limits.storage_max_stream_bytes),
            ("one stream in memory", limits.memory_max_stream_bytes),
            ("unacknowledged of one consumer", limits.max_ack_pending),
        ):
            if limit > 0:
                yield f"{text}{of}", limit
        if limits.max_bytes_required:
            yield f"max_bytes{of}", "required"
