"""Protobuf messages, read by the library protobuf from the descriptor of their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.columns import PayloadFault, schema_argument, struct_of
from spark_jetstream.decoding.descriptors import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    GetMessageClass,
    Message,
    descriptor_of,
    files_with,
    messages_of,
    place_of,
    pool_of,
)
from spark_jetstream.decoding.frames import read_indexes
from spark_jetstream.decoding.registry import SchemaRegistry
from spark_jetstream.decoding.registry_client import KINDS, RegistryClient
from spark_jetstream.decoding.schemas_by_id import SchemasById
from spark_jetstream.errors import SchemaError

TIMESTAMP = "google.protobuf.Timestamp"
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    # Spark has no unsigned integers: these are the smallest types that hold all values.
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


class MessageParser:
    """Makes dicts of the bytes of one kind of message. Spark sends it to its workers."""

    def __init__(self, descriptor: Descriptor, where: str) -> None:
        self.name: str = descriptor.full_name
        self.fields: pa.StructType = message_type(descriptor, where)
        self._files = files_with(descriptor.file)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the class of the message in a worker.

        An error here fails the task, and is not blamed on a payload.
        """
        vars(self).update(state)
        # A pool of its own: the worker may have another version of the same file in the default
        # one.
        descriptor = pool_of(self._files).FindMessageTypeByName(self.name)
        self._message = GetMessageClass(descriptor)
        self._read = _read_fields(descriptor)

    def parse(self, payload: bytes) -> dict[str, Any]:
        """Return the fields of a message.

        Raises what protobuf raises, and `ValueError` if a required field of proto2 is missing.
        """
        message = self._message.FromString(payload)
        # Not all implementations of the library look for them.
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"the message has no {missing}")
        return self._read(message)


class ProtobufReader:
    """Reads messages of any version of a schema as messages of the last one.

    Raises `SchemaError` if a schema is neither the class of a message nor has the message
    ``message``. Also if a schema refers to itself or has no field, or if two versions are messages
    of different names. With ``indexed`` the place of the message in its file precedes each payload, as
    Confluent's serializer writes it.
    """

    def __init__(
        self,
        schemas: Mapping[str, Any],
        *,
        indexed: bool,
        message: str | None = None,
    ) -> None:
        found = {
            version: descriptor_of(schema, message, schema_argument(version))
            for version, schema in schemas.items()
        }
        version, last = list(found.items())[-1]
        others = {descriptor.full_name for descriptor in found.values()} - {last.full_name}
        if others:
            both = f"{last.full_name} and {min(others)}"
            raise SchemaError(f"argument schema has {both}: all versions are one message's")
        self._parser = MessageParser(last, schema_argument(version))
        self._places: dict[str, list[int]] = {}
        if indexed:
            self._places = {version: place_of(descriptor) for version, descriptor in found.items()}
        self.expected = f"one Protobuf message {last.full_name}"
        self.fields: pa.StructType = self._parser.fields

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a message.

        Raises what protobuf raises, and `ValueError` for the index of another.
        """
        if self._places:
            place, begin = read_indexes(payload)
            if place != self._places[version]:
                raise ValueError(
                    f"the indexes in front are {place}, those of {self._parser.name} "
                    f"{self._places[version]}",
                )
            payload = payload[begin:]
        return self._parser.parse(payload)


class RegisteredProtobufReader:
    """Reads messages whose schemas a registry has, by field numbers, as messages of one schema.

    The registry's schema tells the message of a payload: the indexes in front of it count the
    messages of its file. A message of another name is a fault of its payload.
    """

    def __init__(self, registry: SchemaRegistry, descriptor: Descriptor) -> None:
        # Of each schema: the names of its messages by their places.
        self._schemas: SchemasById[Mapping[tuple[int, ...], str]] = SchemasById(
            RegistryClient(registry),
            KINDS["protobuf"],
        )
        self._parser = MessageParser(descriptor, schema_argument(""))
        self.expected = f"one Protobuf message {self._parser.name}"
        self.fields: pa.StructType = self._parser.fields

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a message of the schema with the id ``version``.

        Raises what protobuf raises, `PayloadFault` for a message of another name or an id that the
        registry does not have, and `RegistryError`.
        """
        names = self._schemas.get(version, messages_of)
        place, begin = read_indexes(payload)
        name = names.get(tuple(place))
        if name != self._parser.name:
            written = f"a message {name}" if name else "no message of that schema"
            raise PayloadFault(
                f"the indexes {place} in front of the payload, with schema {version} of the "
                f"registry, mean {written}, not {self._parser.name}",
            )
        return self._parser.parse(payload[begin:])


