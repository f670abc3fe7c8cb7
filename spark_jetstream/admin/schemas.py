"""JSON Schemas of what the JetStream API and its events send, by their ``type``. Pure.

Requests of one or two fields have none. A reply or an event may have fields that only a newer
server knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from spark_jetstream.admin.models import account, consumers, messages, streams
from spark_jetstream.admin.models.base import Boolean, Count, Model, Reply, String, complaint, hint
from spark_jetstream.admin.models.events import EVENT_TYPES
from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import TRUST
from spark_jetstream.protocol.units import shown


class StreamRequest(streams.StreamConfig):
    """A request to create or update a stream."""

    pedantic: Boolean = False


class ConsumerRequest(Model):
    """A request to create or update a consumer."""

    stream_name: String
    config: consumers.ConsumerConfig
    action: String = ""
    pedantic: Boolean = False


class Fault(Model):
    """The error of a reply."""

    code: Count
    err_code: Count = 0
    description: String = ""


class ErrorReply(Reply):
    """A reply of any type to a request that failed."""

    error: Fault


_DONE = """stream_delete stream_msg_delete stream_leader_stepdown stream_remove_peer stream_evacuate_peer
    consumer_delete consumer_leader_stepdown meta_leader_stepdown meta_server_remove"""
_GIVEN: Mapping[type[Model], str] = {
    streams.StreamConfig: "stream_configuration",
    StreamRequest: "stream_create_request stream_update_request",
    messages.PurgeRequest: "stream_purge_request",
    messages.SnapshotConfig: "stream_snapshot_request",
    consumers.ConsumerConfig: "consumer_configuration",
    ConsumerRequest: "consumer_create_request",
}
_REPLIES: Mapping[type[Model], str] = {
    Reply: "consumer_unpin account_purge",
    account.AccountInfo: "account_info",
    messages.DoneReply: _DONE,
    messages.MessageReply: "stream_msg_get",
    messages.PubAck: "pub_ack",
    messages.PurgeReply: "stream_purge",
    streams.StreamInfo: "stream_info stream_create stream_update stream_cancel_move",
    streams.StreamPage: "stream_list",
    streams.StreamNamesPage: "stream_names",
    streams.SnapshotReply: "stream_snapshot",
    streams.RestoreReply: "stream_restore",
    consumers.ConsumerInfo: "consumer_info consumer_create",
    consumers.ConsumerPage: "consumer_list",
    consumers.ConsumerNamesPage: "consumer_names",
    consumers.PauseReply: "consumer_pause",
    consumers.ResetReply: "consumer_reset",
}
_API = "io.nats.jetstream.api.v1."


def _by_type(models: Mapping[type[Model], str], suffix: str = "") -> dict[str, type[Model]]:
    """Return the models by the full names of their types."""
    types = {}
    for model, names in models.items():
        for name in names.split():
            types[f"{_API}{name}{suffix}"] = model
    return types


_STRICT = _by_type(_GIVEN)  # sent by users: unknown fields are faults
_OPEN = _by_type(_REPLIES, "_response")  # sent by servers, which may be newer
SCHEMAS: Mapping[str, type[Model]] = {**_STRICT, **_OPEN, **EVENT_TYPES}
"""Type -> its model."""


class _OfTheWire(GenerateJsonSchema):
    """Writes the type of a value as a server sends it: fields read it with a `Kind`, or with `of` of their class."""

    def function_plain_schema(self, schema: Any) -> dict[str, Any]:
        reads = schema["function"]["function"].__self__
        wire = getattr(reads, "wire", reads)
        named = {bool: "boolean", int: "integer", str: "string"}
        return {"type": next(name for kind, name in named.items() if issubclass(wire, kind))}


def schema_types(pattern: str = "*") -> list[str]:
    """Return the types with a part that matches a pattern; wildcards are ``*`` and ``?``.

    Sorted.
    """
    return sorted(name for name in SCHEMAS if fnmatchcase(name, f"*{pattern}*"))


def schema(type: str) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises `OptionError` for one that is not known."""
    return {**_model(type).model_json_schema(schema_generator=_OfTheWire), "title": type}


def schema_faults(body: object, type: str = "") -> str:
    """Return what is wrong with a body of a type, by default that of its field ``type``; "" for nothing.

    Requests and configurations are checked as those of a user are, a reply with an ``error`` by
    that alone. Raises `OptionError` for a type that is not known.
    """
    own = type
    if not own and isinstance(body, Mapping):
        own = str(body.get("type", ""))
    model = _model(own)
    # A reply with an error lacks the fields that its model requires.
    if own in _OPEN and isinstance(body, Mapping) and "error" in body:
        model = ErrorReply
    try:
        model.model_validate(body, context=None if own in _STRICT else TRUST)
    except ValidationError as error:
        return complaint(error)
    return ""


def _model(type: str) -> type[Model]:
    if type not in SCHEMAS:
        raise OptionError(f"there is no schema of type {shown(type)}{hint(type, SCHEMAS)}")
    return SCHEMAS[type]
