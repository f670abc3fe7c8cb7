"""``spark-jetstream stream``: streams and consumers as files describe them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from spark_jetstream.admin.plan import Action, Plan
from spark_jetstream.admin.plan_files import yaml_text
from spark_jetstream.commands.arguments import Force, StreamName
from spark_jetstream.commands.framework import FAILED, Run, alone, command

applying = alone()

_STYLES: dict[Action, str | None] = {"create": "green", "update": "yellow", "unchanged": None, "refused": "red"}


@command(applying, "apply", example="stream apply streams.yaml --check")
def apply(
    run: Run,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Descriptions, as JSON or YAML.")],
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; end with 1 where something differs.", show_default=False)
    ] = False,
    given_only: Annotated[
        bool,
        typer.Option(
            "--given-only",
            help="Leave fields alone that the files do not set; else they get their defaults.",
            show_default=False,
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Have streams and their consumers as files describe them: shows the plan, asks, and carries it out.

    A description is the configuration of a stream, with a list consumers beside its fields; "stream export" writes one.
    What "stream info --json" prints, here or by the nats command, is one too.
    Run again, there is nothing to change. What no file names is left alone. Where a single field cannot be changed
    nothing is, and it ends with 1.
    """
    plan = run.admin.plan(*files, given_only=given_only)
    for step in plan.steps:
        for line in step.lines():
            run.out.text(line, style=_STYLES[step.action])
    if plan.refused:
        _report(run, plan, "nothing was changed: not all of this is possible", applied=False)
        raise typer.Exit(FAILED)
    if not plan.changes:
        _report(run, plan, "nothing to change", applied=False)
    elif check:
        _report(run, plan, f"{_counted(plan)} would be changed", applied=False)
        raise typer.Exit(FAILED)
    else:
        run.out.confirm("Change this?", force=force)
        run.admin.apply(plan)
        _report(run, plan, f"{_counted(plan)} changed", applied=True)


@command(applying, "export", example="stream export ORDERS --yaml > orders.yaml")
def export(
    run: Run,
    stream: StreamName,
    yaml: Annotated[bool, typer.Option("--yaml", help="YAML instead of JSON.", show_default=False)] = False,
) -> None:
    """Describe a stream and its durable consumers in the form that "stream apply" reads.

    JSON has every field as the server has it, with integers of nanoseconds and bytes: "nats stream add --config" reads
    it too. YAML has what is not the default, with durations and sizes as text.
    """
    if yaml and run.out.as_json:
        raise typer.BadParameter("--yaml and --json contradict each other")
    found = run.admin.describe(stream, readable=yaml)
    said = yaml_text(found) if yaml else json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    run.out.raw(said.encode())


def _report(run: Run, plan: Plan, said: str, *, applied: bool) -> None:
    run.out.done(said, **plan.to_json(), applied=applied)


def _counted(plan: Plan) -> str:
    changed = [step for step in plan.steps if step.action != "unchanged"]
    consumers = sum(bool(step.consumer) for step in changed)
    counts = ((len(changed) - consumers, "stream"), (consumers, "consumer"))
    return " and ".join(f"{count:,} {what}{'s' if count > 1 else ''}" for count, what in counts if count)
