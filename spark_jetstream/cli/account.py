"""``spark-jetstream account``: limits and usage; backup of all streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit

from spark_jetstream.cli.app import FAILED, Run, command, group
from spark_jetstream.cli.output import as_data
from spark_jetstream.protocol.units import Bytes, counted, rough, sized

if TYPE_CHECKING:
    from spark_jetstream.admin.models.account import AccountInfo

account = group("account", "The JetStream account: limits, usage, backup.")


@command(account, "info", example="account info")
def info(run: Run) -> None:
    """Show limits and usage of the account, for each tier of replicas if it has tiers, and which server answers.

    Streams reserve what they have as max_bytes, whether they use it or not.
    """
    account_info = run.admin.account.info()
    server = run.admin.account.server(account_info)
    since = server.api_since
    # `api_since` is a version, or words for a server that is older than any of the table.
    if not since.startswith("before"):
        since = f"server {since}"
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
    server_data = {"version": server.version, "max_payload": server.max_payload}
    run.out.record(pairs, data={**as_data(account_info), "server": server_data})
    run.out.text("")
    run.out.table(_usage(account_info), dict)


@command(account, "backup", example="account backup /backups/2026-03-01")
def backup(
    run: Run,
    target: Annotated[str, Argument(help="The directory that is made.")],
) -> None:
    """Save all streams of the account, buckets included, with their consumers, as "stream backup" does.

    They are saved one after the other. The target is there when all are; else TARGET.part has those
    that could be.
    """
    names = []
    size = 0
    with run.out.progress("Saving streams", in_bytes=False) as progress:
        for made in run.admin.account.backup(target, progress=progress):
            names.append(made.manifest.stream)
            size += made.manifest.data_bytes
    sentence = f"{counted(len(names), 'stream')} saved at {target}, {sized(size)}"
    run.out.done(sentence, path=target, streams=names)


@command(account, "restore", example="account restore /backups/2026-03-01")
def restore(run: Run, source: Annotated[str, Argument(help='What "account backup" made.')]) -> None:
    """Make all streams of a backup again, if none of them exists.

    Ends with 1 when a stream is not what it was.
    """
    with run.out.progress("Restoring streams", in_bytes=False) as progress:
        restored = run.admin.account.restore(source, progress=progress)
    changes = {made.info.config.name: list(made.differences) for made in restored}
    for name, differences in changes.items():
        for difference in differences:
            run.out.note(f"stream {name} is not as it was: {difference}")
    run.out.done(
        f"{counted(len(changes), 'stream')} restored from {source}",
        source=source,
        streams=changes,
    )
    if any(changes.values()):
        # A script must not take a stream that differs for a complete restore.
        raise Exit(FAILED)


def _usage(info: AccountInfo) -> Iterator[dict[str, object]]:
    """Yield the rows of the table. A stream reserves its ``max_bytes``."""
    # An account has limits for each tier of replicas, or limits of its own, and not both.
    for tier, usage in (info.tiers or {"": info}).items():
        limits = usage.limits
        # An account without tiers needs no column for them.
        begin = {"tier": tier} if info.tiers else {}
        storage = usage.storage, usage.reserved_storage, limits.max_storage
        memory = usage.memory, usage.reserved_memory, limits.max_memory
        yield {**begin, "": "storage", **_share_of(*storage)}
        yield {**begin, "": "memory", **_share_of(*memory)}
        yield {**begin, "": "streams", **_share_of(usage.streams, None, limits.max_streams)}
        # Each stream may have this number of consumers: the sum has no limit.
        consumers = _share_of(usage.consumers, None, -1)
        if limits.max_consumers >= 0:
            consumers["limit"] = f"{limits.max_consumers:,} each stream"
        yield {**begin, "": "consumers", **consumers}


def _share_of(used: int, reserved: int | None, limit: int) -> dict[str, object]:
    """Return the cells of a row that compare amounts with their limit."""
    return {
        "used": used,
        "reserved": reserved,
        "limit": _limit(limit),
        "% used": _percentage(used, limit),
        "% reserved": _percentage(reserved, limit),
    }


def _limit(limit: int) -> str:
    if limit < 0:
        return "no limit"
    return rough(limit) if isinstance(limit, Bytes) else f"{limit:,}"


def _percentage(amount: int | None, limit: int) -> str:
    if amount is None or limit < 0:
        # -1 is no limit, of which there is no share.
        return ""
    # A limit of 0 forbids what it limits.
    return f"{100 * amount / limit:.1f}%" if limit else "none allowed"


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
            # 0 and -1 mean no limit.
            if limit > 0:
                yield f"{text}{of}", limit
        if limits.max_bytes_required:
            yield f"max_bytes{of}", "required"
