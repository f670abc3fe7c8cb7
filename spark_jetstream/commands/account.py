"""``spark-jetstream account``: what the account has, may have, and uses."""

from __future__ import annotations

from spark_jetstream.commands.framework import Run, command, group
from spark_jetstream.commands.output import as_data

account = group("account", "The JetStream account: limits and usage.")


@command(account, "info", example="account info")
def info(run: Run) -> None:
    """Limits and usage of the account, for each tier of replicas where there are tiers."""
    found = run.admin.account.info()
    run.out.record({"streams": found.streams, "consumers": found.consumers}, data=as_data(found))
