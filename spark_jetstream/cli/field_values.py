"""The text of an option as the value of a field. The model checks the value."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_origin

from spark_jetstream.admin.descriptions import json_document
from spark_jetstream.admin.models.base import Model
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import shown


def parse_value(annotation: Any, value: str | list[str], option: str) -> Any:
    """Return the value of a text, or of the texts of a repeated option, for a field of this type.

    Raises `OptionError`, which names the option.
    """
    type_ = bare_type(annotation)
    texts = value if isinstance(value, list) else [value]
    if get_origin(type_) is tuple:
        inner = get_args(type_)[0]
        items = []
        for text in texts:
            items += _items(inner, text, option)
        return items
    if get_origin(type_) is dict:
        return _mapping(texts, option)
    part = part_of(annotation)
    return value if part is None else _fields(part, texts[0], option)


def _items(inner: Any, text: str, option: str) -> list[Any]:
    """Return the items of a list that is JSON, or separated by commas."""
    # JSON, for items that hold commas.
    if text.lstrip().startswith("["):
        return list(json_document(text, option))
    part = part_of(inner)
    # The commas of a part stand between its fields.
    if part is not None and (_is_json_object(text) or _beginning_of_field(part).match(text)):
        return [_fields(part, text, option)]
    items = [item.strip() for item in text.split(",")]
    if "" in items:  # such as a shell variable that is not set
        raise OptionError(f"{option}: {shown(text)} has an empty item")
    return [parse_value(inner, item, option) for item in items]


def _mapping(texts: list[str], option: str) -> dict[str, Any]:
    """Return the pairs of several texts."""
    mapping: dict[str, Any] = {}
    for text in texts:
        pairs = _pairs(text, option)
        # Else the last one would win in silence.
        if mapping.keys() & pairs.keys():
            raise OptionError(f"{option}: a name appears twice")
        mapping |= pairs
    return mapping


def _pairs(text: str, option: str) -> dict[str, Any]:
    """Return the pairs of a text: a JSON object, or a single ``name=value``."""
    if _is_json_object(text):
        return dict(json_document(text, option))
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{option}: {shown(text)} is not name=value")
    return {name.strip(): value}


def _fields(part: type[Model], text: str, option: str) -> dict[str, Any]:
    """Parse a part: JSON, ``name=ORDERS,filter_subject=orders.>``, or `Model.shorthand` alone."""
    if _is_json_object(text):
        return dict(json_document(text, option))
    # A value may hold commas and equals signs, so only names of fields count as beginnings.
    beginning = _beginning_of_field(part)
    if beginning.match(text):
        return _named_fields(part, text, list(beginning.finditer(text)), option)
    # --mirror ORDERS is short for --mirror name=ORDERS.
    if part.shorthand and text and "=" not in text:
        return {part.shorthand: text}
    form = f"field=value,... with the fields {', '.join(part.model_fields)}"
    raise OptionError(f"{option} must be JSON, or {form}, not {shown(text)}")


def _named_fields(
    part: type[Model],
    text: str,
    beginnings: list[re.Match[str]],
    option: str,
) -> dict[str, Any]:
    """Parse a text of fields with their names. ``beginnings`` match before each value."""
    fields: dict[str, Any] = {}
    # The value of a field ends where the next field begins.
    ends = [match.start() for match in beginnings[1:]]
    ends.append(len(text))
    for match, end in zip(beginnings, ends, strict=True):
        value = text[match.end() : end].strip()
        name, dot, rest = match[1].partition(".")
        annotation = part.model_fields[name].annotation
        inner = part_of(annotation)
        if dot and inner is not None:
            # The field of a part in the part: ``external.api=...``.
            nested = _fields(inner, f"{rest}={value}", f"{option} {name}")
            # Several fields of the inner part may follow: external.api=...,external.deliver=...
            fields.setdefault(name, {}).update(nested)
        elif name in fields:
            raise OptionError(f"{option}: {name} appears twice")
        else:
            fields[name] = parse_value(annotation, value, f"{option} {name}")
    return fields


def _is_json_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _beginning_of_field(part: type[Model]) -> re.Pattern[str]:
    """Return a pattern of a field's name, at the start or after a comma, up to its ``=``.

    A comma that no name follows belongs to the value before it.
    """
    names = "|".join(part.model_fields)
    return re.compile(rf"(?:^|,)\s*((?:{names})(?:\.\w+)*)\s*=")


def bare_type(annotation: Any) -> Any:
    """Return a type without "or None", and without its annotations."""
    arguments = get_args(annotation)
    if type(None) in arguments:
        # The annotations of an optional type are inside of "or None".
        return bare_type(arguments[0])
    return arguments[0] if get_origin(annotation) is Annotated else annotation


def part_of(annotation: Any) -> type[Model] | None:
    """Return the model of a field, or of its items; None for other types."""
    type_ = bare_type(annotation)
    if get_origin(type_) is tuple:
        type_ = bare_type(get_args(type_)[0])
    if isinstance(type_, type) and issubclass(type_, Model):
        return type_
    return None
