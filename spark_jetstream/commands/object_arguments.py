"""Arguments and options that commands for Object Store buckets have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from spark_jetstream.admin.manager import JetStreamAdmin
from spark_jetstream.commands.arguments import completion


def _names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    yield from (each.name for each in admin.objects.bucket(given.get("bucket", "")).list())


complete_bucket = completion(lambda admin, given: admin.objects.names())
_complete_name = completion(_names)

BucketName = Annotated[str, typer.Argument(help="Name of the bucket.", autocompletion=complete_bucket)]
ObjectName = Annotated[str, typer.Argument(help="Name of the object.", autocompletion=_complete_name)]
MaybeName = Annotated[str | None, typer.Argument(help="Name of an object.", autocompletion=_complete_name)]
Deleted = Annotated[bool, typer.Option("--deleted", help="Also what is left of deleted objects.", show_default=False)]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header of the object.", show_default=False),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="Metadata of the object.", show_default=False),
]
Description = Annotated[str | None, typer.Option(help="For people.", show_default=False)]


def headers_of(given: list[str] | None) -> dict[str, list[str]] | None:
    """The headers that options name, each with all of its values; None without any, empty for ``''`` alone."""
    if not given:
        return None
    found: dict[str, list[str]] = {}
    for each in filter(None, given):
        name, colon, value = each.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{each} is no 'Name: value'", param_hint="--header")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def metadata_of(given: list[str] | None) -> dict[str, str] | None:
    """The metadata that options name; None without any, empty for ``''`` alone."""
    if not given:
        return None
    found = {}
    for each in filter(None, given):
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{each} is no name=value", param_hint="--metadata")
        found[name] = value
    return found
