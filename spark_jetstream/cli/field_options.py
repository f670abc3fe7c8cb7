"""Options made from a configuration: one for each field of a model, with the field's docstring as its help.

This module only parses the text of an option; the model checks the value.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo
from typer import Option

from spark_jetstream.admin.descriptions import json_document
from spark_jetstream.admin.models.base import Model, field_docs, hint
from spark_jetstream.admin.models.buckets import BucketConfig, ObjectBucketConfig
from spark_jetstream.admin.models.consumers import DEFAULT_CONSUMER, ConsumerConfig
from spark_jetstream.admin.models.queries import ConsumerQuery, StreamQuery
from spark_jetstream.admin.models.streams import DEFAULT_STREAM, StreamConfig
from spark_jetstream.cli.aliases import VALUES
from spark_jetstream.cli.app import keyword, one_of
from spark_jetstream.cli.help import ADVANCED, COMMON
from spark_jetstream.cli.output import listed
from spark_jetstream.errors import OptionError
from spark_jetstream.options.names import Name, Subject
from spark_jetstream.options.values import Choice, Kind, Size, Span, When, Whole
from spark_jetstream.protocol.units import Bytes, counted, rough, shown

Command = Callable[..., None]

_CONFIGURATIONS: Mapping[str, tuple[type[Model], Mapping[str, Any]]] = {
    "stream": (StreamConfig, DEFAULT_STREAM),
    "consumer": (ConsumerConfig, DEFAULT_CONSUMER),
    "kv": (BucketConfig, {}),
    "object": (ObjectBucketConfig, {}),
    "streams": (StreamQuery, {}),
    "consumers": (ConsumerQuery, {}),
}
"""What commands configure, or find -> its model, and the defaults of a new one that differ from those of the model."""
_BEFORE = "field_"  # prefix of the parameters: a command has others of its own
_UNSET = f"{_BEFORE}unset"
_POLICIES = {"storage": "TYPE", "compression": "TYPE", "persist_mode": "MODE"}
_WORDS = {
    "num_replicas 0": "as the stream",
    "max_ack_pending -1": "any number",
    "max_ack_pending 0": "1,000",
}
_METAVARS: Mapping[type[Kind], str] = {
    Whole: "NUMBER",
    Span: "DURATION",
    Size: "SIZE",
    When: "TIME",
    Subject: "SUBJECT",
    Name: "NAME",
}


def add_options(
    function: Command,
    kind: str,
    common: Sequence[str],
    *,
    without: Collection[str] = (),
    creates: bool = False,
) -> Command:
    """Return a command with an option for each field of the configuration of a ``kind`` but those in ``without``.

    Help has the fields in ``common`` before the others, in this order, or all among other options.
    If the command ``creates`` something, help has the default of each field; else there is an
    option ``--unset FIELD``, and a field that it names is None.

    The function gets the given fields by name as ``fields``, for `Model.parse`, `Streams.create`
    and the like. The command raises `OptionError` for an option that cannot be parsed.
    """
    model, template = _CONFIGURATIONS[kind]
    defaults = template if creates else None
    options = {name: info for name, info in model.model_fields.items() if name not in without}
    rest = ADVANCED if common else None
    ordered = sorted(
        options,
        key=lambda name: common.index(name) if name in common else len(common),
    )
    docs = field_docs(model)
    added = [
        _field_parameter(
            name,
            options[name],
            docs.get(name, ""),
            ordered,
            COMMON if name in common else rest,
            defaults,
        )
        for name in ordered
    ]
    if not creates:
        flags = one_of(tuple(flag(name).removeprefix("--") for name in ordered))
        how = Option(
            "--unset",
            metavar="FIELD",
            help="Take a field back to its default.",
            autocompletion=flags,
        )
        added.append(keyword(_UNSET, Annotated[list[str] | None, how]))

    @functools.wraps(function)
    def call(run: Any, **given: Any) -> None:
        fields: dict[str, Any] = {}
        for name, info in options.items():
            value = given.pop(f"{_BEFORE}{name}")
            if value not in (None, []):
                value = VALUES[name].get(value, value) if name in VALUES else value
                fields[name] = _value(info.annotation, value, flag(name))
        unset_fields = [name for names in given.pop(_UNSET, None) or () for name in names.split(",")]
        for name in (name.strip().replace("-", "_") for name in unset_fields):
            if name not in options:
                raise OptionError(f"--unset: there is no field {shown(name)}{hint(name, options)}")
            if name in fields:
                raise OptionError(f"{flag(name)} and --unset {name} cannot be given together")
            fields[name] = None
        function(run, **given, fields=fields)

    own = inspect.signature(function, eval_str=True).parameters.values()
    kept = [parameter for parameter in own if parameter.name != "fields"]
    call.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]  # what `command` looks at
    return call


def flag(name: str) -> str:
    """Return the option of a field: ``--max-age``."""
    return f"--{name.replace('_', '-')}"


def field_words(config: Model, name: str) -> object:
    """Return the value of a field for people: what 0 and -1 mean in words, and a size with its unit."""
    value = config.own_metadata if name == "metadata" else getattr(config, name)  # type: ignore[attr-defined]
    info = type(config).model_fields.get(name)
    if info is not None and type(value) is not bool and isinstance(value, int) and value <= 0:
        meanings = (getattr(kind, "unlimited", "") or getattr(kind, "zero", "") for kind in info.metadata)
        return _WORDS.get(f"{name} {value}") or next(filter(None, meanings), value)
    if isinstance(value, Bytes):
        return counted(value, "byte") if "." in rough(value) else rough(value)
    return listed(value)


def _field_parameter(
    name: str,
    info: FieldInfo,
    doc: str,
    names: Collection[str],
    panel: str | None,
    defaults: Mapping[str, Any] | None,
) -> inspect.Parameter:
    """Return the option of a field as a parameter of a function; ``names`` are the fields that are options."""
    flags, type_ = flag(name), _bare(info.annotation)
    if type_ is bool:
        bare = name.removeprefix("no_")
        flags += f"/{flag(bare)}" if bare != name else f"/--no-{name.replace('_', '-')}"
    kinds = [kind for kind in info.metadata if isinstance(kind, Choice)]
    how = Option(
        flags,
        help=_help(info, doc, names) + ("" if defaults is None else _default(name, info, defaults)),
        metavar=None if type_ is bool else _metavar(name, info.annotation, info.metadata),
        rich_help_panel=panel,
        autocompletion=one_of(kinds[0].words) if kinds else None,
    )
    taken: Any = bool if type_ is bool else list[str] if get_origin(type_) in (tuple, dict) else str
    return keyword(f"{_BEFORE}{name}", Annotated[taken | None, how])


def _help(info: FieldInfo, doc: str, names: Collection[str]) -> str:
    """The docstring for the line: other fields are options, durations have units, decision records are left out."""
    words = [word for kind in info.metadata if isinstance(kind, Choice) for word in kind.words]
    text = " ".join(doc.split()).replace(", in nanoseconds", "")
    text = re.sub(r",? ADR-\d+|\s*\(ADR-\d+\)", "", text)
    text = re.sub(
        r"``([^`]*)``",
        lambda match: flag(match[1]) if match[1] in {*names} - {*words} else match[1],
        text,
    )
    if words:
        text = f"{', '.join(words[:-1])} or {words[-1]}; {text[0].lower()}{text[1:]}"
    part = _part(info.annotation)
    return f"{text} Fields: {', '.join(part.model_fields)}." if part else text


def _default(name: str, info: FieldInfo, defaults: Mapping[str, Any]) -> str:
    """Return a default that help does not say in words: one that is no empty value and no limit of 0 or -1."""
    default = defaults.get(name, info.default)
    if isinstance(default, bool):
        return " [default: on]" if default else ""
    shown = default if isinstance(default, str) else isinstance(default, int) and default > 0
    return f" [default: {default}]" if shown else ""


def _metavar(name: str, annotation: Any, metadata: Collection[Any] = ()) -> str:
    type_ = _bare(annotation)
    if get_origin(type_) is tuple:
        inner = _metavar(name, get_args(type_)[0])
        return inner if _part(annotation) else f"{inner},..."
    if get_origin(type_) is dict:
        return "NAME=VALUE"
    if _part(annotation):
        return "FIELD=VALUE,..."
    kinds = [kind for kind in (*metadata, *_metadata(annotation)) if isinstance(kind, Kind)]
    if kinds and isinstance(kinds[0], Choice):
        return _POLICIES.get(name, "POLICY")
    return next((_METAVARS[type(kind)] for kind in kinds if type(kind) in _METAVARS), "TEXT")


def _value(annotation: Any, value: Any, what: str) -> Any:
    """Return the value of a text, or of the texts of a repeated option, for a field of this type."""
    type_ = _bare(annotation)
    texts = value if isinstance(value, list) else [value]
    if get_origin(type_) is tuple:
        return [item for text in texts for item in _items(get_args(type_)[0], text, what)]
    if get_origin(type_) is dict:
        pairs = [pair for text in texts for pair in _pairs(text, what).items()]
        if len(dict(pairs)) != len(pairs):
            raise OptionError(f"{what}: a name appears twice")
        return dict(pairs)
    part = _part(annotation)
    return value if part is None else _fields(part, value, what)


def _items(inner: Any, text: str, what: str) -> list[Any]:
    """Return the items of a list that is JSON, or separated by commas."""
    if text.lstrip().startswith("["):
        return list(json_document(text, what))
    part = _part(inner)
    if part is not None and (text.lstrip().startswith("{") or _key(part).match(text)):
        return [_fields(part, text, what)]
    items = [item.strip() for item in text.split(",")]
    if "" in items:  # such as a shell variable that is not set
        raise OptionError(f"{what}: {shown(text)} has an empty item")
    return [_value(inner, item, what) for item in items]


def _pairs(text: str, what: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return dict(json_document(text, what))
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{what}: {shown(text)} is not name=value")
    return {name.strip(): value}


def _fields(part: type[Model], text: str, what: str) -> dict[str, Any]:
    """Parse the fields of a part: JSON, ``name=ORDERS,filter_subject=orders.>``, or its `Model.shorthand` alone."""
    if text.lstrip().startswith("{"):
        return dict(json_document(text, what))
    key = _key(part)
    if not key.match(text):
        if not part.shorthand or not text or "=" in text:
            form = f"field=value,... with the fields {', '.join(part.model_fields)}"
            raise OptionError(f"{what} must be JSON, or {form}, not {shown(text)}")
        return {part.shorthand: text}
    fields: dict[str, Any] = {}
    matches = list(key.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=True):
        value = text[match.end() : end].strip()
        first, dot, rest = match[1].partition(".")
        annotation = part.model_fields[first].annotation
        inner = _part(annotation)
        if dot and inner is not None:
            fields.setdefault(first, {}).update(
                _fields(inner, f"{rest}={value}", f"{what} {first}"),
            )
        elif first in fields:
            raise OptionError(f"{what}: {first} appears twice")
        else:
            fields[first] = _value(annotation, value, f"{what} {first}")
    return fields


def _key(part: type[Model]) -> re.Pattern[str]:
    """Return a pattern of the beginning of a field: at the start, or after a comma. Other commas belong to values."""
    return re.compile(rf"(?:^|,)\s*((?:{'|'.join(part.model_fields)})(?:\.\w+)*)\s*=")


def _bare(annotation: Any) -> Any:
    """Return a type without "or None", and without its annotations."""
    arguments = get_args(annotation)
    if type(None) in arguments:
        return _bare(arguments[0])
    return arguments[0] if get_origin(annotation) is Annotated else annotation


def _metadata(annotation: Any) -> tuple[Any, ...]:
    """Return the annotations of a type, with or without "or None"."""
    types = (annotation, *get_args(annotation))
    return next((type_.__metadata__ for type_ in types if get_origin(type_) is Annotated), ())


def _part(annotation: Any) -> type[Model] | None:
    """Return the model of a field, or of its items; None for other types."""
    type_ = _bare(annotation)
    if get_origin(type_) is tuple:
        type_ = _bare(get_args(type_)[0])
    return type_ if isinstance(type_, type) and issubclass(type_, Model) else None
