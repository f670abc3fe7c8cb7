"""The reference of all options in Markdown, made from the models."""

from __future__ import annotations

from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.sink import SinkOptions
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.options.specs import EXCLUSIVE, NEEDED

_HEAD = """\
# Options

Made by `python -m spark_jetstream.options > docs/options.md`; do not edit.

All options of `format("jetstream")`. [reading.md](reading.md) and [writing.md](writing.md) show them at work, and the
[glossary](glossary.md) explains words of NATS. Names match in any case. An option that does not exist, or has no
meaning where it is used, is an error.
"""

_NOTES = """\
## How values are written

- Durations need a unit: `500ms`, `10s`, `5m`, `2h`, `1d`, `2w`, `1y` (365 days), `10 seconds`, `1m 30s`. A
  capital `M` is an error: it could mean minutes, or months as in the `nats` command. Write months as days (`180d`).
- Sizes are bytes, or have a unit that is a power of 1,024: `65536`, `512k`, `8m`, `8mb`, `8MiB`, `1g`. Upper
  and lower case are the same: `8m` and `8M` both are 8 mebibytes.
- Times are ISO-8601 with a zone, down to nanoseconds (`2026-03-01T12:00:00.123456789Z`,
  `2026-03-01 12:00+01:00`), or epoch milliseconds (`1772366400000`).
- Positions are JSON that names every stream of the query: `{"ORDERS": 1001, "RETURNS": 7}`.
- Lists are separated by commas; a name with a comma in it cannot be given.

## Authentication

Give one kind at a time. User info in a server URL (`nats://user:password@host`, or `nats://token@host`) is a kind
too; the connector percent-decodes it and uses it for all servers. Options whose names end in `Secret`, `password` and
`token` are never shown: not in logs, errors, `repr`, progress or checkpoints. A secret may end up in the wrong option
by mistake. Therefore errors name the option, and the element of a list, and do not repeat the value: only numbers,
times, and what is a valid name, subject or host are repeated. Paths, user names and other texts are shown nowhere,
unless they name a file or a context that exists.

Files may be local on every node, or sent along with `--files` or `spark.addArtifacts`.

## Contexts

A context is a file in which the `nats` command keeps servers and credentials. The driver reads it when it makes the
source or sink; the executors need neither the file nor the environment variables that it refers to. An option beside
`context` wins over the same setting of the context. Any option for authentication replaces all authentication of the
context. `domain` and `apiPrefix` replace each other, and so do `tlsCaFile` and `tlsCaPem`, and the options of the
client's certificate and key. The connector does not use what `nats context select` chose. A context that sets
`socks_proxy`, `nsc` or `windows_*`, or a token beside another kind of authentication, is refused; so are `op://` and
`nsc://` in its secret fields.
"""


def options_markdown() -> str:
    """Return the reference of all options, docs/options.md."""
    lines = [_HEAD.rstrip()]
    places = {"stream": "in a streaming query", "batch": "in a batch"}
    for model in (ConnectionOptions, SourceOptions, SinkOptions):
        title = f"## {model.side.capitalize()}"
        lines += ["", title, "", "| option | meaning | value | default |", "|---|---|---|---|"]
        for spec in model.specs:
            only = f"; only {places[spec.only]}" if spec.only else ""
            default = f"`{spec.default}`" if spec.default else ""
            value = spec.kind.expects.partition(" such as")[0]
            lines.append(f"| `{spec.name}` | {spec.doc}{only} | {value} | {default} |")
    pairs = [f"`{one}` and `{other}`" for one, other in EXCLUSIVE]
    lines += ["", "## Which exclude each other", "", *(f"- {pair}" for pair in pairs)]
    lines += ["- different kinds of authentication: user and password, token, credentials, NKey"]
    lines += ["", "## Which need another one", "", *(f"- `{one}` needs `{other}`" for one, other in NEEDED.items())]
    return "\n".join([*lines, "", _NOTES])
