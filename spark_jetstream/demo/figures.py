"""The figures of the demo: sums of delays, tables, a JSON object. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyspark
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import spark_jetstream

#: Scheduled hours of departure, as columns of the printed table.
PARTS_OF_DAY = (
    ("0-9", 0, 9),
    ("9-13", 9, 13),
    ("13-17", 13, 17),
    ("17-21", 17, 21),
    ("21-24", 21, 24),
)

_COMPANY = re.compile(r" (Inc\.|Co\.|Corporation)$")

#: Minutes after its time from which on an arrival is late.
LATE = 15

#: Sums over flights by carrier and scheduled hour of departure, in whole minutes. Cancelled flights
#: have no delay and count in ``flights`` only.
DELAYS = (
    "Spark has",
    "{flights} flights, {departed} departed {departure_minutes:.0f} minutes late, "
    "{arrived} arrived {arrival_minutes:.0f} minutes late",
)

#: Sums over late flights by subject: messages about them, different flights among those, minutes.
LATE_FLIGHTS = (
    "the stream holds",
    "{messages} messages about {flights} flights, {minutes} minutes late, {lost} of them lost on "
    "the way",
)


@dataclass(frozen=True)
class Load:
    """The size of a write: messages, payload bytes, and the seconds of the write."""

    messages: int
    payload_bytes: int
    seconds: float


@dataclass(frozen=True)
class Batches:
    """The rows and seconds of the micro-batches of a query that had rows.

    Planning and commits are included. ``watermark`` is the last one of the query.
    """

    rows: Sequence[int]
    seconds: Sequence[float]
    watermark: str = ""

    @property
    def total_rows(self) -> int:
        """The rows that all micro-batches read."""
        return sum(self.rows)

    @property
    def total_seconds(self) -> float:
        """The seconds of all micro-batches."""
        return sum(self.seconds)

    def rate(self, *, warm: bool = False) -> float:
        """Return the rows per second; ``warm`` is without the first of several."""
        # The first one compiles, and starts workers.
        first = 1 if warm and len(self.rows) > 1 else 0
        return _rate(sum(self.rows[first:]), sum(self.seconds[first:]))

    def __str__(self) -> str:
        """Return the sums as text for people."""
        number = len(self.rows)
        noun = "micro-batch" if number == 1 else "micro-batches"
        return f"{number} {noun} and {self.total_seconds:.1f} s"


@dataclass(frozen=True)
class Stored:
    """The content of the second stream, a payload of each subject, and the seconds of the read."""

    late: pd.DataFrame
    examples: Mapping[str, str]
    seconds: float

    @property
    def messages(self) -> int:
        """The messages of all subjects."""
        return int(self.late["messages"].sum())


def delays_by_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the sums that Spark must compute."""
    sums: pd.DataFrame = flights.groupby(["carrier", "hour"]).agg(
        flights=("carrier", "size"),
        departed=("dep_delay", "count"),
        departure_minutes=("dep_delay", "sum"),
        arrived=("arr_delay", "count"),
        arrival_minutes=("arr_delay", "sum"),
    )
    return sums


