"""Protobuf messages, read by the library protobuf from the descriptor of their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.columns import schema_argument, struct_of
from spark_jetstream.errors import SchemaError

try:
    from google.protobuf.descriptor import (
        Descriptor,
        EnumDescriptor,
        FieldDescriptor,
        FileDescriptor,
    )
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise ModuleNotFoundError(
        "decoding Protobuf needs protobuf: pip install 'spark-jetstream[protobuf]', on every node",
        name="google.protobuf",
    ) from error

_TIMESTAMP = "google.protobuf.Timestamp"
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


class ProtobufReader:
    """Reads messages of any version of a class as messages of the last one.

    Raises `SchemaError` if a schema is not the class of a message, refers to itself, or has no
    field, and if two versions are messages of different names. With ``indexed`` the place of the
    message in its file precedes each payload, as Confluent's serializer writes it.
    """

    def __init__(self, schemas: Mapping[str, Any], *, indexed: bool) -> None:
        found: dict[str, Any] = {}
        for version, schema in schemas.items():
            where = schema_argument(version)
            descriptor = getattr(schema, "DESCRIPTOR", None)
            if not isinstance(descriptor, Descriptor):
                raise SchemaError(
                    f"{where} must be the class of a Protobuf message, but it is {schema!r}",
                )
            found[version] = descriptor
        last = found[version]
        self._name = last.full_name
        others = {descriptor.full_name for descriptor in found.values()} - {self._name}
        if others:
            both = f"{self._name} and {min(others)}"
            raise SchemaError(f"argument schema has {both}: all versions are one message's")
        self._files = _files(last.file)
        self._places: dict[str, list[int]] = {}
        if indexed:
            self._places = {version: _place(descriptor) for version, descriptor in found.items()}
        self.expected = f"one Protobuf message {self._name}"
        self.fields: pa.StructType = _arrow_type(last, where, ())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the class of the message in a worker.

        An error here fails the task, and is not blamed on a payload.
        """
        vars(self).update(state)
        # A pool of its own: the worker may have another version of the same file in the default
        # one.
        pool = DescriptorPool()
        for file in self._files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(self._name)
        self._message = GetMessageClass(descriptor)
        self._read = _read_fields(descriptor)

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a message.

        Raises what protobuf raises, and `ValueError` for the index of another.
        """
        if self._places:
            place, begin = _indexes(payload)
            if place != self._places[version]:
                raise ValueError(
                    f"the indexes in front are {place}, those of {self._name} "
                    f"{self._places[version]}",
                )
            payload = payload[begin:]
        return self._read(self._message.FromString(payload))


def _files(file: FileDescriptor) -> list[bytes]:
    """Return a file and its imports, each after its own imports, as descriptor.proto has them."""
    found: dict[str, bytes] = {}

    def add(one: FileDescriptor) -> None:
        if one.name not in found:
            for imported in one.dependencies:
                add(imported)
            proto = FileDescriptorProto()
            one.CopyToProto(proto)
            found[one.name] = proto.SerializeToString()

    add(file)
    return list(found.values())


def _place(descriptor: Descriptor) -> list[int]:
    """Return the indexes of a message and the messages around it, the outermost first.

    An index counts the messages of the file, or of the message around it.
    """
    outer = descriptor.containing_type
    if outer is None:
        names = list(descriptor.file.message_types_by_name)
        return [names.index(descriptor.name)]
    names = [message.name for message in outer.nested_types]
    return [*_place(outer), names.index(descriptor.name)]


def _indexes(payload: bytes) -> tuple[list[int], int]:
    """Return the indexes in front of a payload, and where they end.

    Their count precedes them; a count of 0 stands for the first message of a file. All are zigzag
    varints. Raises `ValueError` without them.
    """
    count, at = _varint(payload, 0)
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    return indexes or [0], at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at a place of a payload, and where it ends."""
    value = 0
    # A varint of 64 bits has ten bytes at most, each with seven bits.
    for shift in range(0, 70, 7):
        if at == len(payload):
            break
        byte = payload[at]
        at += 1
        value |= (byte & 127) << shift
        is_last = byte < 128
        is_negative = value & 1
        if is_last and not is_negative:
            return value >> 1, at
    raise ValueError("no index of a message is in front")


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
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return _arrow_type(field.message_type, where, (*around, name))

    fields = {}
    for field in descriptor.fields:
        if entry := _map_entry(field):
            fields[field.name] = pa.map_(item_type(entry["key"]), item_type(entry["value"]))
        elif _is_repeated(field):
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
    entry = _map_entry(field)
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
    if _is_repeated(field):
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
    if field.message_type.full_name == _TIMESTAMP:
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


def _map_entry(field: FieldDescriptor) -> Mapping[str, FieldDescriptor] | None:
    """Return the fields ``key`` and ``value`` of a field that is a map."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    fields: Mapping[str, FieldDescriptor] = entry.fields_by_name
    return fields


def _is_repeated(field: FieldDescriptor) -> bool:
    # protobuf before 6.31 has only the label, which protobuf 7 no longer has.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)
