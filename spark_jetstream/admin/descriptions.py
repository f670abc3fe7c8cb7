"""Descriptions of streams and their consumers in JSON or YAML, and templates of configurations.

A description is a stream's configuration (`StreamConfig`), with an optional list ``consumers``
(`ConsumerConfig`) beside its fields. The output of ``stream info --json`` and ``consumer info
--json``, here and of the ``nats`` command, counts as the configuration in it. A text has one
description, a list of them, an object of them by the names of the streams, or, in YAML, several
documents. A key that appears twice is refused, since only one of the two would count.

A template is a mapping of fields; fields beside it replace its own::

    admin.streams.create(DEFAULT_WORK_QUEUE, name="JOBS", subjects=["jobs.>"])
    admin.streams.create(template("team-stream.yaml"), name="ORDERS", subjects=["orders.>"], max_age="30d")
"""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from spark_jetstream.admin.models.asked import own_configuration
from spark_jetstream.admin.models.base import Model, rendered
from spark_jetstream.admin.models.consumers import ConsumerConfig
from spark_jetstream.admin.models.streams import StreamConfig
from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol.units import shown

_CONSUMERS = "consumers"
_FIELDS = {*StreamConfig.model_fields, _CONSUMERS}
_YAML = (".yaml", ".yml")
# The tag that YAML gives to a text that looks like a time.
_YAML_TIME = "tag:yaml.org,2002:timestamp"


@dataclass(frozen=True)
class Wanted:
    """A described stream, and its described consumers."""

    stream: StreamConfig
    consumers: tuple[ConsumerConfig, ...] = ()


def read_wanted(
    *described: str | os.PathLike[str] | Mapping[str, Any], newer: Callable[[], bool] | None = None
) -> tuple[Wanted, ...]:
    """Read descriptions: mappings, or files.

    A file is YAML where the name ends in ``.yaml`` or ``.yml``, else JSON. Raises `OptionError`,
    which names the file. ``newer`` is that of `Model.parse`.
    """
    streams: dict[str, tuple[Wanted, str]] = {}
    for number, given in enumerate(described, start=1):
        if isinstance(given, Mapping):
            where = f"description {number}"
            documents = [given]
        else:
            where = file_path("description", given)
            documents = file_content(where, where)
        for wanted in wanted_in(documents, where, newer=newer):
            name = wanted.stream.name
            # Only one of two descriptions of a stream could count.
            if name in streams:
                _, before = streams[name]
                raise OptionError(f"{where}: stream {name} is described in {before} already")
            streams[name] = wanted, where
    return tuple(wanted for wanted, _ in streams.values())


def description(
    stream: StreamConfig, consumers: Iterable[ConsumerConfig] = (), *, readable: bool = True
) -> dict[str, Any]:
    """Return the description of a stream and its consumers.

    It lacks the metadata that the server adds. ``readable``: only fields that do not have their
    default, with durations and sizes as text. Otherwise all fields with integers, which ``nats
    stream add --config`` reads.
    """
    describe = _described if readable else Model.body
    fields = describe(stream)
    others = [describe(consumer) for consumer in consumers]
    return {**fields, _CONSUMERS: others} if others else fields


def _described(config: StreamConfig | ConsumerConfig) -> dict[str, Any]:
    """Return the fields that do not have their default, as text that people read."""
    # With the marks of a former run of a Spark query, a description would end the running one.
    own = config.model_copy(update={"metadata": config.own_metadata})
    default = set()
    for name, field in type(config).model_fields.items():
        if getattr(own, name) == field.get_default(call_default_factory=True):
            default.add(name)
    if isinstance(config, ConsumerConfig) and config.name == config.durable_name:
        default.add("name")
    return {name: value for name, value in rendered(own).items() if name not in default}