def message_type(descriptor: Descriptor, where: str) -> pa.StructType:
    """Return the Arrow type of a message. Raises `SchemaError` if Spark lacks it."""
    return _arrow_type(descriptor, where, ())


def _arrow_type(descriptor: Descriptor, where: str, around: tuple[str, ...]) -> pa.StructType:
    """Return the type of a message's fields; ``around`` are the messages that contain it."""
    name = descriptor.full_name
    if name in around:
        raise SchemaError(f"{where}: message {name} contains itself, for which Spark has no type")

    def item_type(field: FieldDescriptor) -> pa.DataType:
        """Return the type of the field, or of each item if it is repeated."""
        if field.type == field.TYPE_BYTES:
            return pa.binary()
        if field.message_type is None:
            return _SCALARS[field.cpp_type]
        if field.message_type.full_name == TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return _arrow_type(field.message_type, where, (*around, name))

    fields = {}
    for field in descriptor.fields:
        if entry := map_entry(field):
            fields[field.name] = pa.map_(item_type(entry["key"]), item_type(entry["value"]))
        elif is_repeated(field):
            fields[field.name] = pa.list_(item_type(field))
        else:
            fields[field.name] = item_type(field)
    return struct_of(f"{where}: message {name}", fields)


def _read_fields(descriptor: Descriptor) -> Callable[[Message], dict[str, Any]]:
    """Return a function that makes a dict of a message.

    It raises `ValueError` for a Timestamp outside of the years 1 to 9999.
    """
    # The fields are looked at once here, and not again for each message.
    fields = [(field.name, _read_field(field)) for field in descriptor.fields]

    def read_fields(message: Message) -> dict[str, Any]:
        return {name: read(message) for name, read in fields}

    return read_fields


def _read_field(field: FieldDescriptor) -> Callable[[Message], Any]:
    """Return a function that reads the field of a message."""
    name = field.name
    entry = map_entry(field)
    read_item = _read_item(field if entry is None else entry["value"])

    def read_map(message: Message) -> dict[Any, Any]:
        return {key: read_item(value) for key, value in getattr(message, name).items()}

    def read_list(message: Message) -> list[Any]:
        return [read_item(value) for value in getattr(message, name)]

    def read_optional(message: Message) -> Any:
        if not message.HasField(name):
            return None
        return read_item(getattr(message, name))

    def read_plain(message: Message) -> Any:
        return read_item(getattr(message, name))

    if entry is not None:
        return read_map
    if is_repeated(field):
        return read_list
    if field.has_presence:
        return read_optional
    return read_plain


def _read_item(field: FieldDescriptor) -> Callable[[Any], Any]:
    """Return a function that reads the value of a field, or an item of it."""
    if field.enum_type is not None:
        return _enum_reader(field.enum_type)
    if field.message_type is None:
        return _unchanged
    if field.message_type.full_name == TIMESTAMP:
        return _datetime
    return _read_fields(field.message_type)


def _enum_reader(enum: EnumDescriptor) -> Callable[[int], str]:
    names: dict[int, str] = {number: value.name for number, value in enum.values_by_number.items()}

    def name_of(number: int) -> str:
        # proto3 keeps numbers that the enumeration does not have.
        return names.get(number, str(number))

    return name_of


def _unchanged(value: Any) -> Any:
    return value


def _datetime(message: Any) -> datetime:
    moment: datetime = message.ToDatetime(timezone.utc)
    return moment


def map_entry(field: FieldDescriptor) -> Mapping[str, FieldDescriptor] | None:
    """Return the fields ``key`` and ``value`` of a field that is a map."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    fields: Mapping[str, FieldDescriptor] = entry.fields_by_name
    return fields


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether a field is a list or a map."""
    # protobuf before 6.31 has only the label, which protobuf 7 no longer has.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)
