"""Descriptions of streams and their consumers, as people write them: JSON or YAML, as text or in files.

A description is a stream's configuration (`StreamConfig`), and may have a list ``consumers`` (`ConsumerConfig`) beside
its fields. What ``stream info --json`` and ``consumer info --json`` print, here and by the ``nats`` command, stands
for the configuration in it.

A text holds one description, a list of them, an object of them by the names of the streams, or, in YAML, several
documents. What is written twice is refused, since only one of the two would count.

Configurations to begin with: what a new stream or consumer has where nothing else is said. Pure but for `template`.

A template is a mapping of fields; what is given beside it wins::

    admin.streams.create(DEFAULT_WORK_QUEUE, name="JOBS", subjects=["jobs.>"])
    admin.streams.create(template("team-stream.yaml"), name="ORDERS", subjects=["orders.>"], max_age="30d")
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.changes import own_configuration
from spark_jetstream.admin.models.consumers import ConsumerConfig
from spark_jetstream.admin.models.streams import StreamConfig
from spark_jetstream.admin.models.text import rendered
from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol.units import shown

_CONSUMERS = "consumers"
_FIELDS = {*StreamConfig.model_fields, _CONSUMERS}
_YAML = (".yaml", ".yml")
_YAML_TIME = "tag:yaml.org,2002:timestamp"


@dataclass(frozen=True)
class Wanted:
    """A stream as somebody wants it, and those of its consumers that the description names."""

    stream: StreamConfig
    consumers: tuple[ConsumerConfig, ...] = ()


def read_wanted(
    *described: str | os.PathLike[str] | Mapping[str, Any], newer: Callable[[], bool] | None = None
) -> tuple[Wanted, ...]:
    """What files describe, or descriptions themselves: YAML where a name ends in ``.yaml`` or ``.yml``, else JSON.

    `OptionError` names the file. ``newer`` as for `Model.parse`.
    """
    found: dict[str, tuple[Wanted, str]] = {}
    for number, given in enumerate(described, start=1):
        where = f"description {number}" if isinstance(given, Mapping) else file_path("description", given)
        documents = [given] if isinstance(given, Mapping) else file_content(where, where)
        for each in wanted_in(documents, where, newer=newer):
            name = each.stream.name
            if name in found:
                raise OptionError(f"{where}: stream {name} is described in {found[name][1]} already")
            found[name] = each, where
    return tuple(each for each, _ in found.values())


def description(
    stream: StreamConfig, consumers: Iterable[ConsumerConfig] = (), *, readable: bool = True
) -> dict[str, Any]:
    """A stream and its consumers as `read_wanted` reads them, without the metadata that the server adds.

    ``readable``: only what is not the default, with durations and sizes as text. Otherwise every field as the server
    has it, with integers of nanoseconds and bytes: the form that ``nats stream add --config`` reads.
    """
    form = _described if readable else Model.body
    kept = [form(each) for each in consumers]
    return form(stream) | ({_CONSUMERS: kept} if kept else {})


def _described(config: StreamConfig | ConsumerConfig) -> dict[str, Any]:
    fields = type(config).model_fields
    values = {name: getattr(config, name) for name in config.field_names} | {"metadata": config.own_metadata}
    if isinstance(config, ConsumerConfig) and config.name == config.durable_name:
        del values["name"]
    given = type(config).from_server(
        {
            name: value
            for name, value in values.items()
            if name not in fields or value != fields[name].get_default(call_default_factory=True)
        }
    )
    return rendered(given)


def file_content(path: str, what: str) -> list[Any]:
    """The documents in a file. `OptionError` that begins with ``what`` when there is no such file, or it is damaged."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise OptionError(f"{what}: the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{what}: the file is not text (UTF-8)") from None
    is_yaml = os.path.splitext(path)[1].lower() in _YAML
    return yaml_documents(text, what) if is_yaml else [json_document(text, what)]


def json_document(text: str, what: str) -> Any:
    """What JSON holds. `OptionError` that begins with ``what``, and says where it is no JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for key in found if sum(key == name for name, _ in pairs) > 1)
            raise OptionError(f"{what}: {shown(twice)} is there twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        words = f"{error.msg[:1].lower()}{error.msg[1:]} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        words = "it is nested too deeply"
    except OptionError:
        raise
    except ValueError:  # of a number with thousands of digits
        words = "it holds a number that is too long"
    raise OptionError(f"{what}: this is not valid JSON: {words}")


def yaml_documents(text: str, what: str) -> list[Any]:
    """What each document of a YAML text holds; times stay text. `OptionError` that begins with ``what``."""
    yaml = _yaml(f"{what}: reading")
    try:
        loader = yaml.SafeLoader(text)
        # As a `datetime` a time would lose its nanoseconds.
        loader.yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in each if tag != _YAML_TIME]
            for first, each in loader.yaml_implicit_resolvers.items()
        }
        documents = []
        while loader.check_node():
            node = loader.get_node()
            twice = next(_twice(node, set()), None)
            if twice is not None:
                name, line = twice
                raise OptionError(f"{what}: {shown(name)} is there twice, again in line {line}")
            documents.append(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        words = getattr(error, "problem", None) or "it cannot be read"
    except OptionError:
        raise
    except (RecursionError, ValueError):
        where, words = "", "it is nested too deeply, or holds a number or a time that is none"
    else:
        return documents
    raise OptionError(f"{what}: this is not valid YAML: {words}{where}")


def yaml_text(value: Any) -> str:
    """A description as YAML, in the order of its fields. `OptionError` where PyYAML is missing."""
    written: str = _yaml("writing").safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return written


def _yaml(what: str) -> ModuleType:
    try:
        import yaml  # noqa: PLC0415  # only there with the extra
    except ImportError:
        raise OptionError(f"{what} YAML needs PyYAML: pip install 'spark-jetstream[yaml]'") from None
    module: ModuleType = yaml
    return module


def _twice(node: Any, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has already, with their lines; ``seen`` are nodes that were looked at, by identity."""
    if id(node) in seen or not isinstance(node.value, list):
        return
    seen.add(id(node))
    keys = set()
    for child in node.value:
        if isinstance(child, tuple):
            key, value = child
            if isinstance(key.value, str):
                if key.value in keys:
                    yield key.value, key.start_mark.line + 1
                keys.add(key.value)
            yield from _twice(value, seen)
        else:
            yield from _twice(child, seen)