def late_by_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the sums that the second stream must hold."""
    # A cancelled flight has NaN, which is not late.
    late = flights[flights["arr_delay"] >= LATE]
    subject = "delays." + late["origin"] + "." + late["carrier"]
    lost = late["arr_delay"] - late["dep_delay"]
    sums: pd.DataFrame = (
        late.assign(subject=subject, lost=lost)
        .groupby("subject")
        .agg(
            messages=("subject", "size"),
            flights=("subject", "size"),
            minutes=("arr_delay", "sum"),
            lost=("lost", "sum"),
        )
        # The delays are floats, because cancelled flights have NaN. Spark's sums are bigint.
        .astype("int64")
    )
    return sums


def differences(sums: pd.DataFrame, pandas: pd.DataFrame, words: tuple[str, str]) -> list[str]:
    """Return a sentence for every group whose sums differ.

    ``words`` are `DELAYS` or `LATE_FLIGHTS`. Sums of whole numbers are exact.
    """
    has, text = words
    ours: dict[Any, Any] = sums.to_dict("index")
    theirs: dict[Any, Any] = pandas.to_dict("index")

    def shown(row: Mapping[str, float] | None) -> str:
        return "nothing" if row is None else text.format(**row)

    sentences = []
    # A group that only one of them has is a difference too.
    for key in sorted(ours.keys() | theirs.keys()):
        our_row = ours.get(key)
        their_row = theirs.get(key)
        # The sums are whole numbers, which floats hold exactly: no tolerance is needed.
        if our_row != their_row:
            group = key if isinstance(key, str) else "{} at {}h".format(*key)
            sentences.append(f"{group}: {has} {shown(our_row)}; pandas has {shown(their_row)}.")
    return sentences


def report(
    console: Console,
    load: Load,
    delays: pd.DataFrame,
    batches: Batches,
    names: Mapping[str, str],
) -> None:
    """Print the delays by carrier and part of the day, and the rates.

    ``names`` are airlines by carrier.
    """
    table = _table("Flights from New York in 2013: mean minutes late, also by hour of departure")
    table.add_column("airline", no_wrap=True)
    for heading in ("flights", "departed", "arrived", *(name for name, _, _ in PARTS_OF_DAY)):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    by_flights = _by_carrier(delays).sort_values("flights", ascending=False, kind="stable")
    for key, total in by_flights.iterrows():
        carrier = str(key)
        hours = delays.loc[[carrier]].droplevel(0)
        parts = []
        for _, first, end in PARTS_OF_DAY:
            part = hours[(hours.index >= first) & (hours.index < end)].sum()
            parts.append(_mean(part["departure_minutes"], part["departed"]))
        table.add_row(
            # All columns fit a terminal of 80 columns, because the names have no company form:
            # test_demo.py, test_the_report_fits_a_terminal_of_80_columns_and_40_lines.
            _COMPANY.sub("", names.get(carrier, carrier)),
            f"{total['flights']:,.0f}",
            _mean(total["departure_minutes"], total["departed"]),
            _mean(total["arrival_minutes"], total["arrived"]),
            *parts,
        )
    console.print(table)
    console.print(
        f"JetStream acknowledged {load.messages:,} messages ({load.payload_bytes / 1e6:.0f} MB) "
        f"in {load.seconds:.1f} s: {_rate(load.messages, load.seconds):,.0f} messages/s."
    )
    warm = ""
    if len(batches.rows) > 1:
        warm = f", and {batches.rate(warm=True):,.0f} rows/s after the first one"
    console.print(
        f"Spark read {batches.total_rows:,} rows in {batches}: {batches.rate():,.0f} rows/s{warm}.",
    )
    console.print(f"Watermark on the time of the messages: {batches.watermark}.")


def report_back(console: Console, batches: Batches, stored: Stored) -> None:
    """Print the busiest subjects of the second stream, a message, and the rates."""
    busiest = stored.late.nlargest(3, "messages")
    table = _table(f"Flights {LATE} minutes late or more: stream DELAYS")
    table.add_column(f"subject ({len(busiest)} of {len(stored.late)})", no_wrap=True)
    for heading in ("messages", "minutes late", "lost on the way"):
        table.add_column(heading, justify="right", no_wrap=True)
    for subject, sums in busiest.iterrows():
        messages = sums["messages"]
        minutes = f"{sums['minutes'] / messages:.1f}"
        lost = f"{sums['lost'] / messages:.1f}"
        table.add_row(str(subject), f"{messages:,}", minutes, lost)
    console.print()
    console.print(table)
    # A short load may have no late flight.
    if len(busiest):
        subject = busiest.index[0]
        console.print(
            f"The first one on {subject}:\n{stored.examples[subject]}",
            # The text is a payload: rich would take its brackets for markup.
            highlight=False,
            markup=False,
        )
    messages = stored.messages
    write_rate = _rate(messages, batches.total_seconds)
    read_rate = _rate(messages, stored.seconds)
    console.print(
        f"Spark read {batches.total_rows:,} rows and stored {messages:,}, exactly once, "
        f"in {batches}: {write_rate:,.0f} rows/s. "
        f"It read them back in {stored.seconds:.1f} s: {read_rate:,.0f} rows/s."
    )


def summary(
    load: Load,
    delays: pd.DataFrame,
    batches: Batches,
    back: Batches,
    stored: Stored,
    problems: list[str],
    spark: str,
) -> dict[str, Any]:
    """Return the data for ``--json``.

    Times are seconds; ``back`` are the micro-batches of the second query.
    """
    late = stored.messages
    return {
        "messages": load.messages,
        "payload_bytes": load.payload_bytes,
        "publish_seconds": round(load.seconds, 3),
        "rows": batches.total_rows,
        "batches": len(batches.rows),
        "query_seconds": round(batches.total_seconds, 3),
        "rows_per_second": round(batches.rate()),
        "warm_rows_per_second": round(batches.rate(warm=True)),
        "watermark": batches.watermark,
        "carriers": _by_carrier(delays).to_dict("index"),
        "way_back": {
            "rows_read": back.total_rows,
            "batches": len(back.rows),
            "query_seconds": round(back.total_seconds, 3),
            "rows_stored": late,
            "rows_stored_per_second": round(_rate(late, back.total_seconds)),
            "read_back_seconds": round(stored.seconds, 3),
            "read_back_rows_per_second": round(_rate(late, stored.seconds)),
            "subjects": stored.late.sort_index().to_dict("index"),
        },
        "agrees_with_pandas": not problems,
        "differences": problems,
        "versions": {
            "spark_jetstream": spark_jetstream.__version__,
            "spark": spark,
            "pyspark": pyspark.__version__,
            "python": sys.version.split()[0],
        },
    }


def _rate(count: int, seconds: float) -> float:
    # A query without rows took no seconds.
    return count / max(seconds, 1e-9)


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True)


def _by_carrier(delays: pd.DataFrame) -> pd.DataFrame:
    # Sums can be added up over the hours, and means could not.
    return delays.groupby(level="carrier").sum()


def _mean(minutes: float, flights: float) -> str:
    if not flights:
        # An airline has no departure in some parts of the day.
        return ""
    mean = minutes / flights
    colour = "red"
    if mean < 5:
        colour = "green"
    elif mean < 20:
        colour = "yellow"
    return f"[{colour}]{mean:.1f}[/]"
