"""Schemas of a schema registry: by id, by subject, looked up and registered (Confluent's HTTP API)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from spark_jetstream.decoding.registry import SchemaRegistry
from spark_jetstream.decoding.registry_http import HttpAnswer, RegistryHttp
from spark_jetstream.errors import RegistryError, SchemaError

# Numbers of errors, of Confluent's registry and of Karapace.
_NO_SUBJECT = 40401
_NO_VERSION = 40402
_NO_SCHEMA = 40403
_ABSENT = (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA)

#: The registry's names of the formats. Its answers leave out that of Avro.
KINDS = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


class SchemaReference(NamedTuple):
    """A reference of a schema to another one, by the name that the schema calls it."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema of the registry; the text of a Protobuf schema is a FileDescriptorProto in Base64."""

    id: int
    kind: str
    text: str
    references: tuple[SchemaReference, ...]


# The schema of an id or a version never changes. A worker of Spark runs many tasks, and
# asks once for each.
_SCHEMAS_BY_ID: dict[tuple[SchemaRegistry, int], RegisteredSchema] = {}
_IDS_BY_VERSION: dict[tuple[SchemaRegistry, str, int], int] = {}


class RegistryClient:
    """The requests of `decode` and `encode` to a registry.

    Schemas by id and by version stay in the memory of this process. Each method raises
    `RegistryError` for an outage, a refused login, and an answer that no registry gives.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._http = RegistryHttp(registry)

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id, None if the registry does not know the id."""
        known = _SCHEMAS_BY_ID.get((self._registry, schema_id))
        if known is not None:
            return known
        # A parser of .proto files is not needed this way; other formats are not changed by it.
        path = f"/schemas/ids/{schema_id}?format=serialized"
        answer = self._http.ask(path)
        if answer.status == 404 and answer.error_code == _NO_SCHEMA:
            return None
        content = self._object(path, answer)
        found = RegisteredSchema(
            schema_id,
            self._text(path, content.get("schemaType") or "AVRO"),
            self._text(path, content.get("schema")),
            self._references(path, content.get("references") or []),
        )
        _SCHEMAS_BY_ID[self._registry, schema_id] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject. Raises `SchemaError` if there is none."""
        return self._version(subject, "latest")

    def id_and_version(
        self,
        subject: str,
        kind: str,
        text: str,
        references: tuple[SchemaReference, ...],
        *,
        register: bool,
    ) -> tuple[int, int]:
        """Return the id and the version of a schema of a subject; with ``register`` register it.

        A schema that is registered already keeps both. Raises `SchemaError` if the registry does
        not have the schema, or refuses it.
        """
        body: dict[str, Any] = {"schema": text, "schemaType": kind}
        if references:
            body["references"] = [reference._asdict() for reference in references]
        path = _subject_path(subject)
        if register:
            answer = self._http.ask(f"{path}/versions", body)
            if answer.status in (409, 422):
                raise SchemaError(
                    f"argument register: {self._registry.url} refuses the schema for subject "
                    f"{subject}: {answer.message}",
                )
            self._id(f"{path}/versions", self._object(f"{path}/versions", answer))
        answer = self._http.ask(path, body)
        if answer.status == 404 and answer.error_code in _ABSENT:
            raise SchemaError(
                f"argument registry: {self._registry.url} does not have argument schema under "
                f"subject {subject}: register it (register=True), or leave out argument schema to "
                "write by the latest version",
            )
        if answer.status == 422:
            raise SchemaError(
                f"argument schema: {self._registry.url} cannot read it: {answer.message}",
            )
        content = self._object(path, answer)
        version = content.get("version")
        if type(version) is not int:
            raise self._malformed(path, "JSON without a version")
        return self._id(path, content), version

    def referenced(self, schema: RegisteredSchema) -> dict[str, RegisteredSchema]:
        """Return the schemas that a schema refers to, by name, each after those it refers to.

        Raises `SchemaError` if one is missing.
        """
        found: dict[str, RegisteredSchema] = {}

        def add(one: RegisteredSchema) -> None:
            for reference in one.references:
                if reference.name not in found:
                    other = self._version(reference.subject, reference.version)
                    add(other)
                    found[reference.name] = other

        add(schema)
        return found

    def _version(self, subject: str, version: int | str) -> RegisteredSchema:
        known = (
            _IDS_BY_VERSION.get((self._registry, subject, version))
            if isinstance(version, int)
            else None
        )
        schema_id = known or self._id_of(subject, version)
        found = self.by_id(schema_id)
        if found is None:
            raise SchemaError(
                f"argument registry: subject {subject} has the schema {schema_id} in version "
                f"{version}, which {self._registry.url} does not have",
            )
        if isinstance(version, int):
            _IDS_BY_VERSION[self._registry, subject, version] = schema_id
        return found

    def _id_of(self, subject: str, version: int | str) -> int:
        path = f"{_subject_path(subject)}/versions/{version}"
        answer = self._http.ask(path)
        if answer.status == 404 and answer.error_code in _ABSENT:
            raise SchemaError(
                f"argument registry: {self._registry.url} has no subject {subject} with version "
                f"{version}: register a schema, or give the right registry_subject",
            )
        return self._id(path, self._object(path, answer))

    def _object(self, path: str, answer: HttpAnswer) -> Mapping[str, Any]:
        if answer.status >= 300:
            raise self._malformed(path, f"{answer.status} ({answer.message})")
        if not isinstance(answer.content, dict):
            raise self._malformed(path, "JSON that is no object")
        return answer.content

    def _id(self, path: str, content: Mapping[str, Any]) -> int:
        schema_id = content.get("id")
        # JSON's true is an int to Python; an id has four bytes in front of a payload.
        if type(schema_id) is not int or not 0 <= schema_id < 2**32:
            raise self._malformed(path, "JSON without an id")
        return schema_id

    def _text(self, path: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._malformed(path, "JSON without the text of a schema")
        return value

    def _references(self, path: str, listed: object) -> tuple[SchemaReference, ...]:
        problem = self._malformed(path, "references of another form")
        if not isinstance(listed, list):
            raise problem
        references = []
        for one in listed:
            if not isinstance(one, dict):
                raise problem
            reference = SchemaReference(one.get("name"), one.get("subject"), one.get("version"))  # type: ignore[arg-type]  # checked below
            kinds = tuple(type(part) for part in reference)
            if kinds != (str, str, int):
                raise problem
            references.append(reference)
        return tuple(references)

    def _malformed(self, path: str, what: str) -> RegistryError:
        return RegistryError(
            f"argument registry: {self._registry.url} answers the request {path} with {what}: "
            "check the URL, with its path",
        )


def _subject_path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"
