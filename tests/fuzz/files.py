"""Targets that read texts of users: options, contexts, credentials, descriptions, schemas, backups."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from spark_jetstream.admin.backup_files import DATA, MANIFEST, META, Framing, checked, opened
from spark_jetstream.admin.descriptions import json_document, wanted_in, yaml_documents
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.decoding.avro import AvroReader
from spark_jetstream.decoding.descriptors import (
    descriptor_of,
    messages_of,
    registered_descriptor,
)
from spark_jetstream.decoding.json_schema import struct_of_json_schema
from spark_jetstream.decoding.registry_client import RegisteredSchema
from spark_jetstream.errors import BackupError, OptionError, SchemaError
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.options.contexts import context_options, environment_options
from spark_jetstream.protocol.json_text import json_object
from tests.fuzz.engine import target
from tests.fuzz.mutations import change_bytes, change_json

_PLACE = tempfile.TemporaryDirectory(prefix="fuzz-")
_SECRETS = ("password", "token", "credentialsSecret", "jwtSecret", "nkeySeedSecret", "tlsKeySecret")
_LOGINS = (
    b'"servers":"nats://u:p@h:4222"',
    b'"user":"u"',
    b'"token":"t"',
    b"env://HOME",
    b"file://~/x",
    b"data:;base64,eA==",
)
_BLOCK = tarfile.BLOCKSIZE


def _written(name: str, data: bytes) -> Path:
    path = Path(_PLACE.name) / name
    path.write_bytes(data)
    return path


def _texts(data: bytes) -> dict[str, str]:
    try:
        body = json_object(data)
    except ValueError as error:
        raise OptionError(str(error)) from None
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in body.items()
    }


def _keeps_secrets(given: dict[str, str], work: Callable[[], Any]) -> Any:
    """Return the result of a function.

    Its error, and the repr of its result, show no secret, unless an option that is no secret
    contains the same text.
    """
    open_text = json.dumps({key: value for key, value in given.items() if key not in _SECRETS})
    secrets = [
        value
        for key, value in given.items()
        if key in _SECRETS and len(value) > 7 and value not in open_text
    ]
    try:
        found = work()
        shown = repr(found)
    except OptionError as error:
        shown = str(error)
        assert error.__context__ is None or error.__suppress_context__
        assert not [secret for secret in secrets if secret in shown], shown
        raise
    assert not [secret for secret in secrets if secret in shown], shown
    return found


def _connect(given: ConnectionOptions) -> None:
    connect_arguments(given)


@target(
    "options",
    *_LOGINS,
    b'"stream":"ORDERS"',
    b'"bucket":"B"',
    b'{"ORDERS": 1}',
    b'"domain":"hub"',
    mutate=change_json,
)
def options(data: bytes) -> None:
    """Options as Spark hands them over, for each side and both kinds of queries."""
    given = {key: value for key, value in _texts(data).items() if key.lower() != "context"}
    for make in (
        lambda: ConnectionOptions.from_spark(given),
        *(lambda side=side, streaming=streaming: side.from_spark(given, streaming=streaming)
          for side in (SourceOptions, SinkOptions) for streaming in (False, True)),
    ):  # fmt: skip
        try:
            read = _keeps_secrets(given, make)
        except OptionError:
            continue
        assert pickle.loads(pickle.dumps(read)) == read
        connection = getattr(read, "connection", read)
        try:
            _keeps_secrets(given, partial(_connect, connection))
        except OptionError:
            continue
    try:
        environment_options(given)
    except OptionError:
        return


@target(
    "context",
    *_LOGINS,
    b'"url":"nats://127.0.0.1:4222"',
    b'"creds":"~/a.creds"',
    b'"nkey":"~\\u0000"',
    mutate=change_json,
)
def context(data: bytes) -> None:
    """The file of a context of the ``nats`` command."""
    path = str(_written("context.json", data))
    _keeps_secrets({}, lambda: ConnectionOptions.from_spark({"context": path}))
    assert all(isinstance(value, str) for value in context_options(path).values())


_MARKS = (
    b"BEGIN NATS USER JWT-----\n",
    b"-END USER NKEY SEED------\n",
    b"BEGIN CERTIFICATE-----\n",
    b"END PRIVATE KEY-----\n",
)


@target("credentials", *(b"-----" + mark for mark in _MARKS), b"\xef\xbb\xbf", b"\r\n", b"=")
def credentials(data: bytes) -> None:
    """Credentials, seeds, certificates, keys, as files and inline: arguments for nats-py, or an
    error without them.
    """
    path, text = str(_written("secret", data)), data.decode("utf-8", "replace")
    words = set(re.findall(r"[\w+/=.-]{16,}", text))
    for given in (
        {"credentialsFile": path}, {"credentialsSecret": text}, {"nkeySeedFile": path}, {"nkeySeedSecret": text},
        {"jwtFile": path}, {"jwtSecret": text},
        {"tlsCaFile": path}, {"tlsCaPem": text}, {"tlsCertPem": text, "tlsKeySecret": text},
        {"tlsCertFile": path, "tlsKeyFile": path},
    ):  # fmt: skip
        try:
            arguments = connect_arguments(ConnectionOptions.from_spark(given))
        except OptionError as error:
            said = str(error).replace(path, "")
            assert not [word for word in words if word in said], said
            continue
        if "user_credentials" in arguments and not isinstance(arguments["user_credentials"], str):
            assert not [word for word in words if word in repr(arguments["user_credentials"])]


@target(
    "description",
    b'"name":"ORDERS"',
    b"subjects: [a.>]\n",
    b"---\n",
    b"&a [*a]",
    b"!!python/object",
    b"1e999",
    mutate=change_json,
)
def description(data: bytes) -> None:
    """Descriptions of streams, as JSON and as YAML."""
    text = data.decode("utf-8", "replace")
    for read in (json_document, yaml_documents):
        try:
            found = read(text, "file")
            list(wanted_in(found if read is yaml_documents else [found], "file"))
        except OptionError as error:
            assert str(error).startswith("file")


# Schemas


@target(
    "schemas",
    b'"type":"object"',
    b'"properties":{"a":{"type":"integer"}}',
    b'"$ref":"#/definitions/A"',
    b'"oneOf":[{"type":"null"}]',
    b'"type":"record","name":"R"',
    b'"logicalType":"decimal","precision":3',
    b'["null","long"]',
    mutate=change_json,
)
def schemas(data: bytes) -> None:
    """Schemas of users and of a schema registry: of JSON, Avro and Protobuf."""
    text = data.decode("utf-8", "replace")
    registered = RegisteredSchema(1, "PROTOBUF", base64.b64encode(data).decode(), ())
    for read in (
        partial(struct_of_json_schema, text, "the schema"),
        partial(AvroReader, {"": text}),
        partial(messages_of, registered),
        partial(registered_descriptor, registered, {}, None),
        partial(descriptor_of, data, "A", "the schema"),
    ):
        with contextlib.suppress(SchemaError):
            read()


# Backups


def _signed(data: bytes) -> bytes:
    """A tar file in which each block that could be a header has the checksum of one."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)]
    return b"".join(map(_checksummed, blocks))


