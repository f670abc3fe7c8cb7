"""The base of all models: strict with people, open to servers. Pure.

`Model(...)`, `model_validate` and `parse` read what a user wrote: a misspelt field is refused with the name that was
meant, ranges are checked, durations may be text. `from_server` reads what a server said: nothing is checked but types,
and what this version does not know yet is kept in ``model_extra`` and sent back unchanged.

A field that nobody set has the server's default, and is not sent (``model_fields_set`` tells which are set). None means
"not set" everywhere. A user may write one item where a list is meant (``subjects: orders.>``), and a text for a part
that has a ``shorthand`` (``mirror: ORDERS``).

For a type checker a duration is `Nanoseconds` and a list a tuple: what is written otherwise goes through `parse`, or
through `Nanoseconds.of("10s")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from spark_jetstream.admin.models.fields import Count, String, hint
from spark_jetstream.errors import OptionError, ProtocolError
from spark_jetstream.options.values import TRUST, field_error, trusted
from spark_jetstream.protocol.units import shown

M = TypeVar("M", bound="Model")

SERVER_METADATA = "_nats."
"""What the keys of ``metadata`` begin with that the server writes. They are never sent."""

Check = tuple[Any, str]
"""Whether something is wrong, and what."""

_PART = "part"
_NEWER = "newer"
_KNOWN_FAULTS = "known faults"
_WORDS = {  # of pydantic, for what is wrong with a field as a whole -> our own
    "missing": "is required",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
}


class Model(BaseModel):
    """A configuration, or a reply. Immutable; `changed` makes another one."""

    shorthand: ClassVar[str] = ""
    """The field that a text stands for where a user writes one in place of this whole part; empty for none."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",  # `_refuse_unknown` lets only servers have any
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        json_schema_extra={"additionalProperties": False},
    )

    @classmethod
    def parse(cls: type[M], given: Mapping[str, Any], what: str, newer: Callable[[], bool] | None = None) -> M:
        """From what a user wrote. `OptionError` that begins with ``what`` and says all that is wrong in one line.

        ``newer`` is asked when there is an unknown field: whether the server is newer than this version. Such a server
        may have written the field, and itself refuses those that it does not know, so the field is kept.
        """
        try:
            return cls.model_validate(given, context={_NEWER: newer})
        except ValidationError as error:
            said = complaint(error)
        raise OptionError(f"{what}: {said}")

    @classmethod
    def from_server(cls: type[M], body: Mapping[str, Any], context: str = "read the server's reply") -> M:
        """From what a server said; ``context`` is an infinitive without "to".

        `ProtocolError` when a field is missing that the server always sends, or is of another type.
        """
        try:
            return cls.model_validate(body, context=TRUST)
        except ValidationError as error:
            said = complaint(error)
        raise ProtocolError(f"cannot {context}: {said}")

    def body(self) -> dict[str, Any]:
        """What is sent to a server: the fields that are set, unknown ones included, without the server's metadata."""
        return _own(self.model_dump(mode="json", exclude_unset=True))

    def changed(self: M, **changes: Any) -> M:
        """A copy with other values, checked like those of a user; None takes a field back to its default.

        `pydantic.ValidationError` when a change is not allowed, or does not fit to the other fields. What did not fit
        before is no fault of the change.
        """
        required = {name: getattr(self, name) for name, field in type(self).model_fields.items() if field.is_required()}
        given = {name: value for name, value in changes.items() if value is not None}
        checked = type(self).model_validate({**required, **changes}, context={_PART: True})
        kept = {name: getattr(self, name) for name in self.model_fields_set if name not in changes}
        taken = {name: getattr(checked, name) for name in given}
        return type(self).model_validate({**kept, **taken}, context={**TRUST, _KNOWN_FAULTS: self.faults()})

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of all fields, and of those that only a newer server knows."""
        return (*type(self).model_fields, *(self.model_extra or {}))

    def faults(self) -> list[str]:
        """Return what is wrong with fields that do not fit together, in words."""
        return [message for is_wrong, message in self._checks() if is_wrong]

    def _checks(self) -> Iterator[Check]:
        """Yield what a server refuses in any case, or silently does otherwise."""
        return iter(())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any, info: ValidationInfo) -> Any:
        if not trusted(info) and cls.shorthand and isinstance(data, str):
            data = {cls.shorthand: data}
        if not isinstance(data, Mapping):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        if trusted(info):
            return given
        names = tuple(cls.model_fields)
        unknown = [f"{shown(name)}{hint(str(name), names)}" for name in data if name not in cls.model_fields]
        newer = (info.context or {}).get(_NEWER)
        if unknown and not (newer is not None and newer()):
            raise field_error("unknown_field", f"there is no field {', '.join(unknown)}")
        return {name: cls._listed(name, value) for name, value in given.items()}

    @classmethod
    def _listed(cls, name: str, value: Any) -> Any:
        """The value of a field as a user means it: a single item of a list is one."""
        field = cls.model_fields.get(name)
        if field is None or get_origin(field.annotation) is not tuple or not isinstance(value, (str, Mapping, Model)):
            return value
        if isinstance(value, str) and "," in value:
            raise field_error("contradiction", f"{name} must be a list, not a text with commas such as {shown(value)}")
        return (value,)

    @model_validator(mode="after")
    def _refuse_contradictions(self: M, info: ValidationInfo) -> M:
        context = info.context or {}
        known = context.get(_KNOWN_FAULTS)
        checked = known is not None or not (trusted(info) or context.get(_PART))
        found = [each for each in self.faults() if each not in (known or ())] if checked else []
        if found:
            raise field_error("contradiction", "; ".join(found))
        return self


class Reply(Model):
    """A reply of the JetStream API."""

    type: String = ""
    """Which kind of reply this is: ``io.nats.jetstream.api.v1.`` and its name."""


class Page(Reply):
    """One part of a long list; the next one begins at ``offset`` and what this one has."""

    total: Count = 0
    """How many there are in all."""
    offset: Count = 0
    """How many were passed over."""
    limit: Count = 0
    """How many a page can have."""


def complaint(error: ValidationError) -> str:
    """All that is wrong, in one line that names the fields and repeats no more of the input than they do."""
    return "; ".join(_complaints(error))


def _complaints(error: ValidationError) -> Iterator[str]:
    for each in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in each["loc"] if part != "[key]")
        words = _WORDS.get(each["type"], each["msg"])
        if each["type"] in {"unknown_field", "contradiction"}:
            yield f"in {where}, {words}" if where else words
        else:
            yield f"{where} {words}".strip()


def without_server_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata without what the server wrote."""
    return {key: value for key, value in metadata.items() if not key.startswith(SERVER_METADATA)}


def _own(body: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without what the server wrote into ``metadata``."""
    metadata = without_server_metadata(body.get("metadata", {}))
    rest = {name: value for name, value in body.items() if name != "metadata"}
    return {**rest, "metadata": metadata} if metadata else rest
