"""The base of all models: strict with users, open to servers. Pure.

`Model(...)`, `model_validate` and `parse` read what a user wrote: they refuse a misspelt field and
name the one that is like it, check ranges, and take durations as text. `from_server` reads what a
server sent: it checks types alone, and keeps fields that this version does not know in
``model_extra``, which is sent back unchanged. One validator does it all, `Model._parse_user`; the
context says what is read.

A field that is not set has the server's default and is not sent (``model_fields_set`` has those
that are set). None means "not set" everywhere. A user may write one item in place of a list
(``subjects: orders.>``), and a text in place of a part that has a ``shorthand`` (``mirror:
ORDERS``).

For a type checker a duration is `Nanoseconds` and a list is a tuple. Other forms go through
`parse`, or through `Nanoseconds.of("10s")`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from spark_jetstream.errors import OptionError, ProtocolError, closest
from spark_jetstream.options.names import Subject
from spark_jetstream.options.values import (
    TRUST,
    UINT64_MAX,
    Flag,
    Octets,
    Size,
    Span,
    Text,
    When,
    Whole,
    field_error,
    trusted,
)
from spark_jetstream.protocol.conventions import PURGE, RUN, SINCE
from spark_jetstream.protocol.units import Bytes, Nanoseconds, Timestamp, shown

if TYPE_CHECKING:
    from pydantic import ModelWrapValidatorHandler  # pydantic 2.10

Boolean = Annotated[bool, Flag()]
String = Annotated[str, Text()]
Count = Annotated[int, Whole()]
Sequence64 = Annotated[int, Whole(0, UINT64_MAX)]
Time = Annotated[Timestamp, When()]
Duration = Annotated[Nanoseconds, Span()]
Content = Annotated[bytes, Octets()]
Volume = Annotated[Bytes, Size()]
OptionalSubject = Annotated[str, Subject(optional=True)]

M = TypeVar("M", bound="Model")

QUERY_METADATA = frozenset({RUN, SINCE, PURGE})
"""The keys by which a Spark query marks the consumer that keeps its position (option `durable`)."""

Check = tuple[Any, str]
"""Whether something is wrong, and what."""

# Keys of pydantic's context: whether the server is newer, and the model that `changed` copies.
_NEWER = "newer"
_BASE = "base"
_MESSAGES = {  # by pydantic's type of error
    "missing": "is required",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
}


@functools.cache
def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings of the fields of a model, from its source.

    A field without a docstring is left out.
    """
    # Not pydantic's `use_attribute_docstrings`, which reads the sources of all models when they are
    # imported. That takes a command longer than everything else that it does with them.
    docs: dict[str, str] = {}
    for base in model.__bases__:
        if issubclass(base, Model):
            docs |= field_docs(base)
    source = _classes(model.__module__).get(model.__name__)
    if source is None:
        return docs
    # The docstring of a field is the statement after it.
    for pair in itertools.pairwise(source.body):
        match pair:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs


@functools.cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module by name; none for a module without its source."""
    # Not `inspect.getsource` of a class, which reads the module by `ast` to find it, and then its
    # tokens one by one: 50 ms of the 0.43 s of `stream add --help`.
    with contextlib.suppress(OSError, TypeError):
        body = ast.parse(inspect.getsource(sys.modules[module])).body
        return {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    return {}


class Model(BaseModel):
    """A configuration, or a reply. Immutable; `changed` makes another one."""

    shorthand: ClassVar[str] = ""
    """The field that is set where a user writes a text in place of this part; empty for none."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",  # `_as_meant` lets only servers have any
        hide_input_in_errors=True,
    )

    @classmethod
    def parse(
        cls: type[M],
        given: Mapping[str, Any],
        what: str,
        newer: Callable[[], bool] | None = None,
    ) -> M:
        """Return the model of what a user wrote.

        Raises `OptionError`, one line that begins with ``what``.

        ``newer`` is asked when there is an unknown field: whether the server is newer than this
        version. A newer server may have written the field, and itself refuses fields that it does
        not know, so the field is kept.
        """
        try:
            return cls.model_validate(given, context={_NEWER: newer})
        except ValidationError as error:
            raise OptionError(f"{what}: {complaint(error)}") from None

    @classmethod
    def from_server(
        cls: type[M],
        body: Mapping[str, Any],
        context: str = "read the server's reply",
    ) -> M:
        """Return the model of what a server sent; ``context`` is an infinitive without "to".

        Raises `ProtocolError` when a field that the server always sends is missing, or a field is
        of another type.
        """
        try:
            return cls.model_validate(body, context=TRUST)
        except ValidationError as error:
            raise ProtocolError(f"cannot {context}: {complaint(error)}") from None

    def body(self) -> dict[str, Any]:
        """Return the body of a request: the fields that are set, with `users_metadata`.

        Fields that only a newer server knows are included.
        """
        # A field that is not set has the server's default. An older server refuses fields that it
        # does not know, so they are not sent.
        body = self.model_dump(mode="json", exclude_unset=True)
        # The server writes the keys of `_nats.` itself.
        metadata = users_metadata(body.pop("metadata", {}))
        return {**body, "metadata": metadata} if metadata else body

    def changed(self: M, **changes: Any) -> M:
        """Return a copy with other values, which are checked like those of a user.

        None takes a field back to its default. Raises `pydantic.ValidationError` when a change is
        not allowed, or does not fit to the other fields. Faults that the model already had do not
        count.
        """
        values = {}
        # pydantic wants the required fields. `_completed` adds the others as they are: a value of a
        # server need not pass the checks for users.
        for name, field in type(self).model_fields.items():
            if field.is_required():
                values[name] = getattr(self, name)
        values |= changes
        return type(self).model_validate(values, context={_BASE: self})

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of all fields, also of fields that only a newer server knows."""
        return (*type(self).model_fields, *(self.model_extra or {}))

    def faults(self) -> list[str]:
        """Return what is wrong with fields that do not fit together, in words."""
        return [message for is_wrong, message in self._checks() if is_wrong]

    def _checks(self) -> Iterator[Check]:
        """Yield what a server silently does otherwise, or refuses without the name of the field."""
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _parse_user(
        cls: type[M],
        data: Any,
        read: ModelWrapValidatorHandler[M],
        info: ValidationInfo,
    ) -> M:
        """Read what a user wrote, and check it once: names, values, and how they fit together.

        In the data of a server only the types are checked. In the context, `_BASE` is the model
        that `changed` copies.
        """
        context = info.context or {}
        from_user = not trusted(info)
        if from_user:
            data = cls._as_meant(data, context.get(_NEWER))
        if not isinstance(data, Mapping):
            return read(data)
        # None means "not set" everywhere.
        model = read({name: value for name, value in data.items() if value is not None})
        if from_user:
            model = cls._completed(model, context.get(_BASE), data)
        return model

    @classmethod
    def _completed(cls: type[M], model: M, base: object, data: Mapping[str, Any]) -> M:
        """Return a model with the fields of ``base`` that ``data`` does not change.

        Raises pydantic's error for faults that ``base`` does not have.
        """
        known: set[str] = set()
        if isinstance(base, cls) and type(base) is cls:
            # A fault that the model had before is not one of this change.
            known = set(base.faults())
            kept = base.model_fields_set - data.keys()
            model = model.model_copy(update={name: getattr(base, name) for name in kept})
        faults = [fault for fault in model.faults() if fault not in known]
        if faults:
            raise field_error("contradiction", "; ".join(faults))
        return model

    @classmethod
    def _as_meant(cls, data: Any, newer: Callable[[], bool] | None) -> Any:
        """Return the fields that a user means: `shorthand` is one field, a single item a list."""
        if cls.shorthand and isinstance(data, str):
            data = {cls.shorthand: data}
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        unknown = [name for name in data if name not in fields]
        # The question costs a request, so it comes only for an unknown field.
        if unknown and not _is_newer(newer):
            raise _unknown_fields(unknown, fields)
        meant = dict(data)
        for name in data.keys() & fields.keys():
            if get_origin(fields[name].annotation) is tuple:
                meant[name] = _as_list(name, data[name])
        return meant


def _is_newer(newer: Callable[[], bool] | None) -> bool:
    """Return whether the server may have written a field that this version does not know."""
    return newer is not None and newer()


def _unknown_fields(names: Iterable[Any], known: Iterable[str]) -> Exception:
    """Return the error for fields that a model does not have."""
    listed = ", ".join(f"{shown(name)}{hint(str(name), known)}" for name in names)
    return field_error("unknown_field", f"there is no field {listed}")


def _as_list(name: str, value: Any) -> Any:
    """Return the value of a field that is a list; a single item is a list of one."""
    if not isinstance(value, (str, Mapping, Model)):
        return value
    if isinstance(value, str) and "," in value:
        problem = f"{name} must be a list, not a text with commas such as {shown(value)}"
        raise field_error("contradiction", problem)
    return (value,)


class Reply(Model):
    """A reply of the JetStream API."""

    type: String = ""
    """Which kind of reply this is: ``io.nats.jetstream.api.v1.`` and its name."""


class Page(Reply):
    """One part of a long list.

    The next one begins at ``offset`` plus the number of entries here.
    """

    total: Count = 0
    """How many entries there are in all."""
    offset: Count = 0
    """How many entries come before those of this page."""
    limit: Count = 0
    """How many entries a page can have."""


def complaint(error: ValidationError) -> str:
    """Return all that is wrong, in one line."""
    problems = []
    for problem in error.errors(include_url=False, include_input=False):
        # pydantic marks an error of a key in a mapping by [key].
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        message = _MESSAGES.get(problem["type"], problem["msg"])
        if where and problem["type"] in {"unknown_field", "contradiction"}:
            message = f"in {where}, {message}"
        elif where:
            message = f"{where} {message}"
        problems.append(message)
    return "; ".join(problems)


def users_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata without that of servers and Spark queries.

    No user changes it, or gives it to a copy.
    """
    own = {}
    for key, value in metadata.items():
        if not key.startswith("_nats.") and key not in QUERY_METADATA:
            own[key] = value
    return own


def hint(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean ...?)`` when a name looks like a mistyped one of these, else ""."""
    match = closest(name, known)
    return f" (did you mean {match}?)" if match else ""


def readable(value: Any) -> str:
    """A value for people: ``1h30m``, ``1GiB``, JSON for values with parts."""
    if value is None or value in ((), {}, ""):
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Model, tuple, dict)):
        return json.dumps(_rendered(value), ensure_ascii=False)
    return str(value)


def rendered(model: Model) -> dict[str, Any]:
    """The fields that are set, for people: durations and sizes are text.

    `Model.parse` reads that text again.
    """
    return {name: _rendered(value) for name, value in model.model_dump(exclude_unset=True).items()}


def _rendered(value: Any) -> Any:
    if isinstance(value, Model):
        return rendered(value)
    if isinstance(value, (tuple, list)):
        return [_rendered(item) for item in value]
    if isinstance(value, dict):
        return {name: _rendered(field) for name, field in value.items()}
    # Durations, sizes and times are subclasses of int and str.
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, int) and value < 0:
        # There is no text for a negative duration.
        return int(value)
    return str(value)
