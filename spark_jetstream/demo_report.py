"""What the demo counts, and how it tells: sums of delays, a table, a JSON object.

Nothing here talks to a server or to Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
import pyspark
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import spark_jetstream

#: Scheduled hours of departure, as columns of the printed table.
PARTS_OF_DAY = (("0-9h", 0, 9), ("9-13h", 9, 13), ("13-17h", 13, 17), ("17-21h", 17, 21), ("21-24h", 21, 24))


class Delays(NamedTuple):
    """Sums over flights, in whole minutes. Cancelled flights have no delay and count in ``flights`` only."""

    flights: int
    departed: int
    departure_minutes: float
    arrived: int
    arrival_minutes: float

    def __str__(self) -> str:
        """For people."""
        return (
            f"{self.flights} flights, {self.departed} departed {self.departure_minutes:.0f} minutes late, "
            f"{self.arrived} arrived {self.arrival_minutes:.0f} minutes late"
        )

    def plus(self, other: Delays) -> Delays:
        """Both together."""
        return Delays(
            self.flights + other.flights,
            self.departed + other.departed,
            self.departure_minutes + other.departure_minutes,
            self.arrived + other.arrived,
            self.arrival_minutes + other.arrival_minutes,
        )


NO_FLIGHTS = Delays(0, 0, 0.0, 0, 0.0)

#: By carrier and scheduled hour of departure.
DelaysByHour = Mapping[tuple[str, int], Delays]


@dataclass(frozen=True)
class Load:
    """What was published: messages, payload bytes, seconds from the first publish to the last ack."""

    messages: int
    payload_bytes: int
    seconds: float


@dataclass
class QueryRun:
    """What the streaming query counted, and one entry per micro-batch that had rows."""

    delays: DelaysByHour
    batch_rows: list[int] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)
    watermark: str = ""

    @property
    def rows_per_second(self) -> float:
        """Over all micro-batches, planning and commits included."""
        return sum(self.batch_rows) / max(sum(self.batch_seconds), 1e-9)

    @property
    def warm_rows_per_second(self) -> float:
        """Without the first micro-batch, which pays for compiling and for starting Python workers, if it can."""
        first = 1 if len(self.batch_rows) > 1 else 0
        return sum(self.batch_rows[first:]) / max(sum(self.batch_seconds[first:]), 1e-9)


def delays_by_pandas(flights: pd.DataFrame) -> DelaysByHour:
    """The sums that Spark must arrive at."""
    sums = flights.groupby(["carrier", "hour"]).agg(
        flights=("carrier", "size"),
        departed=("dep_delay", "count"),
        departure_minutes=("dep_delay", "sum"),
        arrived=("arr_delay", "count"),
        arrival_minutes=("arr_delay", "sum"),
    )
    return {
        (str(row[0][0]), int(row[0][1])): Delays(int(row[1]), int(row[2]), float(row[3]), int(row[4]), float(row[5]))
        for row in sums.itertuples(name=None)
    }


def differences(spark: DelaysByHour, pandas: DelaysByHour) -> list[str]:
    """One sentence for every carrier and hour whose sums differ. Sums of whole numbers are exact."""
    return [
        f"{carrier} at {hour}h: Spark has {spark.get((carrier, hour), 'nothing')}; "
        f"pandas has {pandas.get((carrier, hour), 'nothing')}."
        for carrier, hour in sorted(spark.keys() | pandas.keys())
        if spark.get((carrier, hour)) != pandas.get((carrier, hour))
    ]


def report(console: Console, load: Load, result: QueryRun, names: Mapping[str, str]) -> None:
    """Print the delays by carrier and part of the day, and what it took to get them.

    ``names`` are those of the carriers.
    """
    table = Table(
        title="Flights from New York in 2013: minutes late", box=SIMPLE, pad_edge=False, collapse_padding=True
    )
    table.add_column("airline", no_wrap=True, max_width=20)
    for heading in ("flights", "dep.", "arr.", *(name for name, _, _ in PARTS_OF_DAY)):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    by_size = sorted({carrier for carrier, _ in result.delays}, key=lambda c: -_total(result, c).flights)
    for carrier in by_size:
        total = _total(result, carrier)
        table.add_row(
            names.get(carrier, carrier),
            f"{total.flights:,}",
            _mean(total.departure_minutes, total.departed),
            _mean(total.arrival_minutes, total.arrived),
            *(
                _mean(part.departure_minutes, part.departed)
                for part in (_total(result, carrier, first, end) for _, first, end in PARTS_OF_DAY)
            ),
        )
    console.print(table)
    console.print("dep. and arr. are means over the flights that were flown; the columns of hours are means of dep.")
    console.print(
        f"JetStream acknowledged {load.messages:,} messages ({load.payload_bytes / 1e6:.0f} MB) "
        f"in {load.seconds:.1f} s: {load.messages / max(load.seconds, 1e-9):,.0f} messages/s."
    )
    batches = _count(len(result.batch_rows), "micro-batch", "micro-batches")
    warm = f", and {result.warm_rows_per_second:,.0f} rows/s after the first one" if len(result.batch_rows) > 1 else ""
    console.print(
        f"Spark read {sum(result.batch_rows):,} rows in {batches} and {sum(result.batch_seconds):.1f} s: "
        f"{result.rows_per_second:,.0f} rows/s{warm}."
    )
    console.print(f"Watermark on the time of the messages: {result.watermark}.")


def summary(load: Load, result: QueryRun, problems: list[str], spark_version: str) -> dict[str, Any]:
    """What ``--json`` prints. Times are seconds."""
    carriers = sorted({carrier for carrier, _ in result.delays})
    return {
        "messages": load.messages,
        "payload_bytes": load.payload_bytes,
        "publish_seconds": round(load.seconds, 3),
        "rows": sum(result.batch_rows),
        "batches": len(result.batch_rows),
        "query_seconds": round(sum(result.batch_seconds), 3),
        "rows_per_second": round(result.rows_per_second),
        "warm_rows_per_second": round(result.warm_rows_per_second),
        "watermark": result.watermark,
        "carriers": {carrier: _total(result, carrier)._asdict() for carrier in carriers},
        "agrees_with_pandas": not problems,
        "differences": problems,
        "versions": {
            "spark_jetstream": spark_jetstream.__version__,
            "spark": spark_version,
            "pyspark": pyspark.__version__,
            "python": sys.version.split()[0],
        },
    }


def _total(result: QueryRun, carrier: str, first_hour: int = 0, end_hour: int = 24) -> Delays:
    total = NO_FLIGHTS
    for (name, hour), part in result.delays.items():
        if name == carrier and first_hour <= hour < end_hour:
            total = total.plus(part)
    return total


def _mean(minutes: float, flights: int) -> str:
    if not flights:
        return ""
    mean = minutes / flights
    colour = "green" if mean < 5 else "yellow" if mean < 20 else "red"
    return f"[{colour}]{mean:.1f}[/]"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
