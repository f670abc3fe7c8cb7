"""Options made from a configuration: one for each field, with the field's docstring as its help."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo
from typer import Option

from spark_jetstream.admin.models.base import Model, field_docs, hint
from spark_jetstream.admin.models.buckets import BucketConfig, ObjectBucketConfig
from spark_jetstream.admin.models.consumers import DEFAULT_CONSUMER, ConsumerConfig
from spark_jetstream.admin.models.queries import ConsumerQuery, StreamQuery
from spark_jetstream.admin.models.streams import DEFAULT_STREAM, StreamConfig
from spark_jetstream.cli.aliases import VALUES
from spark_jetstream.cli.app import keyword, one_of
from spark_jetstream.cli.field_values import bare_type, parse_value, part_of
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
"""By kind: the model of its fields, and the defaults of a new one that the model lacks."""
# A field may be called as a parameter of the command, such as `name`.
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
    """Return a command with an option for each field of a ``kind``, but those in ``without``.

    Help has the fields in ``common`` before the others, in this order, or all among other options.
    If the command ``creates`` something, help has the default of each field; else there is an
    option ``--unset FIELD``, and a field that it names is None.

    The function gets the given fields by name as ``fields``, for `Model.parse`, `Streams.create`
    and the like. The command raises `OptionError` for an option that cannot be parsed.
    """
    model, template = _CONFIGURATIONS[kind]
    options = {name: info for name, info in model.model_fields.items() if name not in without}
    ordered = _ordered(options, common)
    docs = field_docs(model)

    def parameter_of(name: str) -> inspect.Parameter:
        info = options[name]
        help = _help(info, docs.get(name, ""), ordered)
        if creates:
            # A command that changes an asset keeps the fields that are not named, so a default
            # would be wrong there.
            help += _default(template.get(name, info.default))
        return _field_parameter(name, info, help, _panel(name, common))

    added = [parameter_of(name) for name in ordered]
    if not creates:
        added.append(_unset_parameter(ordered))

    @functools.wraps(function)
    def call(run: Any, **given: Any) -> None:
        # A command that creates has no such option.
        unset = given.pop(_UNSET, None) or ()
        fields = _given_fields(options, given)
        for name in _named_fields(unset):
            if name not in options:
                raise OptionError(f"--unset: there is no field {shown(name)}{hint(name, options)}")
            # The order of options on a line does not say which of the two counts.
            if name in fields:
                raise OptionError(f"{flag(name)} and --unset {name} cannot be given together")
            # To `Model.parse` None is the default of the field.
            fields[name] = None
        function(run, **given, fields=fields)

    own = inspect.signature(function, eval_str=True).parameters.values()
    # The function gets `fields` from here, and not from the line.
    kept = [parameter for parameter in own if parameter.name != "fields"]
    signature = inspect.Signature([*kept, *added])
    call.__signature__ = signature  # type: ignore[attr-defined]  # `command` reads it
    return call


def _ordered(names: Collection[str], common: Sequence[str]) -> list[str]:
    """Return the names with the common ones first, in their own order."""
    first = [name for name in common if name in names]
    return [*first, *(name for name in names if name not in common)]


def _given_fields(options: Mapping[str, FieldInfo], given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of fields out of ``given``, and return the values that are set."""
    fields: dict[str, Any] = {}
    for name, info in options.items():
        value = given.pop(f"{_BEFORE}{name}")
        # typer has None for an option that is not on the line, and an empty list for one that may
        # be repeated.
        if value in (None, []):
            continue
        if name in VALUES:
            # The nats tool abbreviates some values.
            value = VALUES[name].get(value, value)
        fields[name] = parse_value(info.annotation, value, flag(name))
    return fields


def _named_fields(given: Iterable[str]) -> Iterator[str]:
    """Yield the names of fields in options, which have them as flags, or separated by commas."""
    for names in given:
        for name in names.split(","):
            # Both max-age and max_age are accepted: the first is the flag, the second the field.
            yield name.strip().replace("-", "_")


def flag(name: str) -> str:
    """Return the option of a field: ``--max-age``."""
    return f"--{name.replace('_', '-')}"


def field_words(config: Model, name: str) -> object:
    """Return the value of a field for people: the meaning of 0 and -1 in words, units for sizes."""
    if name == "metadata":
        return listed(config.own_metadata)  # type: ignore[attr-defined]  # without the server's
    value = getattr(config, name)
    info = type(config).model_fields.get(name)
    # To Python True is the number 1.
    number = isinstance(value, int) and not isinstance(value, bool)
    if info is not None and number and value <= 0:
        return _WORDS.get(f"{name} {value}") or _meaning(info) or value
    if isinstance(value, Bytes):
        # A size that is no whole number of a unit is exact in bytes.
        return counted(value, "byte") if "." in rough(value) else rough(value)
    return listed(value)


