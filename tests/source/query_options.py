"""The random options of a query in a history, and their changes between its runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.model.stream import Kept
from tests.support.reading import QUICK

FILTERS = ("a", "a,b", "*.x", "c", ">", "none", "*")
#: What a user may give, and change between two runs.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "maxMessagesPerTrigger": ("", "", 1, 2, 5, 20),
    "maxBytesPerTrigger": ("", "", "", "1000", "100k"),
    "minPartitions": ("", "", 2, 3, 10),
    "maxMessagesPerPartition": ("", "", 1, 3, 10),
    "readWith": ("auto", "consumer", "direct"),
    "fetchBatch": ("", 1, 3),
    "fetchMaxBytes": ("", "64k"),
    "includeHeaders": ("true", "true", "false"),
}


class Options:
    """The options of a query on streams of one retention.

    `what` is the option that names the streams.
    """

    def __init__(
        self, chance: random.Random, url: str, name: str, what: str, retention: str, log: list[str]
    ) -> None:
        self.chance = chance
        self.url = url
        self.name = name
        self.what = what
        self.retention = retention
        self.log = log
        self.streams: Sequence[Kept] = ()
        self.warnings: list[str] = []  # of the connector
        self.first = chance.choice([1, 3, 5])  # where `startingOffsets` may begin
        self.options = self._options()
        self.time = 0  # of the option startingTimestamp, in nanoseconds
        self.left_out: set[str] = set()  # streams that the option does not name now

    def _options(self) -> dict[str, Any]:
        chance = self.chance
        options: dict[str, Any] = {"failOnDataLoss": "true", "startingTimestamp": "", "durable": ""}
        options["startingOffsets"] = chance.choice(
            ["earliest", "earliest", "earliest", "latest", "sequences"]
        )
        self.filter = chance.choice(["", "", chance.choice(FILTERS)])
        if self.retention != "limits" or (self.what == "stream" and chance.random() < 0.15):
            options["durable"] = "spark"
        # An application that takes what the query does not read, or also what it reads of an
        # interest stream.
        apart = self.retention == "interest" or self.filter in ("a", "a,b", "*.x", "none")
        self.other = self.retention != "limits" and apart and chance.random() < 0.5
        if self.retention == "workqueue" or (
            options["startingOffsets"] == "sequences" and self.what != "stream"
        ):
            options["startingOffsets"] = "earliest"
        return options | {name: chance.choice(values) for name, values in OPTIONS.items()}

    @property
    def filters(self) -> str:
        """The subjects that the query reads, as the server takes them; "" for all."""
        if self.what == "bucket":
            return ",".join(f"$KV.{self.name}.{each}" for each in (self.filter or ">").split(","))
        return (
            ",".join(f"{self.name}.*.{each}" for each in self.filter.split(","))
            if self.filter
            else ""
        )

    @property
    def fails(self) -> bool:
        return bool(self.options["failOnDataLoss"] == "true")

    def given(self) -> dict[str, Any]:
        """The options of a run."""
        what = {
            "bucket": self.name,
            "streamPattern": f"{self.name}-*",
            "stream": ",".join(self.by_name()),
        }
        options = {**self.options, self.what: what[self.what], "servers": self.url, **QUICK}
        if self.what == "bucket":
            options["keys"] = self.filter
            del options["includeHeaders"]
        else:
            options["subjects"] = self.filters
        if options["startingOffsets"] == "sequences":
            options["startingOffsets"] = json.dumps(dict.fromkeys(self.by_name(), self.first))
        return {name: value for name, value in options.items() if value != ""}

    def by_name(self) -> dict[str, Kept]:
        """The streams of the query."""
        return {kept.name: kept for kept in self.streams if kept.name not in self.left_out}

    def _change_options(self, *, between_batches: bool) -> None:
        chance = self.chance
        self.options |= {name: chance.choice(values) for name, values in OPTIONS.items()}
        if chance.random() < 0.3 and not self.options["durable"]:
            self.filter = chance.choice(["", chance.choice(FILTERS)])
        if (
            self.what == "stream"
            and len(self.streams) > 1
            and between_batches
            and chance.random() < 0.3
        ):
            name = chance.choice(self.streams).name
            self.left_out = set() if self.left_out else {name}
