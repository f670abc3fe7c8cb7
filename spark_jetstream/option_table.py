"""Checks of options that need nothing but their names: which exist, which belong to this side and kind of query."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.option_specs import (
    CONNECTION_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    OptionSpec,
    Side,
)
from spark_jetstream.values import revealed, unseen

#: Keys that Spark itself puts beside the user's options, in lower case, each with where it comes from.
SPARK_KEYS: Mapping[str, str] = {
    "path": "`load(path)`, `save(path)`, `start(path)`",
    "paths": "`load([path, path])`",
    "checkpointlocation": "`writeStream.option(...)`, handed to the sink",
    "queryname": "`writeStream.queryName(...)`, handed to the sink",
    "mode": "`write.mode(...)`, where it is given as an option",
    "outputmode": "`writeStream.outputMode(...)`, where it is given as an option",
    # Spark's reserved table properties (TableCatalog) come along when CREATE TABLE ... USING makes a source.
    "provider": "`CREATE TABLE ... USING`",
    "owner": "`CREATE TABLE`",
    "location": "`CREATE TABLE ... LOCATION`",
    "is_managed_location": "`CREATE TABLE`",
    "external": "`CREATE EXTERNAL TABLE`",
    "comment": "`CREATE TABLE ... COMMENT`",
    "collation": "`CREATE TABLE ... DEFAULT COLLATION`",
}
#: CREATE TABLE hands each option over twice: as it is, and behind this prefix (TableCatalog.OPTION_PREFIX).
_SPARK_PREFIX = "option."

_SPECS = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS, *SINK_OPTIONS)
_NAMES = {spec.name.lower(): spec.name for spec in _SPECS}
_BY_FIELD = {spec.field_name: spec for spec in _SPECS}
_BY_SIDE: Mapping[Side, tuple[OptionSpec, ...]] = {"source": SOURCE_OPTIONS, "sink": SINK_OPTIONS}
_COUNTERPARTS = {
    one: other
    for spec in _SPECS
    if spec.counterpart
    for one, other in ((spec.name, spec.counterpart), (spec.counterpart, spec.name))
}


def given_options(mapping: Mapping[str, SecretStr | None], valid: Iterable[OptionSpec]) -> dict[str, SecretStr]:
    """The options in ``mapping`` by their proper names, hidden; Spark's own keys and None are left out.

    Names match in any case. Raises `OptionError` for a name that nobody knows, with the closest of ``valid``,
    and for one that is given twice in different cases.
    """
    given: dict[str, SecretStr] = {}
    for key, value in mapping.items():
        lower = key.lower()
        if value is None or lower in SPARK_KEYS or lower.startswith(_SPARK_PREFIX):
            continue
        name = _NAMES.get(lower)
        if name is None:
            proper = {spec.name.lower(): spec.name for spec in valid}
            closest = proper[difflib.get_close_matches(lower, proper, n=1, cutoff=0.0)[0]]
            raise OptionError(f"there is no option {key}; did you mean {closest}", option=key)
        if name in given:
            raise OptionError(f"option {name} is given twice, in different cases", option=name)
        given[name] = value
    return given


def refuse_elsewhere(given: Container[str], side: Side, *, streaming: bool) -> None:
    """Raise `OptionError` for an option that ``side`` does not have, or not in this kind of query."""
    other: Side = "sink" if side == "source" else "source"
    own = {spec.name for spec in _BY_SIDE[side]}
    for name in (spec.name for spec in _BY_SIDE[other]):
        if name in given and name not in own:
            _refuse_other(name, other, side)
    here, elsewhere = ("stream", "batch") if streaming else ("batch", "stream")
    doing = "reading" if side == "source" else "writing"
    for spec in _BY_SIDE[side]:
        if spec.name in given and spec.only == elsewhere:
            raise OptionError(
                f"option {spec.name} has no meaning when {doing} a {here}: {spec.instead}", option=spec.name
            )


def _refuse_other(name: str, owner: Side, side: Side) -> None:
    counterpart = _COUNTERPARTS.get(name)
    hint = f"; did you mean {counterpart}" if counterpart else ""
    raise OptionError(f"option {name} belongs to the {owner} and has no meaning for a {side}{hint}", option=name)


@unseen
def parse_field(field_name: str, value: object) -> object:
    """The Python value of the model field ``field_name``; None and values of other fields are passed on."""
    spec = _BY_FIELD.get(field_name)
    return value if spec is None or value is None else spec.kind.parse(spec.name, revealed(value))


def display_field(field_name: str, value: object) -> object:
    """The value of a model field as a ``repr`` shows it: without what may be a secret."""
    spec = _BY_FIELD.get(field_name)
    return value if spec is None or value is None else spec.display(value)


def option_name(field_name: str) -> str:
    """The option behind a model field: ``fetch_batch`` -> ``fetchBatch``."""
    spec = _BY_FIELD.get(field_name)
    return field_name if spec is None else spec.name
