"""The versions of the servers of a cluster, by their names.

A client learns the version of the server that it is connected to. Each server tells its own when it
is asked how many connections an account has (``STATZ`` in server/events.go, since 2.2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import ApiError, ConsumerLost, ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import Version
from spark_jetstream.protocol.server_info import version_of
from spark_jetstream.protocol.wire import Frames


def versions_of(connection: Connection, cluster: str, names: Collection[str]) -> dict[str, Version]:
    """Return the versions of servers of a cluster, by name.

    A server that does not answer within `Timing.sign_of_life`, or not with a version, is missing.
    Raises `PermissionDenied` if the user may not ask.
    """
    # A server without connections of the account answers only if it is asked for unused accounts.
    request = jsapi.request_body(include_unused=True, cluster=cluster)
    found: dict[str, Version] = {}
    # On a connection that was cut no more answers come: those that came are the result.
    with connection.inbox(whole=True) as inbox, contextlib.suppress(ConsumerLost):
        inbox.publish(jsapi.ASK_SERVERS, request, "1")
        for reply in _replies(inbox, Deadline(connection.timing.sign_of_life)):
            name, version = told_version(reply)
            if name in names and version is not None:
                found[name] = version
            if len(found) == len(names):
                break
    return found


def _replies(inbox: Inbox, deadline: Deadline) -> Iterator[bytes]:
    while isinstance(frames := inbox.get(deadline.left), Frames):
        for header, reply in frames.parts():
            # Only the status 503 (nobody listens) has a header block.
            if header:
                return
            yield bytes(reply)


def told_version(reply: bytes) -> tuple[str, Version | None]:
    """Return name and version of the server in a reply; None for a reply that tells none."""
    context = "ask a server for its version"
    try:
        body = jsapi.reply(reply, context)
        name = jsapi.field(body, "server.name", str, context)
        return name, version_of(jsapi.field(body, "server.ver", str, context))
    except (ApiError, ProtocolError):
        return "", None
