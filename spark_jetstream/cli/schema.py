"""``spark-jetstream schema``: JSON Schemas of the JetStream API and its events. Needs no server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit

from spark_jetstream.cli.app import FAILED, Run, command, group, one_of
from spark_jetstream.errors import OptionError

schemas = group("schema", "JSON Schemas of API and events: list, show, validate.")


def _complete(incomplete: str) -> list[str]:
    from spark_jetstream.admin.schemas import SCHEMAS

    return one_of(SCHEMAS)(incomplete)


@command(schemas, "ls", example="schema ls 'stream_*_request'")
def show_all(
    run: Run,
    pattern: Annotated[str, Argument(help="A part of the type, or a pattern with * and ?.")] = "*",
) -> None:
    """Print the types that have a schema, or those that match, one a line."""
    from spark_jetstream.admin.schemas import schema_types

    run.out.names(schema_types(pattern), f"no type matches {pattern}")


@command(schemas, "show", example="schema show io.nats.jetstream.api.v1.stream_info_response")
def show(
    run: Run,
    type: Annotated[str, Argument(help="The type.", autocompletion=_complete)],
) -> None:
    """Print the JSON Schema of a type."""
    from spark_jetstream.admin.schemas import schema

    # It is JSON with and without --json.
    run.out.raw(json.dumps(schema(type), indent=2).encode() + b"\n")


@command(schemas, "validate", example="schema validate reply.json")
def validate(
    run: Run,
    file: Annotated[str, Argument(help="A JSON file; - for standard input.")],
    type: Annotated[
        str,
        Argument(help="The type; without it, the field type says it.", autocompletion=_complete),
    ] = "",
) -> None:
    """Check a request, a reply or an event.

    Ends with 1, and says what is wrong, if it is not what its type says.
    """
    from spark_jetstream.admin.descriptions import json_document
    from spark_jetstream.admin.schemas import schema_faults

    try:
        octets = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        # Editors of Windows put a byte order mark first, which JSON does not allow.
        text = octets.decode("utf-8-sig")
    except OSError as error:
        raise OptionError(f"{file}: the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{file}: this is not text (UTF-8)") from None
    wrong = schema_faults(json_document(text, file), type)
    run.out.done(f"{file}: {wrong or 'valid'}", valid=not wrong, problem=wrong)
    if wrong:
        raise Exit(FAILED)
