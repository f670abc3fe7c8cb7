"""A reader's forms of the registry's schemas, by their ids: a task makes each once, or its fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from spark_jetstream.decoding.columns import PayloadFault
from spark_jetstream.decoding.registry_client import RegisteredSchema, RegistryClient
from spark_jetstream.errors import SchemaError

T = TypeVar("T")


class SchemasById(Generic[T]):
    """Keeps the results of a function of a registered schema of one kind.

    A fault stays as long as the object, which is one task: the registry may have the schema later.
    """

    def __init__(self, client: RegistryClient, kind: str) -> None:
        self._client = client
        self._kind = kind
        self._made: dict[str, T] = {}
        self._faults: dict[str, str] = {}

    def get(self, schema_id: str, make: Callable[[RegisteredSchema], T]) -> T:
        """Return what ``make`` returns for a schema.

        Raises `PayloadFault` if the registry lacks the schema, if it is of another kind, or if
        ``make`` raises `SchemaError`. Raises `RegistryError`.
        """
        if schema_id not in self._made and schema_id not in self._faults:
            try:
                self._made[schema_id] = make(self._schema(int(schema_id)))
            except SchemaError as error:
                self._faults[schema_id] = str(error)
        if schema_id in self._faults:
            raise PayloadFault(self._faults[schema_id])
        return self._made[schema_id]

    def _schema(self, schema_id: int) -> RegisteredSchema:
        schema = self._client.by_id(schema_id)
        if schema is None:
            raise SchemaError(f"the registry has no schema {schema_id}")
        if schema.kind != self._kind:
            raise SchemaError(f"schema {schema_id} of the registry is {schema.kind}")
        return schema
