"""``spark-jetstream check``: health checks for people and scripts, Nagios and Prometheus."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import Run, command, group, keyword
from spark_jetstream.errors import printable

if TYPE_CHECKING:
    from spark_jetstream.monitoring.checks import CheckResult

checks = group(
    "check",
    "Health checks with thresholds. They end with 0 for ok, 1 warning, 2 critical, 3 unknown.",
)

_METADATA = "Thresholds in its metadata count too, such as io.nats.monitor.lag-critical; options win over them."
_CHECKS = {
    "connection --rtt-critical 200ms": "Check how long it takes to log in, to get a PONG, and to get a reply.",
    "stream --stream ORDERS --peer-expect 3": f"Check messages, subjects, origins and servers of a stream. {_METADATA}",
    "consumer --stream ORDERS --consumer billing": f"Check what waits at a consumer, and since when. {_METADATA}",
    "kv --bucket prices --key tea": "Check that a Key-Value bucket exists, its revisions, and that a key has a value.",
    "credential --credential spark.creds --validity-warn 30d": "Check when the JWT of a .creds file expires.",
    "meta --expect 3 --seen-critical 1m": "Check the meta group of a cluster, as a user of the system account.",
}
"""An example of each check, and its help."""
_PARAMETERS = {
    "stream": "Name of the stream.",
    "consumer": "Name of the consumer.",
    "bucket": "Name of the bucket.",
    "key": "A key that must have a value.",
    "credential": "Path of the .creds file.",
    "require_expiry": "A JWT that never expires is critical.",
    "pinned": "A priority group without a pinned client is critical.",
}
"""The parameters of the functions in `monitoring.checks` that are options; the others are thresholds."""
_FORMAT = Option(
    "--format",
    help="What to print. With prometheus the exit code is 0: a metric has the status.",
)
_OUTPUT = (
    keyword("shape", Annotated[Literal["text", "json", "nagios", "prometheus"], _FORMAT], "text"),
    keyword(
        "namespace",
        Annotated[str, Option(help="The prefix of metrics.")],
        "spark_jetstream_check",
    ),
)


def _command(name: str) -> Callable[..., None]:
    """Return the command of a check."""
    from spark_jetstream.monitoring import checks as library

    check = getattr(library, f"check_{name}")
    own = inspect.signature(check, eval_str=True).parameters
    options = [
        keyword(at, Annotated[own[at].annotation, Option(help=help)], own[at].default)
        for at, help in _PARAMETERS.items()
        if at in own
    ]
    for at, help, unit in library.thresholds(name):
        how = Option(help=help, metavar="DURATION" if unit else "NUMBER")
        options.append(keyword(at, Annotated[str | None, how]))

    def call(run: Run, *, shape: str, namespace: str, **given: Any) -> None:
        if run.out.as_json and shape not in ("text", "json"):
            raise BadParameter(f"--json and --format {shape} contradict each other")
        result = check(*([run.admin] if "admin" in own else []), **given)
        run.out.as_json |= shape == "json"
        findings = [finding._asdict() for finding in result.findings]
        run.out.json(
            {
                "check": result.check,
                "item": result.item,
                "status": result.status,
                "findings": findings,
            }
        )
        code = library.STATUSES.index(result.status)
        run.out.text(_rendered(result, code, shape, namespace))
        raise Exit(0 if shape == "prometheus" else code)

    call.__signature__ = inspect.Signature([keyword("run", Run), *options, *_OUTPUT])  # type: ignore[attr-defined]  # as `signed`
    return call


def _rendered(result: CheckResult, code: int, shape: str, namespace: str) -> str:
    """Return metrics for a textfile collector, the line of a plugin of Nagios, or a line for each finding."""
    title = f"{result.check} {result.item}"
    numbers = [(at.name, at.value, at.unit) for at in result.findings if at.value is not None]
    if shape == "prometheus":
        prefix, item = (
            f"{namespace}_{result.check}",
            json.dumps(printable(result.item), ensure_ascii=False),
        )
        metrics = ((f"{prefix}_{name}", value) for name, value, _ in [*numbers, ("status_code", code, "")])
        return "\n".join(f"# TYPE {name} gauge\n{name}{{item={item}}} {value:.10g}" for name, value in metrics)
    if shape == "nagios":
        texts = "; ".join(at.text for at in result.findings if at.status == result.status)
        line = " ".join(f"{result.status} {title}: {texts}".replace("|", "/").split())
        return f"{line} | {' '.join(f'{name}={value:.10g}{unit}' for name, value, unit in numbers)}".rstrip(
            " |",
        )
    return "\n".join(
        [f"{title}: {result.status}", *(f"  {at.status:8}  {at.text}" for at in result.findings)],
    )


for _example, _help in _CHECKS.items():
    _name = _example.partition(" ")[0]
    _late: Any = SimpleNamespace(
        __doc__=_help,
        finished=functools.cache(functools.partial(_command, _name)),
    )
    command(checks, _name, example=f"check {_example}")(_late)
