"""Payloads whose schemas a registry has: the subject of the registry, and the reader's schema."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jetstream.decoding import json_columns
from spark_jetstream.decoding.columns import Decoded, read_by
from spark_jetstream.decoding.json_schema import struct_of_json_schema
from spark_jetstream.decoding.registry import SchemaRegistry
from spark_jetstream.decoding.registry_client import KINDS, RegisteredSchema, RegistryClient
from spark_jetstream.errors import OptionError, SchemaError


def decoded_by_registry(
    format: str,
    schema: Any,
    registry: SchemaRegistry,
    subject: str | None,
    message: str | None,
    payload: Column,
    schema_id: Column,
) -> Decoded:
    """Return how to decode payloads to the fields of one schema, the reader's.

    It is ``schema``, or the latest version of ``subject`` in the registry. Raises `SchemaError` and
    `RegistryError`.
    """
    client = RegistryClient(registry)
    latest = None if subject is None else latest_of(client, subject, format)
    if format == "json":
        # JSON has the names of its fields: the writer's schema is not needed to read it.
        if latest is not None:
            schema = struct_of_json_schema(latest.text, f"schema {latest.id} of the registry")
        return json_columns.decoded({"": schema}, payload, F.lit(""))
    referenced = {} if latest is None else client.referenced(latest)
    if format == "avro":
        from spark_jetstream.decoding.avro import RegisteredAvroReader  # noqa: PLC0415

        if latest is not None:
            schema = latest.text
        texts = [other.text for other in referenced.values()]
        avro = RegisteredAvroReader(registry, schema, texts)
        return read_by(avro, payload, schema_id, schema_id.isNotNull())
    from spark_jetstream.decoding import descriptors  # noqa: PLC0415
    from spark_jetstream.decoding.protobuf import RegisteredProtobufReader  # noqa: PLC0415

    if latest is not None:
        descriptor = descriptors.registered_descriptor(latest, referenced, message)
    else:
        descriptor = descriptors.descriptor_of(schema, message, "argument schema")
    protobuf = RegisteredProtobufReader(registry, descriptor)
    return read_by(protobuf, payload, schema_id, schema_id.isNotNull())


def latest_of(client: RegistryClient, subject: str, format: str) -> RegisteredSchema:
    """Return the latest version of a subject.

    Raises `SchemaError` if there is none, or it is of another format.
    """
    latest = client.latest(subject)
    if latest.kind != KINDS[format]:
        raise SchemaError(
            f"argument format is {format}, but the schema of subject {subject} in the registry is "
            f"{latest.kind}",
        )
    return latest


def registry_subject_of(subject: str | None, registry_subject: str | None) -> str | None:
    """Return the subject of the registry that two arguments name, None without both.

    A subject of NATS stands for the one with ``-value`` at its end, as a topic of Kafka does
    (TopicNameStrategy). Raises `OptionError`.
    """
    if registry_subject is not None:
        if subject is not None:
            raise OptionError(
                "arguments subject and registry_subject exclude each other: both name the subject "
                "of the registry",
            )
        if not registry_subject:
            raise OptionError(
                "argument registry_subject is empty",
                option="registry_subject",
            )
        return registry_subject
    if subject is None:
        return None
    if not subject or {"*", ">"} & set(subject.split(".")):
        raise OptionError(
            f"argument subject must be a subject of NATS without wildcards, not {subject!r}: give "
            "registry_subject, the subject of the registry",
            option="subject",
        )
    return f"{subject}-value"
