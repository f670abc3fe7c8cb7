"""``spark-jetstream check``: health checks for people and scripts, Nagios and Prometheus."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import BadParameter, Exit, Option

from spark_jetstream.cli.app import Run, command, group, keyword
from spark_jetstream.errors import printable

if TYPE_CHECKING:
    from spark_jetstream.monitoring.checks import CheckFinding, CheckResult

checks = group(
    "check",
    "Health checks with thresholds. They end with 0 for ok, 1 warning, 2 critical, 3 unknown.",
)

_METADATA = (
    "Thresholds in its metadata count too, such as io.nats.monitor.lag-critical; options win over "
    "them."
)
_CHECKS = {
    "connection": (
        "--rtt-critical 200ms",
        "Check how long it takes to log in, to get a PONG, and to get a reply.",
    ),
    "stream": (
        "--stream ORDERS --peer-expect 3",
        f"Check messages, subjects, origins and servers of a stream. {_METADATA}",
    ),
    "consumer": (
        "--stream ORDERS --consumer billing",
        f"Check what waits at a consumer, and since when. {_METADATA}",
    ),
    "kv": (
        "--bucket prices --key tea",
        "Check that a Key-Value bucket exists, its revisions, and that a key has a value.",
    ),
    "credential": (
        "--credential spark.creds --validity-warn 30d",
        "Check when the JWT of a .creds file expires.",
    ),
    "meta": (
        "--expect 3 --seen-critical 1m",
        "Check the meta group of a cluster, as a user of the system account.",
    ),
}
"""The options of an example, and the help of each check."""
_PARAMETERS = {
    "stream": "Name of the stream.",
    "consumer": "Name of the consumer.",
    "bucket": "Name of the bucket.",
    "key": "A key that must have a value.",
    "credential": "Path of the .creds file.",
    "require_expiry": "A JWT that never expires is critical.",
    "pinned": "A priority group without a pinned client is critical.",
}
"""The parameters of the checks that are options; the others are thresholds."""
_FORMAT = Option(
    "--format",
    help="The format of the output. With prometheus the exit code is 0: a metric has the status.",
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

    def call(run: Run, *, shape: str, namespace: str, **given: Any) -> None:
        if run.out.as_json and shape not in ("text", "json"):
            raise BadParameter(f"--json and --format {shape} contradict each other")
        # Looking it up would connect.
        admin = [run.admin] if "admin" in own else []  # a credential is checked without a server
        result = check(*admin, **given)
        # --format json and --json are the same.
        if shape == "json":
            run.out.as_json = True
        run.out.json(_data(result))
        # The exit codes of plugins of Nagios: 0 ok, 1 warning, 2 critical, 3 unknown.
        code = library.STATUSES.index(result.status)
        run.out.text(_rendered(result, code, shape, namespace))
        # The metric has the status.
        raise Exit(0 if shape == "prometheus" else code)

    parameters = [keyword("run", Run), *_options(name, own), *_OUTPUT]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as `signed`
    return call


def _options(check: str, own: Mapping[str, inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield the options of a check: parameters of its function, and thresholds."""
    from spark_jetstream.monitoring import checks as library

    for name, help in _PARAMETERS.items():
        if name in own:
            type_: Any = own[name].annotation
            yield keyword(name, Annotated[type_, Option(help=help)], own[name].default)
    for name, help, unit in library.thresholds(check):
        how = Option(help=help, metavar="DURATION" if unit else "NUMBER")
        # A text: `CheckResult` parses thresholds of the line and of metadata alike.
        yield keyword(name, Annotated[str | None, how])


def _data(result: CheckResult) -> dict[str, Any]:
    return {
        "check": result.check,
        "item": result.item,
        "status": result.status,
        "findings": [finding._asdict() for finding in result.findings],
    }


def _rendered(result: CheckResult, code: int, shape: str, namespace: str) -> str:
    """Return the text of a result in a shape. ``code`` is the exit code of its status."""
    if shape == "prometheus":
        return _metrics(result, code, f"{namespace}_{result.check}")
    if shape == "nagios":
        return _plugin_line(result)
    lines = [f"{result.check} {result.item}: {result.status}"]
    for finding in result.findings:
        lines.append(f"  {finding.status:8}  {finding.text}")
    return "\n".join(lines)


def _metrics(result: CheckResult, code: int, prefix: str) -> str:
    """Return the numbers of a result as metrics for a textfile collector."""
    # The text format of Prometheus escapes quotes and backslashes as JSON does.
    item = json.dumps(printable(result.item), ensure_ascii=False)
    values = {finding.name: finding.value for finding in _numbers(result)}
    values["status_code"] = code
    lines = []
    for name, value in values.items():
        metric = f"{prefix}_{name}"
        lines += [f"# TYPE {metric} gauge", f"{metric}{{item={item}}} {value:.10g}"]
    return "\n".join(lines)


def _plugin_line(result: CheckResult) -> str:
    """Return the line of a plugin of Nagios: the worst findings, and the numbers after a bar."""
    worst = [finding.text for finding in result.findings if finding.status == result.status]
    text = f"{result.status} {result.check} {result.item}: {'; '.join(worst)}"
    # Nagios reads the first line alone, and takes the text after a bar for numbers.
    line = " ".join(text.replace("|", "/").split())
    numbers = [f"{at.name}={at.value:.10g}{at.unit}" for at in _numbers(result)]
    return f"{line} | {' '.join(numbers)}".rstrip(" |")


def _numbers(result: CheckResult) -> list[CheckFinding]:
    """Return the findings that have a number."""
    return [finding for finding in result.findings if finding.value is not None]


for _name, (_example, _help) in _CHECKS.items():
    # The library has pydantic models and the client, which help for other commands must not import.
    _late: Any = SimpleNamespace(
        __doc__=_help,
        finished=functools.cache(functools.partial(_command, _name)),
    )
    command(checks, _name, example=f"check {_name} {_example}")(_late)