def _meaning(info: FieldInfo) -> str:
    """Return the meaning of 0 or -1 in a field; "" if it has no meaning of its own."""
    for kind in info.metadata:
        meaning: str = getattr(kind, "unlimited", "") or getattr(kind, "zero", "")
        if meaning:
            return meaning
    return ""


def _panel(name: str, common: Sequence[str]) -> str | None:
    """Return the panel of a field in help; None for the panel of other options."""
    if not common:
        return None
    return COMMON if name in common else ADVANCED


def _unset_parameter(names: Iterable[str]) -> inspect.Parameter:
    """Return the option ``--unset``, which completes the names of fields."""
    flags = [flag(name).removeprefix("--") for name in names]
    how = Option(
        "--unset",
        metavar="FIELD",
        help="Take a field back to its default.",
        autocompletion=one_of(flags),
    )
    return keyword(_UNSET, Annotated[list[str] | None, how])


def _field_parameter(
    name: str,
    info: FieldInfo,
    help: str,
    panel: str | None,
) -> inspect.Parameter:
    """Return the option of a field as a parameter of a function."""
    parameter = f"{_BEFORE}{name}"
    type_ = bare_type(info.annotation)
    if type_ is bool:
        # Without a default: None says that neither form is on the line.
        how = Option(_flags(name), help=help, rich_help_panel=panel)
        return keyword(parameter, Annotated[bool | None, how])
    words = _words(info)
    how = Option(
        flag(name),
        help=help,
        metavar=_metavar(name, info.annotation, info.metadata),
        rich_help_panel=panel,
        autocompletion=one_of(words) if words else None,
    )
    if get_origin(type_) in (tuple, dict):
        return keyword(parameter, Annotated[list[str] | None, how])  # may be repeated
    # A text, since a duration or a size is parsed by its field.
    return keyword(parameter, Annotated[str | None, how])


def _flags(name: str) -> str:
    """Return the flag of a field that is true or false, and its opposite."""
    # The opposite of no_ack is --ack: there is no --no-no-ack.
    bare = name.removeprefix("no_")
    opposite = flag(f"no_{name}") if bare == name else flag(bare)
    return f"{flag(name)}/{opposite}"


def _words(info: FieldInfo) -> Sequence[str]:
    """Return the words that a field may have; none if it takes other values."""
    for kind in info.metadata:
        if isinstance(kind, Choice):
            return tuple(kind.words)
    return ()


def _help(info: FieldInfo, doc: str, names: Collection[str]) -> str:
    """Return the docstring of a field for the command line; ``names`` are fields with options."""
    words = _words(info)
    text = " ".join(doc.split())
    # The option takes a duration with its unit, and a user needs no decision records.
    # The docstring is also that of the Python API, where the value is a number.
    text = text.replace(", in nanoseconds", "")
    text = re.sub(r",? ADR-\d+|\s*\(ADR-\d+\)", "", text)

    def as_option(match: re.Match[str]) -> str:
        name = match[1]
        # A word of this field may have the name of another one.
        return flag(name) if name in names and name not in words else name

    text = re.sub(r"``([^`]*)``", as_option, text)
    if words:
        *others, last = words
        text = f"{', '.join(others)} or {last}; {text[0].lower()}{text[1:]}"
    part = part_of(info.annotation)
    return f"{text} Fields: {', '.join(part.model_fields)}." if part else text


def _default(default: object) -> str:
    """Return a default for help, unless it is empty, or 0 or -1, which help says in words."""
    if isinstance(default, bool):
        return " [default: on]" if default else ""
    if isinstance(default, str) and default:
        return f" [default: {default}]"
    if isinstance(default, int) and default > 0:
        return f" [default: {default}]"
    return ""


def _metavar(name: str, annotation: Any, metadata: Collection[Any] = ()) -> str:
    """Return the word for the value of an option. ``metadata`` are annotations of the field."""
    type_ = bare_type(annotation)
    if get_origin(type_) is tuple:
        inner = _metavar(name, get_args(type_)[0])
        return inner if part_of(annotation) else f"{inner},..."
    if get_origin(type_) is dict:
        return "NAME=VALUE"
    if part_of(annotation):
        return "FIELD=VALUE,..."
    return _kind_word(name, [*metadata, *_metadata(annotation)])


def _kind_word(name: str, annotations: Iterable[Any]) -> str:
    """Return the word for a field of the first kind of value that has one."""
    kinds = [kind for kind in annotations if isinstance(kind, Kind)]
    if kinds and isinstance(kinds[0], Choice):
        return _POLICIES.get(name, "POLICY")
    for kind in kinds:
        if type(kind) in _METAVARS:
            return _METAVARS[type(kind)]
    return "TEXT"


def _metadata(annotation: Any) -> tuple[Any, ...]:
    """Return the annotations of a type, with or without "or None"."""
    # "or None" is the outer type of an optional field, and its annotations belong to the inner one.
    for type_ in (annotation, *get_args(annotation)):
        if get_origin(type_) is Annotated:
            return tuple(type_.__metadata__)
    return ()