def wanted_in(
    documents: Sequence[Any], what: str, name: str | None = None, *, newer: Callable[[], bool] | None = None
) -> tuple[Wanted, ...]:
    """What documents describe, in their order; ``name`` is the stream that one without a name is for.

    ``newer`` as for `Model.parse`.

    `OptionError` that begins with ``what``: nothing is described, something is misspelt or out of range, a name is
    missing or there twice.
    """
    found: dict[str, Wanted] = {}
    for described, key in _descriptions(documents, what):
        wanted = _wanted(described, what, key or name, newer)
        if key is not None and wanted.stream.name != key:
            raise OptionError(f"{what}: stream {shown(key)} has the name {shown(wanted.stream.name)} in its fields")
        if wanted.stream.name in found:
            raise OptionError(f"{what}: stream {wanted.stream.name} is described twice")
        found[wanted.stream.name] = wanted
    if not found:
        raise OptionError(f"{what}: no stream is described")
    return tuple(found.values())


def _descriptions(documents: Sequence[Any], what: str) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Each description, and the name that it stands under."""
    for document in documents:
        for each in document if isinstance(document, list) else [document]:
            if not isinstance(each, Mapping):
                if each is not None or isinstance(document, list):  # an empty document describes nothing
                    raise OptionError(
                        f"{what}: a stream is described by an object with its fields, not by {_kind(each)}"
                    )
            elif each and not each.keys() & _FIELDS and all(isinstance(value, Mapping) for value in each.values()):
                yield from ((value, str(key)) for key, value in each.items())
            else:
                yield own_configuration(each), None


def _wanted(described: Mapping[str, Any], what: str, name: str | None, newer: Callable[[], bool] | None) -> Wanted:
    fields = {key: value for key, value in described.items() if key != _CONSUMERS}
    if fields.get("name") is None:
        if name is None:
            raise OptionError(f"{what}: a stream is described without its name")
        fields["name"] = name
    stream = StreamConfig.parse(fields, f"{what}: stream {shown(fields['name'])}", newer)
    consumers = described.get(_CONSUMERS) or []
    if not isinstance(consumers, list):
        raise OptionError(f"{what}: stream {stream.name}: consumers must be a list, not {_kind(consumers)}")
    found: dict[str, ConsumerConfig] = {}
    for at, each in enumerate(consumers, start=1):
        where = f"{what}: stream {stream.name}, consumer {at}"
        if not isinstance(each, Mapping):
            raise OptionError(f"{where}: a consumer is described by an object with its fields, not by {_kind(each)}")
        consumer = ConsumerConfig.parse(own_configuration(each), where, newer)
        known = consumer.name or consumer.durable_name
        if not consumer.durable_name and not (known and consumer.inactive_threshold):
            raise OptionError(
                f"{where}: it needs a durable_name (or a name and an inactive_threshold): without it the consumer is "
                "gone as soon as nobody uses it"
            )
        if known in found:
            raise OptionError(f"{where}: consumer {known} is described twice")
        found[known] = consumer
    return Wanted(stream, tuple(found.values()))


def _kind(value: object) -> str:
    kinds = {bool: "true or false", str: "text", list: "a list", dict: "an object", type(None): "nothing"}
    return kinds.get(type(value), "a number")


DEFAULT_STREAM: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "allow_direct": True,
    }
)
"""A stream on disk that keeps everything until a limit says otherwise, and answers direct reads."""

DEFAULT_WORK_QUEUE: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
        "allow_direct": True,
    }
)
"""A queue on disk from which a message goes when it was worked on; when it is full, publishers are told."""

DEFAULT_CONSUMER: Mapping[str, Any] = MappingProxyType(
    {
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
    }
)
"""A pull consumer that delivers everything, and everything again until it is acknowledged."""


def template(path: str | os.PathLike[str], what: str = "template") -> dict[str, Any]:
    """The user's own template: a file with one object, whose fields are those of a configuration.

    The file may also hold what ``stream info --json`` or ``consumer info --json`` prints, here or by the ``nats``
    command.

    YAML where the name ends in ``.yaml`` or ``.yml``, else JSON. Which fields there are, and what they may hold, is
    checked where the template is used. `OptionError`, which begins with ``what`` and the file, when the file cannot be
    read, or holds something else.
    """
    file = os.path.expanduser(file_path(what, path))
    documents = file_content(file, f"{what} {file}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise OptionError(f"{what} {file}: this is not one object with the fields of a configuration")
    return dict(own_configuration(documents[0]))
