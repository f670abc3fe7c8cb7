"""Protobuf messages, written by the library protobuf from the descriptor of their message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.descriptors import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    GetMessageClass,
    Message,
    files_with,
    pool_of,
)
from spark_jetstream.decoding.protobuf import TIMESTAMP, is_repeated, map_entry, message_type

# Sets a field of a message, which the first argument is.
_Setter = Callable[[Any, Any], None]


class ProtobufWriter:
    """Writes rows as messages of one descriptor. A null leaves its field unset.

    Raises `SchemaError` if the message has a type that Spark lacks.
    """

    def __init__(self, descriptor: Descriptor, where: str) -> None:
        self._name: str = descriptor.full_name
        self.fields: pa.StructType = message_type(descriptor, where)
        self._files = files_with(descriptor.file)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the class of the message in a worker, in a pool of its own."""
        vars(self).update(state)
        descriptor = pool_of(self._files).FindMessageTypeByName(self._name)
        self._message = GetMessageClass(descriptor)
        self._fill = _fill(descriptor)

    def is_optional(self, path: str) -> bool:
        """Return True: a field that is not set has its default."""
        return True

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Return a message. Raises what protobuf raises."""
        message: Message = self._message()
        self._fill(message, row)
        payload: bytes = message.SerializeToString()
        return payload


def _fill(descriptor: Descriptor) -> _Setter:
    """Return a function that sets the fields of a message from a mapping."""
    setters = {field.name: _field_setter(field) for field in descriptor.fields}
    choices = {
        field.name: field.containing_oneof.name
        for field in descriptor.fields
        if field.containing_oneof is not None
    }

    def fill(message: Message, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if value is None:
                continue
            # A second field of a oneof would remove the first one.
            other = message.WhichOneof(choices[name]) if name in choices else None
            if other is not None:
                raise ValueError(
                    f"{other} and {name} are fields of oneof {choices[name]}, and neither is null",
                )
            setters[name](message, value)

    return fill


def _field_setter(field: FieldDescriptor) -> _Setter:
    name = field.name
    entry = map_entry(field)
    if entry is not None:
        return _map_setter(name, entry["key"], entry["value"])
    is_message = field.message_type is not None
    if is_message:
        set_message = _message_setter(field)
    else:
        scalar = _scalar(field)

    def set_repeated(message: Message, items: list[Any]) -> None:
        for item in items:
            if is_message:
                set_message(getattr(message, name).add(), item)
            else:
                getattr(message, name).append(scalar(item))

    def set_one(message: Message, value: Any) -> None:
        if is_message:
            part = getattr(message, name)
            # A message without a field that is set is another than none.
            part.SetInParent()
            set_message(part, value)
        else:
            setattr(message, name, scalar(value))

    return set_repeated if is_repeated(field) else set_one


def _map_setter(name: str, key_field: FieldDescriptor, value_field: FieldDescriptor) -> _Setter:
    key_of = _scalar(key_field)
    if value_field.message_type is not None:
        set_message = _message_setter(value_field)

        def set_messages(message: Message, values: Mapping[Any, Any]) -> None:
            for key, value in values.items():
                set_message(getattr(message, name)[key_of(key)], value)

        return set_messages
    scalar = _scalar(value_field)

    def set_scalars(message: Message, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            getattr(message, name)[key_of(key)] = scalar(value)

    return set_scalars


def _message_setter(field: FieldDescriptor) -> _Setter:
    """Return a function that fills a message of a field; a null raises `TypeError`."""
    if field.message_type.full_name == TIMESTAMP:
        fill: _Setter = _set_timestamp
    else:
        fill = _fill(field.message_type)

    def fill_or_raise(part: Any, value: Any) -> None:
        if value is None:
            raise TypeError(f"an item of field {field.full_name} is null")
        fill(part, value)

    return fill_or_raise


def _set_timestamp(part: Any, value: Any) -> None:
    part.FromDatetime(value)


def _scalar(field: FieldDescriptor) -> Callable[[Any], Any]:
    """Return a function that makes a value of the library of one of Arrow."""
    if field.enum_type is not None:
        return _enum_number(field.enum_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        # A decimal to Spark, which has no unsigned integers.
        return int
    return _unchanged


def _enum_number(enum: EnumDescriptor) -> Callable[[str], int]:
    numbers: dict[str, int] = {name: value.number for name, value in enum.values_by_name.items()}

    def number_of(name: str) -> int:
        number = numbers.get(name)
        if number is not None:
            return number
        # `decode` shows a number without a name as itself.
        if name.lstrip("-").isdigit():
            return int(name)
        listed = ", ".join(numbers)
        raise ValueError(f"{name!r} is no name of {enum.full_name} ({listed})")

    return number_of


def _unchanged(value: Any) -> Any:
    return value
