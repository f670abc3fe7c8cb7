"""Protobuf messages, read by the library protobuf from the descriptor of their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timezone
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.columns import struct_of
from spark_jetstream.errors import SchemaError

try:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
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

    Raises `SchemaError` if a schema is not the class of a message, refers to itself, or has no field, and if two
    versions are messages of different names. With ``indexed`` the place of the message in its file precedes each
    payload, as Confluent's serializer writes it.
    """

    def __init__(self, schemas: Mapping[str, Any], *, indexed: bool) -> None:
        found: dict[str, Any] = {}
        for version, schema in schemas.items():
            what = f"argument schema{version and f', version {version}'}"
            found[version] = getattr(schema, "DESCRIPTOR", None)
            if not isinstance(found[version], Descriptor):
                raise SchemaError(f"{what} must be the class of a Protobuf message, but it is {schema!r}")
        last = found[version]
        if others := {one.full_name for one in found.values()} - {last.full_name}:
            raise SchemaError(f"argument schema has {last.full_name} and {min(others)}: all versions are one message's")
        self._name, self._files = last.full_name, _files(last.file)
        self._places = {version: _place(one) for version, one in found.items()} if indexed else {}
        self.expected = f"one Protobuf message {last.full_name}"
        self.fields: pa.StructType = _arrow_type(last, what, ())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the class of the message in a worker: what cannot be made fails the task, and no payload is blamed."""
        vars(self).update(state)
        pool = DescriptorPool()
        for file in self._files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(self._name)
        self._message, self._read = GetMessageClass(descriptor), _read_fields(descriptor)

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a message. Raises what protobuf raises, and `ValueError` for the index of another."""
        if self._places:
            place, begin = _indexes(payload)
            if place != self._places[version]:
                raise ValueError(f"the indexes in front are {place}, those of {self._name} {self._places[version]}")
            payload = payload[begin:]
        return self._read(self._message.FromString(payload))


def _files(file: FileDescriptor) -> list[bytes]:
    """Return a file and what it imports, each after its own imports, in the format of descriptor.proto."""
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
    """Return the index of a message among those of its file, or of the message around it, the outermost first."""
    outer = descriptor.containing_type
    among = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
    index = [one.name for one in among].index(descriptor.name)
    return [index] if outer is None else [*_place(outer), index]


def _indexes(payload: bytes) -> tuple[list[int], int]:
    """Return the indexes in front of a payload, and where they end: their count and they, as zigzag varints.

    A count of 0 stands for the first message of a file. Raises `ValueError` without them; an odd varint is negative.
    """
    at = 0

    def number() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at == len(payload):
                break
            byte = payload[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128 and not value & 1:
                return value >> 1
        raise ValueError("no index of a message is in front")

    return [number() for _ in range(number())] or [0], at


def _arrow_type(descriptor: Descriptor, what: str, around: tuple[str, ...]) -> pa.StructType:
    """Return the type of a message's fields; ``around`` are the messages that contain it."""
    name = descriptor.full_name
    if name in around:
        raise SchemaError(f"{what}: message {name} contains itself, for which Spark has no type")

    def one(field: FieldDescriptor) -> pa.DataType:
        if field.message_type is None:
            return pa.binary() if field.type == field.TYPE_BYTES else _SCALARS[field.cpp_type]
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return _arrow_type(field.message_type, what, (*around, name))

    def whole(field: FieldDescriptor) -> pa.DataType:
        if entry := _map_entry(field):
            return pa.map_(one(entry["key"]), one(entry["value"]))
        return pa.list_(one(field)) if _is_repeated(field) else one(field)

    return struct_of(f"{what}: message {name}", {field.name: whole(field) for field in descriptor.fields})


def _read_fields(descriptor: Descriptor) -> Callable[[Message], dict[str, Any]]:
    """Return what makes a dict of a message. It raises `ValueError` for a Timestamp outside of the years 1 to 9999."""

    def one(field: FieldDescriptor) -> Callable[[Any], Any]:
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            # proto3 keeps numbers that the enumeration does not have.
            return lambda number: names[number].name if number in names else str(number)
        if field.message_type is None:
            return lambda value: value
        if field.message_type.full_name == _TIMESTAMP:
            return lambda message: message.ToDatetime(timezone.utc)
        return _read_fields(field.message_type)

    def whole(field: FieldDescriptor) -> Callable[[Message], Any]:
        name = field.name
        if entry := _map_entry(field):
            item = one(entry["value"])
            return lambda message: {key: item(value) for key, value in getattr(message, name).items()}
        item = one(field)
        if _is_repeated(field):
            return lambda message: [item(value) for value in getattr(message, name)]
        if field.has_presence:
            return lambda message: item(getattr(message, name)) if message.HasField(name) else None
        return lambda message: item(getattr(message, name))

    fields = [(field.name, whole(field)) for field in descriptor.fields]
    return lambda message: {name: read(message) for name, read in fields}


def _map_entry(field: FieldDescriptor) -> Mapping[str, FieldDescriptor] | None:
    """Return the fields ``key`` and ``value`` of a field that is a map."""
    entry = field.message_type
    return entry.fields_by_name if entry is not None and entry.GetOptions().map_entry else None


def _is_repeated(field: FieldDescriptor) -> bool:
    # protobuf before 6.31 has only the label, which protobuf 7 no longer has.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)
