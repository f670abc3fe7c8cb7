"""``spark-jetstream doctor``: runs the checks and prints advice."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Exit, Option

from spark_jetstream.cli.app import FAILED, NOT_REACHED, Run, command, one_of
from spark_jetstream.cli.arguments import consumer_option, stream_option
from spark_jetstream.protocol.units import counted

if TYPE_CHECKING:
    from spark_jetstream.doctor.findings import Finding

PURPOSES = (
    "read",
    "direct",
    "durable",
    "share",
    "write",
    "exactly-once",
    "ensure",
    "administer",
    "backup",
    "restore",
)
"""`doctor.permissions.PURPOSES`, without its imports."""

doctor = typer.Typer()

_NEEDED = {"nats": "nats-py", "numpy": "numpy", "pyarrow": "pyarrow", "pydantic": "pydantic"}
"""Packages that the checks import -> their names for pip."""

_STYLES = {"ok": None, "warning": "yellow", "failed": "bold red", "unknown": "cyan"}
_MARKS = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "unknown": "?"}
_WIDTH = max(map(len, _MARKS.values()))


@command(
    doctor,
    "doctor",
    example="doctor --stream ORDERS --for read --for durable --durable spark",
)
def examine(
    run: Run,
    stream: Annotated[str | None, stream_option(help="A stream to be read or written.")] = None,
    bucket: Annotated[str | None, Option(help="A Key-Value bucket, instead of a stream.")] = None,
    object_bucket: Annotated[
        str | None,
        Option(help="An Object Store bucket, instead of a stream."),
    ] = None,
    purposes: Annotated[
        list[str] | None,
        Option(
            "--for",
            help=f"A purpose to check for, more than once: {', '.join(PURPOSES)}. Default: read.",
            autocompletion=one_of(PURPOSES),
        ),
    ] = None,
    subject: Annotated[
        str | None,
        Option(help="Where rows are to go; implies --for write."),
    ] = None,
    filters: Annotated[
        list[str] | None, Option("--filter", help="Option subjects of the read, more than once.")
    ] = None,
    durable: Annotated[
        str | None,
        consumer_option(help="Option durable; implies --for durable."),
    ] = None,
    starting_consumer: Annotated[
        str | None,
        consumer_option(help="Option startingConsumer; implies --for read."),
    ] = None,
    share: Annotated[
        str | None,
        consumer_option(help="Option share; implies --for share."),
    ] = None,
    spark: Annotated[
        bool | None,
        Option(
            help="Also start a local Spark and read a row, which takes a while; or look for no "
            "Spark at all.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        Option("--strict", help="Warnings, and what is unknown, count as failed."),
    ] = False,
    every: Annotated[
        bool,
        Option("--all", "-a", help="Show every permission, also those that are granted."),
    ] = False,
) -> None:
    """Find out why a job does not work: Java, Python, versions, servers, TLS, login, limits, the stream, permissions.

    Nothing is changed on the server. Ends with 0 if nothing failed, 1 if something did, and 3 if no
    server could be reached, or none let us in.
    """
    # Before the imports below, which need these packages.
    missing = _missing_packages()
    if missing:
        _conclude(run, _print_section(run, "Packages", missing))
        raise Exit(FAILED)
    from spark_jetstream.doctor.checks import Examination
    from spark_jetstream.doctor.permissions import Job

    job = Job(
        tuple(purposes or ()),
        stream,
        bucket,
        object_bucket,
        subject,
        tuple(filters or ()),
        durable,
        starting_consumer,
        share,
    )
    examination = Examination(run.given, os.environ, job.completed(), spark=spark)
    findings: list[tuple[str, Finding]] = []
    for section in examination.sections():
        brief = section.brief and not every
        findings += _print_section(run, section.title, section.findings, brief=brief)
    statuses = _conclude(run, findings)
    if not examination.reached:
        raise Exit(NOT_REACHED)
    failed = statuses["failed"]
    if strict:
        failed += statuses["warning"] + statuses["unknown"]
    if failed:
        raise Exit(FAILED)


def _missing_packages() -> list[Finding]:
    """Return a finding for each package without which no other check can run."""
    from spark_jetstream.doctor.findings import failed

    findings = []
    for module, package in _NEEDED.items():
        # The search imports nothing. The checks find a package that is installed but cannot be
        # imported.
        if find_spec(module) is None:
            text = "is not installed in this Python, and the other checks need it"
            findings.append(failed(package, text, f"pip install {package}"))
    return findings


def _conclude(run: Run, findings: list[tuple[str, Finding]]) -> Counter[str]:
    """Print the number of findings of each status, and all of them as JSON; return the numbers."""
    statuses = Counter[str](finding.status for _, finding in findings)
    bad = f"{statuses['failed']} failed, {counted(statuses['warning'], 'warning')}"
    run.out.text(f"{bad}, {statuses['unknown']} unknown, {statuses['ok']} ok", "bold")
    run.out.json([{"section": title, **dataclasses.asdict(finding)} for title, finding in findings])
    return statuses


def _print_section(
    run: Run,
    title: str,
    findings: Iterable[Finding],
    *,
    brief: bool = False,
) -> list[tuple[str, Finding]]:
    """Print each finding of a section at once, and return them with the title.

    With ``brief``, granted permissions are only counted.
    """
    run.out.text(title, "bold underline")
    granted = 0
    found = []
    for finding in findings:
        found.append((title, finding))
        if finding.status == "ok" and brief:
            granted += 1
            continue
        mark = f"{_MARKS[finding.status]:>{_WIDTH}}"
        run.out.text(f"{mark}  {finding.check}: {finding.said}", _STYLES[finding.status])
        if finding.what_to_do:
            run.out.text(f"{'':{_WIDTH}}  -> {finding.what_to_do}")
    if granted:
        run.out.text(f"{'ok':>{_WIDTH}}  {granted} of them are granted")
    return found
