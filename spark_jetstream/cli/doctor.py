"""``spark-jetstream doctor``: what stands in the way of a job, and what to do about it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from spark_jetstream.cli.app import FAILED, NOT_REACHED, Run, alone, command
from spark_jetstream.cli.arguments import complete_consumer, complete_stream
from spark_jetstream.doctor.examination import Examination, Section
from spark_jetstream.doctor.findings import Finding, healthy
from spark_jetstream.doctor.purposes import FOR, Chosen

doctor = alone()

_STYLES = {"ok": None, "warning": "yellow", "failed": "bold red", "unknown": "cyan"}
_MARKS = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "unknown": "?"}
_WIDTH = max(map(len, _MARKS.values()))


def _complete_purpose(incomplete: str) -> list[str]:
    return [purpose for purpose in FOR if purpose.startswith(incomplete)]


@command(doctor, "doctor", example="doctor --stream ORDERS --for read --for durable --durable spark")
def examine(
    run: Run,
    stream: Annotated[
        str | None, typer.Option(help="A stream to be read or written.", autocompletion=complete_stream)
    ] = None,
    bucket: Annotated[str | None, typer.Option(help="A Key-Value bucket, instead of a stream.")] = None,
    object_bucket: Annotated[str | None, typer.Option(help="An Object Store bucket, instead of a stream.")] = None,
    purposes: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help=f"What is to be done with it, more than once: {', '.join(FOR)}. Default: read.",
            autocompletion=_complete_purpose,
        ),
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Where rows are to go; implies --for write.")] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="Option subjects of the read, more than once.")
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(help="Option durable; implies --for durable.", autocompletion=complete_consumer),
    ] = None,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Also start a local Spark and read a row, which takes a while; or look for no Spark at all.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings, and what is unknown, count as failed.")] = False,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Show every permission, also those that are granted.")
    ] = False,
) -> None:
    """Find out why a job does not work: Java, Python, versions, servers, TLS, login, limits, the stream, permissions.

    Nothing is changed on the server. Ends with 0 if nothing failed, 1 if something did, and 3 if no server could be
    reached, or none let us in.
    """
    chosen = Chosen.of(stream, bucket, object_bucket, purposes or (), subject, filters or (), durable)
    examination = Examination(run.given, os.environ, chosen, spark=spark)
    found: list[tuple[str, Finding]] = []
    for section in examination.sections():
        run.out.text(section.title, "bold underline")
        found += [(section.title, finding) for finding in _shown(run, section, every)]
    run.out.text(_verdict([finding for _, finding in found]), "bold")
    if run.out.as_json:
        run.out.table(found, {}, data=lambda each: {"section": each[0], **dataclasses.asdict(each[1])}, empty="")
    if not examination.reached:
        raise typer.Exit(NOT_REACHED)
    if not healthy((finding for _, finding in found), strict=strict):
        raise typer.Exit(FAILED)


def _shown(run: Run, section: Section, every: bool) -> Iterator[Finding]:
    """The findings of a section, each shown as soon as it is there. Permissions that are granted are only counted."""
    granted = 0
    for finding in section.findings:
        yield finding
        if finding.status == "ok" and section.brief and not every:
            granted += 1
            continue
        run.out.text(f"{_MARKS[finding.status]:>{_WIDTH}}  {finding.check}: {finding.said}", _STYLES[finding.status])
        if finding.what_to_do:
            run.out.text(f"{'':{_WIDTH}}  -> {finding.what_to_do}")
    if granted:
        run.out.text(f"{'ok':>{_WIDTH}}  {granted} of them are granted")


def _verdict(findings: list[Finding]) -> str:
    counted = {status: sum(finding.status == status for finding in findings) for status in _MARKS}
    words = [f"{counted['failed']} failed", f"{counted['warning']} to be looked at", f"{counted['unknown']} not known"]
    return f"{', '.join(words)}, {counted['ok']} as it should be."