def _checksummed(block: bytes) -> bytes:
    if block[257:262] != b"ustar":
        return block
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def _change_tar(random: Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """Change bytes inside of one block or two, and keep the others in their places."""
    if random.random() < 0.2:
        return change_bytes(random, data, other, words)
    for _ in range(random.randint(1, 2)):
        at = random.randrange(max(1, len(data) // _BLOCK)) * _BLOCK
        block = change_bytes(random, data[at : at + _BLOCK], other[at : at + _BLOCK], words)
        data = data[:at] + block[:_BLOCK].ljust(_BLOCK, b"\0") + data[at + _BLOCK :]
        if random.random() < 0.2:
            data = data[:at] + other[at : at + _BLOCK] + data[at:]
    return data


def _restored(path: Path) -> None:
    """Open a backup and read all of its data."""
    with opened(path) as saved:
        size = saved.size
        checked(saved)
        assert saved.data.tell() == 0
        assert len(saved.data.read(size + 1)) == size


@target(
    "tar",
    b"ustar\x0000",
    b"20 path=backup.json\n",
    b"GNU.sparse.size=9\n",
    b"././@LongLink",
    b"\0" * 12,
    mutate=_change_tar,
)
def tar(data: bytes) -> None:
    """A single file, its checksums repaired: members, PAX headers, sparse files, long names."""
    _restored(_written("b.tar", _signed(data)))


@target(
    "backup",
    b'"version":1',
    b'"stream":"S"',
    b"\xff\x06\x00\x00S2sTwO",
    b"NATSARC1",
    mutate=change_json,
)
def backup(data: bytes) -> None:
    """A directory: its descriptions as JSON, its data in hexadecimal digits.

    Checksums that are empty are filled in.
    """
    try:
        body = json_object(data)
        content = bytes.fromhex(body["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(str(error)) from None
    folder = Path(_PLACE.name) / "backup"
    folder.mkdir(exist_ok=True)
    meta = json.dumps(body.get("meta")).encode("utf-8", "surrogatepass")
    manifest = body.get("manifest")
    if isinstance(manifest, dict):
        for name, of in (("data_sha256", content), ("meta_sha256", meta)):
            manifest[name] = manifest.get(name) or hashlib.sha256(of).hexdigest()
    (folder / META).write_bytes(meta)
    (folder / DATA).write_bytes(content)
    (folder / MANIFEST).write_bytes(json.dumps(manifest).encode())
    if manifest is None:
        os.unlink(folder / MANIFEST)
    _restored(folder)


@target(
    "framing",
    b"\xff\x06\x00\x00S2sTwO",
    b"NATSARC1",
    b"\x01\x0d\x00\x00",
    b"\x80\x00\x00\x00",
    b"meta.inf",
)
def framing(data: bytes) -> None:
    """The data of a backup, whole and byte by byte: the same kind and size, or both times an error."""

    def followed(pieces: list[bytes]) -> Any:
        frames = Framing("x")
        try:
            for piece in pieces:
                frames.feed(piece)
            return frames.finish(), frames.size
        except BackupError as error:
            return str(error)

    whole = followed([data])
    assert followed([data[at : at + 1] for at in range(len(data))]) == whole
    if isinstance(whole, str):
        raise BackupError(whole)