def file_content(path: str, what: str) -> list[Any]:
    """Return the documents of a file.

    Raises `OptionError`, which begins with ``what``, when it cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise OptionError(f"{what}: the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{what}: the file is not text (UTF-8)") from None
    if os.path.splitext(path)[1].lower() in _YAML:
        return yaml_documents(text, what)
    return [json_document(text, what)]


def json_document(text: str, what: str) -> Any:
    """Return the value of JSON.

    Raises `OptionError`, which begins with ``what``, and says where it is not JSON.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        # Python's reader keeps the last of two values of a key, and drops the other one.
        if len(value) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, count in counts.items() if count > 1)
            raise OptionError(f"{what}: {shown(twice)} appears twice in one object")
        return value

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        problem = f"{reason} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "it is nested too deeply"
    # `OptionError` is a `ValueError`, so it comes before that.
    except OptionError:
        raise
    except ValueError:  # for a number with thousands of digits
        problem = "it holds a number that is too long"
    raise OptionError(f"{what}: this is not valid JSON: {problem}")


def yaml_documents(text: str, what: str) -> list[Any]:
    """Return the documents of a YAML text; times stay text.

    Raises `OptionError`, which begins with ``what``.
    """
    yaml = _yaml(f"{what}: reading")
    try:
        return _constructed(yaml.SafeLoader(text), what)
    except yaml.YAMLError as error:
        problem = _yaml_problem(error)
    # `OptionError` is a `ValueError`, so it comes before that.
    except OptionError:
        raise
    except (RecursionError, ValueError, LookupError, AttributeError):
        # PyYAML's constructors do not check their text.
        problem = "it is nested too deeply, or holds a malformed number, time or truth value"
    raise OptionError(f"{what}: this is not valid YAML: {problem}")


def _constructed(loader: Any, what: str) -> list[Any]:
    """Return the documents of a loader. Raises `OptionError` for a key that appears twice."""
    # As a `datetime` a time would lose its nanoseconds.
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _YAML_TIME]
        for first, resolvers in loader.yaml_implicit_resolvers.items()
    }
    documents = []
    while loader.check_node():
        node = loader.get_node()
        # Before PyYAML makes a `dict` of the node, which keeps one of two values.
        twice = next(_twice(node, set()), None)
        if twice is not None:
            name, line = twice
            raise OptionError(f"{what}: {shown(name)} appears twice, again in line {line}")
        documents.append(loader.construct_document(node))
    return documents


def _yaml_problem(error: Exception) -> str:
    """Return the problem that a `YAMLError` names, and its place."""
    problem = getattr(error, "problem", None) or "it cannot be read"
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return problem
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def yaml_text(value: Any) -> str:
    """Return a description as YAML, in the order of its fields.

    Raises `OptionError` where PyYAML is missing.
    """
    written: str = _yaml("writing").safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return written


def _yaml(what: str) -> ModuleType:
    try:
        return importlib.import_module("yaml")  # only there with the extra
    except ImportError:
        raise OptionError(
            f"{what} YAML needs PyYAML: pip install 'spark-jetstream[yaml]'",
        ) from None


