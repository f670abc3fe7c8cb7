"""Arguments and options that commands for Key-Value buckets have, and values from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from spark_jetstream.admin.manager import JetStreamAdmin
from spark_jetstream.commands.arguments import completion


def _keys(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    yield from admin.kv.bucket(given.get("bucket", "")).keys()


complete_bucket = completion(lambda admin, given: admin.kv.names())

BucketName = Annotated[str, typer.Argument(help="Name of the bucket.", autocompletion=complete_bucket)]
Key = Annotated[str, typer.Argument(help="The key.", autocompletion=completion(_keys))]
Filters = Annotated[
    list[str] | None, typer.Argument(help="Only keys that match one of these; * is one token, > is the rest.")
]
Value = Annotated[
    str, typer.Argument(help="The value; - for what standard input holds. Behind --, if it begins with a dash.")
]
OnlyAfter = Annotated[
    int | None,
    typer.Option("--revision", min=1, help="Only if this is the key's latest revision.", show_default=False),
]


def value_bytes(value: str) -> bytes:
    """The value that was given, or all of standard input."""
    return sys.stdin.buffer.read() if value == "-" else value.encode(errors="surrogateescape")
