"""Draws the plots of the benchmarks page from the JSON files of `python -m benchmarks --json`.

`python -m benchmarks.plots build/bench.json docs/images` writes one SVG file for each plot whose
tables are in the file. If several files have a table, the last of them wins.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

#: Okabe and Ito's colours, which readers with any kind of colour vision can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
_STYLE: dict[Any, Any] = {  # its keys have a type of their own since matplotlib 3.11
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "spark-jetstream",
}
_SIZE = (7.0, 4.0)
_CAP = 3  # points, half the width of the ends of an error bar

Tables = dict[str, dict[str, Any]]
"""Tables by their names."""


class Spread(NamedTuple):
    """A figure: median, least and most of its rounds."""

    median: float
    least: float
    most: float


def load(files: Iterable[Path]) -> Tables:
    """Return the tables of all files."""
    return {
        table["name"]: table
        for file in files
        for table in json.loads(file.read_text(encoding="utf-8"))["tables"]
    }


def spreads(table: dict[str, Any], column: str, group: str | None = None) -> list[Spread]:
    """Return the figures of a column, one for each value of the column `group`."""
    summary = table["summary"]
    labels = dict.fromkeys(row[group] for row in summary) if group else [None]
    rows = [[row for row in summary if group is None or row[group] == label] for label in labels]
    return [
        Spread(*(next(row[column] for row in each if row["of"] == of) for of in Spread._fields))
        for each in rows
    ]


def groups(table: dict[str, Any], column: str) -> list[str]:
    """Return the values by which a table is summarized."""
    return list(dict.fromkeys(row[column] for row in table["summary"]))


def bars(
    axes: Axes,
    at: Sequence[float],
    found: Sequence[Spread],
    width: float,
    colour: str,
    label: str | None = None,
    under: Sequence[float] | None = None,
) -> None:
    """Draw medians as bars, and least to most as error bars.

    Bars that stand on others have no error bars.
    """
    medians = [each.median for each in found]
    if under is not None:
        axes.bar(at, medians, width, bottom=under, color=colour, label=label)
        return
    axes.bar(
        at,
        medians,
        width,
        yerr=_errors(found),
        color=colour,
        label=label,
        capsize=_CAP,
        error_kw={"lw": 1},
    )


def _errors(found: Sequence[Spread]) -> list[list[float]]:
    return [
        [each.median - each.least for each in found],
        [each.most - each.median for each in found],
    ]


def _figure(columns: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=_SIZE)
    return figure, list(figure.subplots(1, columns, squeeze=False, gridspec_kw=grid)[0])


def _commas(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _message(label: str) -> tuple[int, str]:
    """Return the bytes of a payload, and the name of a row of table `payloads`."""
    size, headers = (int(part.split()[0].replace(",", "")) for part in label.split(", "))
    shown = f"{size} B" if size < 1000 else f"{size // 1000} kB"
    return size, f"{shown},\n{headers} headers" if headers else shown


def payloads(tables: Tables) -> Figure:
    """Throughput by payload: messages and megabytes a second, source and reference (a)."""
    table = tables["payloads"]
    shapes = [_message(label) for label in groups(table, "message")]
    figure, panels = _figure(2)
    for axes, unit in zip(panels, ("messages a second", "MB a second"), strict=True):
        for offset, column, colour, label in (
            (-0.2, "source", BLUE, "source"),
            (0.2, "(a) bytes", GREY, "(a) bytes, the limit"),
        ):
            scales = [1.0 if unit == "messages a second" else size / 1e6 for size, _ in shapes]
            found = spreads(table, column, "message")
            scaled = [
                Spread(*(value * scale for value in each))
                for each, scale in zip(found, scales, strict=True)
            ]
            bars(axes, [x + offset for x in range(len(shapes))], scaled, 0.38, colour, label)
        axes.set_xticks(range(len(shapes)), [name for _, name in shapes])
        axes.set_xlabel("payload")
        axes.set_ylabel(unit)
        _commas(axes)
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def sizes(tables: Tables) -> Figure:
    """Throughput by the size of a task, one line for each master."""
    figure, [axes] = _figure()
    found = {name: table for name, table in tables.items() if name.startswith("sizes of tasks")}
    for (name, table), colour, marker in zip(found.items(), (BLUE, ORANGE), "os", strict=True):
        columns = sorted(
            (column for column in table["summary"][0] if column[0].isdigit()), key=_number
        )
        values = [spreads(table, column)[0] for column in columns]
        axes.errorbar(
            [_number(column) for column in columns],
            [each.median for each in values],
            yerr=_errors(values),
            color=colour,
            marker=marker,
            capsize=_CAP,
            label=name.removeprefix("sizes of tasks on "),
        )
        axes.set_xscale("log")
        axes.set_xticks([_number(column) for column in columns], columns)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("messages a task (log scale)")
    axes.set_ylabel("rows a second")
    _commas(axes)
    axes.legend(title="master", loc="lower right")
    return figure


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def throughput(tables: Tables) -> Figure:
    """Source and sink, each beside the limit of its server.

    Reference (c) is left out: it does no I/O, and its bar would leave no room for the others.
    """
    source, sink = tables["source"], tables["sink"]
    shown = (
        ("tasks", "source, ten tasks", BLUE),
        ("two tasks", "source, two tasks", BLUE),
        ("(a) bytes", "(a), which only counts bytes", GREY),
    )
    read = [(name, spreads(source, column)[0], colour) for column, name, colour in shown]
    levels = zip(
        groups(sink, "delivery"),
        *(spreads(sink, column, "delivery") for column in ("sink", "single")),
        strict=True,
    )
    written = [
        row
        for level, own, limit in levels
        for row in ((f"sink, {level}", own, BLUE), ("single publishes", limit, GREY))
    ]
    figure = Figure(figsize=(5.5, 4.2))
    panels = list(figure.subplots(2, 1, height_ratios=(len(read), len(written))))
    for axes, rows, what in zip(panels, (read, written), ("read", "written"), strict=True):
        for y, (_, spread, colour) in enumerate(rows):
            axes.barh(
                y,
                spread.median,
                0.7,
                xerr=_errors([spread]),
                color=colour,
                capsize=_CAP,
                error_kw={"lw": 1},
            )
            label = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{spread.median:,.0f}", (spread.most, y), **label)
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel(f"messages a second {what}")
    return figure


_PROCESSES = (
    ("server us", "server", GREEN),
    ("Spark us", "Spark's JVM", ORANGE),
    ("Python us", "Python workers", BLUE),
)


def cpu(tables: Tables) -> Figure:
    """CPU a message by process; the largest payload has a panel of its own."""
    table = tables["payloads"]
    shapes = [_message(label) for label in groups(table, "message")]
    small = [x for x, (size, _) in enumerate(shapes) if size <= 1000]
    large = [x for x in range(len(shapes)) if x not in small]
    figure, panels = _figure(2, width_ratios=(len(small), max(1, len(large))))
    for axes, chosen in zip(panels, (small, large), strict=True):
        under = [0.0] * len(chosen)
        for column, label, colour in _PROCESSES:
            found = [spreads(table, column, "message")[x] for x in chosen]
            bars(axes, range(len(chosen)), found, 0.6, colour, label, under)
            under = [low + each.median for low, each in zip(under, found, strict=True)]
        axes.set_xticks(range(len(chosen)), [shapes[x][1] for x in chosen])
        axes.set_xlim(-0.6, len(chosen) - 0.4)
        axes.set_xlabel("payload")
    panels[0].set_ylabel("microseconds of CPU a message")
    panels[0].legend(reverse=True, loc="upper left")
    return figure


def latency(tables: Tables) -> Figure:
    """Latency by rate: three percentiles of both sources."""
    rows = tables["latency"]["rows"]
    rates = list(dict.fromkeys(row["messages a second"] for row in rows))
    figure, [axes] = _figure()
    for source, colour, name in (
        ("jetstream", BLUE, "jetstream"),
        ("rate", GREY, "rate (built into Spark)"),
    ):
        for percentile, style, marker in (("p99", ":", "^"), ("p95", "--", "s"), ("p50", "-", "o")):
            values = {
                row["messages a second"]: row[percentile] for row in rows if row["source"] == source
            }
            axes.plot(
                [str(rate) for rate in rates],
                [values[rate] for rate in rates],
                color=colour,
                linestyle=style,
                marker=marker,
                label=f"{name}, {percentile}",
            )
    axes.set_xticks(range(len(rates)), [f"{rate:,}" for rate in rates])
    axes.set_xlabel("messages a second")
    axes.set_ylabel("milliseconds from publish to row")
    axes.set_ylim(bottom=0)
    _commas(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def tasks(tables: Tables) -> Figure:
    """The cost of a task: wall time beside the CPU of the three processes."""
    table = tables["tasks over Unix"]
    sources = groups(table, "source")
    figure, [axes] = _figure()
    bars(
        axes,
        [x - 0.2 for x in range(len(sources))],
        spreads(table, "wall", "source"),
        0.38,
        GREY,
        "wall time",
    )
    under = [0.0] * len(sources)
    for column, label, colour in _PROCESSES:
        found = spreads(table, column.removesuffix(" us"), "source")
        bars(
            axes,
            [x + 0.2 for x in range(len(sources))],
            found,
            0.38,
            colour,
            f"CPU: {label}",
            under,
        )
        under = [low + each.median for low, each in zip(under, found, strict=True)]
    axes.set_xticks(range(len(sources)), sources)
    axes.set_xlabel("source")
    axes.set_ylabel("milliseconds a task")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


class Plot(NamedTuple):
    """A plot, and how the names of the tables begin that it needs."""

    draw: Callable[[Tables], Figure]
    needs: tuple[str, ...]


PLOTS = {
    "throughput": Plot(throughput, ("source", "sink")),
    "payloads": Plot(payloads, ("payloads",)),
    "cpu": Plot(cpu, ("payloads",)),
    "sizes": Plot(sizes, ("sizes of tasks",)),
    "tasks": Plot(tasks, ("tasks over Unix",)),
    "latency": Plot(latency, ("latency",)),
}


def draw(tables: Tables, folder: Path) -> None:
    """Write each plot whose tables exist, and name the plots that are left out."""
    for name, plot in PLOTS.items():
        path = folder / f"bench-{name}.svg"
        missing = [need for need in plot.needs if not any(each.startswith(need) for each in tables)]
        if missing:
            print(f"{path.name} is left out: no table {', '.join(missing)}")
            continue
        with mpl.rc_context(_STYLE):
            plot.draw(tables).savefig(path, metadata={"Date": None})
        print(path)


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="what python -m benchmarks --json wrote"
    )
    parser.add_argument("folder", type=Path, metavar="DIRECTORY", help="where the SVG files go")
    arguments = parser.parse_args()
    draw(load(arguments.files), arguments.folder)


if __name__ == "__main__":
    main()