def _twice(node: Any, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield keys that a mapping has twice, with their lines.

    ``seen`` has the ids of the nodes that were visited.
    """
    # An alias is the node that it names, and may lead back to itself.
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
    documents: Sequence[Any],
    what: str,
    name: str | None = None,
    *,
    newer: Callable[[], bool] | None = None,
) -> tuple[Wanted, ...]:
    """Return the descriptions in documents, in their order.

    ``name`` is for a stream that is described without one. Raises `OptionError`, which begins with
    ``what``. ``newer`` is that of `Model.parse`.
    """
    streams: dict[str, Wanted] = {}
    for described, key in _descriptions(documents, what):
        wanted = _wanted(described, what, key or name, newer)
        if key is not None and wanted.stream.name != key:
            raise OptionError(
                f"{what}: stream {shown(key)} has the name {shown(wanted.stream.name)} in its "
                "fields",
            )
        if wanted.stream.name in streams:
            raise OptionError(f"{what}: stream {wanted.stream.name} is described twice")
        streams[wanted.stream.name] = wanted
    if not streams:
        raise OptionError(f"{what}: no stream is described")
    return tuple(streams.values())


def _descriptions(
    documents: Sequence[Any],
    what: str,
) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Yield each description, and its key in an object of several."""
    for document in documents:
        if document is None:
            # An empty document describes nothing.
            continue
        entries = document if isinstance(document, list) else [document]
        for entry in entries:
            if not isinstance(entry, Mapping):
                raise OptionError(
                    f"{what}: a stream is described by an object with its fields, not by "
                    f"{_type_text(entry)}",
                )
            if _has_streams(entry):
                for key, value in entry.items():
                    yield value, str(key)
            else:
                yield entry, None


def _has_streams(entry: Mapping[Any, Any]) -> bool:
    """Return whether an object has descriptions by the names of streams, not the fields of one."""
    if not entry or entry.keys() & _FIELDS:
        return False
    return all(isinstance(value, Mapping) for value in entry.values())


def _wanted(
    described: Mapping[str, Any],
    what: str,
    name: str | None,
    newer: Callable[[], bool] | None,
) -> Wanted:
    """Return a described stream and its consumers; ``name`` is for one without a name."""
    # The output of `stream info --json` has the configuration in it.
    config = own_configuration(described)
    fields = dict(config)
    fields.pop(_CONSUMERS, None)
    if fields.get("name") is None:
        if name is None:
            raise OptionError(f"{what}: a stream is described without its name")
        fields["name"] = name
    stream = StreamConfig.parse(fields, f"{what}: stream {shown(fields['name'])}", newer)
    where = f"{what}: stream {stream.name}"
    # In the output of ``stream info --json``, they are beside the configuration.
    consumers = config.get(_CONSUMERS) or described.get(_CONSUMERS) or []
    return Wanted(stream, _wanted_consumers(consumers, where, newer))


def _wanted_consumers(
    consumers: Any,
    where: str,
    newer: Callable[[], bool] | None,
) -> tuple[ConsumerConfig, ...]:
    """Return the described consumers of a stream. Raises `OptionError`."""
    if not isinstance(consumers, list):
        raise OptionError(f"{where}: consumers must be a list, not {_type_text(consumers)}")
    configs: dict[str, ConsumerConfig] = {}
    for at, entry in enumerate(consumers, start=1):
        place = f"{where}, consumer {at}"
        consumer = _wanted_consumer(entry, place, newer)
        known = consumer.name or consumer.durable_name
        if known in configs:
            raise OptionError(f"{place}: consumer {known} is described twice")
        configs[known] = consumer
    return tuple(configs.values())


def _wanted_consumer(
    described: Any,
    where: str,
    newer: Callable[[], bool] | None,
) -> ConsumerConfig:
    """Return a described consumer. Raises `OptionError` for one that the server would remove."""
    if not isinstance(described, Mapping):
        raise OptionError(
            f"{where}: a consumer is described by an object with its fields, not by "
            f"{_type_text(described)}",
        )
    consumer = ConsumerConfig.parse(own_configuration(described), where, newer)
    named = consumer.name or consumer.durable_name
    # The server removes an unused consumer without a durable name after
    # five seconds, unless it has another inactive_threshold.
    lasting = consumer.durable_name or (named and consumer.inactive_threshold)
    if not lasting:
        raise OptionError(
            f"{where}: it needs a durable_name (or a name and an inactive_threshold): "
            "without it the server removes the consumer when it is unused"
        )
    return consumer


def _type_text(value: object) -> str:
    kinds = {
        bool: "true or false",
        str: "text",
        list: "a list",
        dict: "an object",
        type(None): "nothing",
    }
    return kinds.get(type(value), "a number")


def template(path: str | os.PathLike[str], what: str = "template") -> dict[str, Any]:
    """Return the fields of a template, or of ``stream info --json``, in a file.

    They are checked where they are used.

    Raises `OptionError`, which begins with ``what``, when the file cannot be read or has something
    else.
    """
    file = os.path.expanduser(file_path(what, path))
    documents = file_content(file, f"{what} {file}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise OptionError(
            f"{what} {file}: this is not one object with the fields of a configuration",
        )
    return dict(own_configuration(documents[0]))
