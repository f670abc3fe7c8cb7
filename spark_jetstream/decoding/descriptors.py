"""Descriptors of Protobuf messages: from classes, descriptor sets, and a schema registry."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spark_jetstream.decoding.registry_client import RegisteredSchema
from spark_jetstream.errors import RegistryError, SchemaError

try:
    from google.protobuf.descriptor import (
        Descriptor,
        EnumDescriptor,
        FieldDescriptor,
        FileDescriptor,
    )
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        FileDescriptorProto,
        FileDescriptorSet,
    )
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise ModuleNotFoundError(
        "Protobuf needs the library protobuf: pip install 'spark-jetstream[protobuf]', on every node",
        name="google.protobuf",
    ) from error

__all__ = [
    "Descriptor",
    "EnumDescriptor",
    "FieldDescriptor",
    "GetMessageClass",
    "Message",
    "descriptor_of",
    "files_with",
    "messages_of",
    "place_of",
    "pool_of",
    "registered_descriptor",
]


def descriptor_of(schema: Any, message: str | None, where: str) -> Descriptor:
    """Return the descriptor of a message.

    ``schema`` is its class, or a descriptor set (bytes, or the path of a file) with ``message``, a
    full name or the last part of one. Raises `SchemaError`.
    """
    descriptor = getattr(schema, "DESCRIPTOR", None)
    if isinstance(descriptor, Descriptor):
        if message not in (None, descriptor.name, descriptor.full_name):
            raise SchemaError(
                f"argument message is {message!r}, but {where} is the class of "
                f"{descriptor.full_name}",
            )
        return descriptor
    if isinstance(schema, str | os.PathLike):
        try:
            content = Path(schema).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SchemaError(
                f"{where}: the descriptor set {os.fspath(schema)!r} cannot be read: {reason}",
            ) from None
    elif isinstance(schema, bytes | bytearray):
        content = bytes(schema)
    else:
        raise SchemaError(
            f"{where} must be the class of a Protobuf message or a descriptor set (bytes, or the "
            f"path of its file), but it is {schema!r}",
        )
    return _in_set(content, message, where)


def _in_set(content: bytes, message: str | None, where: str) -> Descriptor:
    """Return a message of a descriptor set. Raises `SchemaError`."""
    try:
        files = FileDescriptorSet.FromString(content).file
    except DecodeError:
        files = []
    if not files:
        raise SchemaError(
            f"{where} is no descriptor set: make one with protoc --include_imports "
            "--descriptor_set_out=FILE",
        )
    by_name = {file.name: file for file in files}
    pool = _pool(by_name, where)
    names = [name for file in files for name in _messages(file).values()]
    return pool.FindMessageTypeByName(_named(names, message, where))


def registered_descriptor(
    schema: RegisteredSchema,
    referenced: Mapping[str, RegisteredSchema],
    message: str | None,
) -> Descriptor:
    """Return a message of a registered schema: ``message``, or the first one of its file.

    Raises `SchemaError`, and `RegistryError` if the registry gives no descriptor.
    """
    where = f"schema {schema.id} of the registry"
    file = _file(schema)
    # A name that no import has.
    file.name = where
    files = {file.name: file}
    for name, other in referenced.items():
        files[name] = _file(other)
        files[name].name = name
    pool = _pool(files, where)
    names = list(_messages(file).values())
    if message is None and names:
        return pool.FindMessageTypeByName(names[0])
    return pool.FindMessageTypeByName(_named(names, message, where))


def messages_of(schema: RegisteredSchema) -> Mapping[tuple[int, ...], str]:
    """Return the full names of the messages of a registered schema by their places in its file.

    Raises `RegistryError` if the registry gives no descriptor.
    """
    return _messages(_file(schema))


def _file(schema: RegisteredSchema) -> FileDescriptorProto:
    try:
        content = base64.b64decode(schema.text, validate=True)
        return FileDescriptorProto.FromString(content)
    except (binascii.Error, ValueError, DecodeError):
        # No payload is to blame: the registry has answered in another format.
        raise RegistryError(
            f"argument registry: it answers schema {schema.id} without the descriptor of a Protobuf "
            "file: its API must have format=serialized, as those of Confluent and Karapace do",
        ) from None


def _messages(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    found: dict[tuple[int, ...], str] = {}

    def add(messages: Iterable[DescriptorProto], place: tuple[int, ...], prefix: str) -> None:
        for number, one in enumerate(messages):
            own = (*place, number)
            # The entry of a map is no message that a program writes, but it counts.
            if not one.options.map_entry:
                found[own] = f"{prefix}{one.name}"
            add(one.nested_type, own, f"{prefix}{one.name}.")

    add(file.message_type, (), f"{file.package}." if file.package else "")
    return found


def _named(names: list[str], message: str | None, where: str) -> str:
    listed = ", ".join(names) or "none"
    if message is None:
        raise SchemaError(f"argument message must name a message of {where}: {listed}")
    if message in names:
        return message
    # As Spark's from_protobuf does, which knows no nested ones by their short names.
    found = [name for name in names if name.rpartition(".")[2] == message]
    if len(found) != 1:
        problem = "several messages are called" if found else "there is no message"
        raise SchemaError(f"argument message: {problem} {message!r} in {where}: {listed}")
    return found[0]


def pool_of(files: Iterable[bytes]) -> DescriptorPool:
    """Return a pool of files, each of which stands after its imports."""
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file)
    return pool


def _pool(files: Mapping[str, FileDescriptorProto], where: str) -> DescriptorPool:
    """Return a pool of files by their names. Raises `SchemaError` if an import is missing."""
    ordered = _in_order(files, where)
    try:
        return pool_of(file.SerializeToString() for file in ordered)
    # Of another class in each implementation of the library.
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where} cannot be used: {error}") from None


def _in_order(
    files: Mapping[str, FileDescriptorProto],
    where: str,
) -> list[FileDescriptorProto]:
    """Return files, each after its imports, with the files of the library that they import."""
    ordered: list[FileDescriptorProto] = []
    seen: set[str] = set()

    def add(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        file = files.get(name)
        if file is None:
            file = _own_file(name, where)
        for imported in file.dependency:
            add(imported)
        ordered.append(file)

    for name in files:
        add(name)
    return ordered


def _own_file(name: str, where: str) -> FileDescriptorProto:
    """Return a file that comes with the library. Raises `SchemaError` if it lacks the file."""
    # Only some messages need them, and workers none.
    from google.protobuf import (  # noqa: PLC0415
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    modules = (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
    for module in modules:
        if name == module.DESCRIPTOR.name:
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise SchemaError(
        f"{where} imports {name}, which is missing: protoc --include_imports makes a descriptor "
        "set with all imports",
    )


def files_with(file: FileDescriptor) -> list[bytes]:
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


def place_of(descriptor: Descriptor) -> list[int]:
    """Return the indexes of a message and the messages around it, the outermost first.

    An index counts the messages of the file, or of the message around it.
    """
    outer = descriptor.containing_type
    if outer is None:
        names = list(descriptor.file.message_types_by_name)
        return [names.index(descriptor.name)]
    names = [message.name for message in outer.nested_types]
    return [*place_of(outer), names.index(descriptor.name)]
