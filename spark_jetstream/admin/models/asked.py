"""Configurations that users ask for: from names, models, mappings and single fields. Pure.

Errors are one line, and begin with ``what``, such as ``stream ORDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from spark_jetstream.admin.models.base import Model, complaint
from spark_jetstream.admin.models.changes import Difference, differences
from spark_jetstream.admin.models.rules import FOR_NEW
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import shown

M = TypeVar("M", bound=Model)


def named(
    kind: type[Model], name: object, config: object, fields: Mapping[str, Any], *names: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return configuration and fields, with the name, of ``create(name, config, **fields)``.

    ``names`` are the fields that the name sets. Raises `OptionError` for two configurations, or two
    names.
    """
    if not isinstance(name, str):
        if config is not None:
            raise OptionError(f"the first of two arguments must be a name, not {_shown(name)}")
        if name is not None and not isinstance(name, (Model, Mapping)):
            raise OptionError(
                f"a name, a {kind.__name__} or a mapping is needed, not {_shown(name)}",
            )
        return name, fields
    if fields.get("name") not in (None, name):
        raise OptionError(f"two names are given: {shown(name)}, and name={shown(fields['name'])}")
    return config, {**dict.fromkeys(names, name), **fields}


def parse_user(
    kind: type[M],
    config: object,
    fields: Mapping[str, Any],
    what: str,
    newer: Callable[[], bool] | None = None,
) -> M:
    """Return the configuration ``config``, with ``fields`` in place of its own.

    Raises `OptionError`.

    ``newer`` as for `Model.parse`.
    """
    given = _configuration(kind, config, what)
    if isinstance(given, Mapping):
        return kind.parse({**given, **fields}, what, newer)
    return changed(given, fields, what) if fields else given


def _configuration(kind: type[M], given: object, what: str) -> M | Mapping[str, Any]:
    """Return the configuration in what a user gives: itself, or that of an info.

    Raises `OptionError`.
    """
    if isinstance(given, Model):
        given = getattr(given, "config", given)
    elif isinstance(given, Mapping):
        given = own_configuration(given)
    if given is None or isinstance(given, (kind, Mapping)):
        return given or {}
    raise OptionError(f"{what}: a {kind.__name__} or a mapping is needed, not {_shown(given)}")


def own_configuration(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration in a reply of STREAM.INFO or CONSUMER.INFO; others as they are."""
    config = given.get("config")
    return config if isinstance(config, Mapping) else given


def _shown(given: object) -> str:
    """Return a value of the wrong type as text."""
    if isinstance(given, (str, int, float)):
        return shown(given)
    return f"a {type(given).__name__}"


def changed(config: M, fields: Mapping[str, Any], what: str) -> M:
    """Return a copy with these fields, each replaced as a whole; None means its default.

    Raises `OptionError`.
    """
    # For a field that a new one gets from this package, that value is the default.
    ours = FOR_NEW.get(type(config), {})
    reset = {name: value for name, value in ours.items() if fields.get(name, value) is None}
    try:
        return config.changed(**{**fields, **reset})
    except ValidationError as error:
        raise OptionError(f"{what}: {complaint(error)}") from None


def planned(
    actual: M,
    changes: object,
    fields: Mapping[str, Any],
    what: str,
) -> tuple[M, list[Difference]]:
    """Return the configuration that an update leads to, and what it changes.

    A model in ``changes`` is the whole configuration; a mapping and ``fields`` are the fields to
    change.
    """
    given = _configuration(type(actual), changes, what)
    base = actual
    if isinstance(given, Mapping):
        fields = {**given, **fields}
    else:
        base = given
    target = changed(base, fields, what)
    return target, differences(target, actual)
