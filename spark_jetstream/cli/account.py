"""``spark-jetstream account``: limits and usage; backup of all streams."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

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
    data = {
        **as_data(account_info),
        "server": {"version": server.version, "max_payload": server.max_payload},
    }
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
    columns = [
        *(["tier"] if account_info.tiers else []),
        "",
        "used",
        "reserved",
        "limit",
        "% used",
        "% reserved",
    ]
    run.out.text("")
    run.out.table(_usage(account_info), {name: itemgetter(name) for name in columns})


@command(account, "backup", example="account backup /backups/2026-03-01")
def backup(run: Run, target: Annotated[str, Argument(help="The directory that is made.")]) -> None:
    """Save all streams of the account, buckets included, with their consumers, as "stream backup" does.

    They are saved one after the other. The target is there when all are; else TARGET.part has those
    that could be.
    """
    with run.out.progress("Saving streams", in_bytes=False) as progress:
        saved = [made.manifest for made in run.admin.account.backup(target, progress=progress)]
    names, size = (
        [manifest.stream for manifest in saved],
        sum(manifest.data_bytes for manifest in saved),
    )
    run.out.done(
        f"{counted(len(names), 'stream')} saved at {target}, {sized(size)}",
        path=target,
        streams=names,
    )


@command(account, "restore", example="account restore /backups/2026-03-01")
def restore(run: Run, source: Annotated[str, Argument(help='What "account backup" made.')]) -> None:
    """Make all streams of a backup again, if none of them exists. Ends with 1 when a stream is not what it was."""
    with run.out.progress("Restoring streams", in_bytes=False) as progress:
        restored = run.admin.account.restore(source, progress=progress)
    changes = {made.info.config.name: list(made.differences) for made in restored}
    for change in (f"stream {name} is not as it was: {change}" for name in changes for change in changes[name]):
        run.out.note(change)
    run.out.done(
        f"{counted(len(changes), 'stream')} restored from {source}",
        source=source,
        streams=changes,
    )
    if any(changes.values()):
        raise Exit(FAILED)


def _usage(info: AccountInfo) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table. What is reserved is what streams with ``max_bytes`` have set aside."""
    for tier, usage in (info.tiers or {"": info}).items():
        limits = usage.limits
        for what, used, limit, reserved in (
            ("storage", usage.storage, limits.max_storage, usage.reserved_storage),
            ("memory", usage.memory, limits.max_memory, usage.reserved_memory),
            ("streams", usage.streams, limits.max_streams, None),
            ("consumers", usage.consumers, limits.max_consumers, None),
        ):
            number = rough(limit) if isinstance(limit, Bytes) else f"{limit:,}"
            row: dict[str, Any] = {
                "tier": tier,
                "": what,
                "used": used,
                "reserved": reserved,
                "limit": number,
            }
            if limit < 0:
                row["limit"] = "no limit"
            elif what == "consumers":
                row["limit"] += " each stream"
            of = -1 if what == "consumers" else limit  # a limit of each stream is none of the sum
            yield row | {"% used": _share(used, of), "% reserved": _share(reserved, of)}


def _share(amount: int | None, limit: int) -> str:
    if amount is None or limit < 0:
        return ""
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
            if limit > 0:
                yield f"{text}{of}", limit
        if limits.max_bytes_required:
            yield f"max_bytes{of}", "required"
