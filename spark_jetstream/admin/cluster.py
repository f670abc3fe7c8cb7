"""The JetStream of a cluster as a whole, which only its system account may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_jetstream.admin.api import Api, Body, checked
from spark_jetstream.admin.models.cluster import RescueReply
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.subscription import request
from spark_jetstream.errors import JetStreamError, OptionError, RequestTimeout
from spark_jetstream.options.names import Prefix
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.jsapi import Endpoint

_REPLIES_TIME = 2.0  # seconds in which all servers reply
_ITS_ACCOUNT = "the system account of a cluster"


class Cluster:
    """The metadata of a cluster; ``admin.cluster``, for a user of the system account.

    A server does not answer another account, nor outside of a cluster: all methods raise
    `RequestTimeout` then, and what `Api` raises.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def step_down(self, *, preferred: str | None = None) -> None:
        """Let the server that keeps the metadata step down, in favour of ``preferred`` if given (server 2.11)."""
        body = {"placement": {"preferred": preferred}} if preferred else {}
        self._ask(jsapi.META_STEP_DOWN, body, "let the leader of the cluster step down")

    def remove_server(self, server: str) -> None:
        """Remove a server that does not come back.

        Streams and consumers with no other replica lose their state.
        """
        self._ask(jsapi.SERVER_REMOVE, {"peer": server}, f"remove server {server} from the cluster")

    def evacuate_server(self, server: str) -> None:
        """Let all replicas of streams and consumers move off a server; do not await it (server 2.15).

        Others of the cluster keep them when they have all messages. Where no server can take a
        replica, the stream or the consumer goes on with fewer. A last replica that no server can
        take stays on the server, without an error: to remove this server loses its messages. The
        server stays in the cluster and gets none of the others back while they have too few. Raises
        `ApiError` for a server that is not in the cluster.
        """
        self._ask(jsapi.SERVER_EVACUATE, {"peer": server}, f"evacuate server {server}")

    def rescue(self, quorum: int, *, timeout: float = _REPLIES_TIME) -> Sequence[RescueReply]:
        """Let fewer servers decide for a while, in a cluster that has lost most of them (server 2.15).

        Unsafe, and a last resort: a server that is not lost for good may have decided otherwise.
        ``quorum`` is how many servers must agree. Each server that is left replies within
        ``timeout`` seconds whether it does so, for minutes. Meanwhile remove the lost servers with
        `remove_server`. A server refuses that knows a leader, or has no data. Returns the replies,
        sorted by server. Raises `JetStreamError` if all servers refuse.
        """
        if quorum < 1:
            raise OptionError(f"quorum must be at least 1, not {quorum}")
        context = f"let {quorum} servers decide"
        self._api.need_endpoint(jsapi.META_RESCUE, context)
        subject = jsapi.subject(self._api.connection.prefix, jsapi.META_RESCUE)
        body = jsapi.request_body(quorum_needed=quorum)
        try:
            messages = request(self._api, subject, body, None, None, timeout)
        except RequestTimeout as error:
            raise _unanswered(error, _ITS_ACCOUNT) from None
        replies = [RescueReply.from_json(message.data, context) for message in messages]
        if all(reply.error is not None for reply in replies):
            raise JetStreamError(f"cannot {context}: {replies[0].reason}")
        return sorted(replies, key=_server_of)

    def move_stream(
        self, account: str, stream: str, *, server: str | None = None, tags: Sequence[str] = ()
    ) -> StreamInfo:
        """Let a stream of an account move to other servers; do not await it.

        One replica moves: that of ``server``, or any. The server that takes it has the tags of the
        stream's placement, and for this time ``tags``. If no other server of its cluster can, the
        whole stream moves to another cluster. Raises `StreamNotFound`, and `ApiError` if no server
        can take it.
        """
        body: dict[str, Any] = {}
        if server is not None:
            body["server"] = server
        if tags:
            body["tags"] = list(tags)
        context = f"move stream {stream} of account {account}"
        return self._stream(jsapi.ACCOUNT_STREAM_MOVE, body, context, account, stream)

    def cancel_move(self, account: str, stream: str) -> StreamInfo:
        """Take back a change of servers, replicas or retention of an account's stream.

        As `Streams.cancel_move`, for the system account. Raises `StreamNotFound`, and `ApiError` if
        no change is under way.
        """
        context = f"cancel the change of stream {stream} of account {account}"
        return self._stream(jsapi.ACCOUNT_CANCEL_MOVE, {}, context, account, stream)

    def purge_account(self, account: str) -> None:
        """Let all streams and consumers of an account be deleted; do not await it.

        An unknown account is no error.
        """
        name = _account(account)
        self._ask(jsapi.ACCOUNT_PURGE, {}, f"delete the streams of account {name}", account=name)

    def _stream(
        self, endpoint: Endpoint, body: Body, context: str, account: str, stream: str
    ) -> StreamInfo:
        reply = self._ask(endpoint, body, context, account=_account(account), stream=stream)
        return StreamInfo.from_server(reply, context)

    def _ask(self, endpoint: Endpoint, body: Body, context: str, **names: str) -> Any:
        try:
            return self._api.ask(endpoint, body, context=context, **names)
        except RequestTimeout as error:
            # The leader alone listens to these requests.
            raise _unanswered(error, f"{_ITS_ACCOUNT} that has a leader") from None


def _account(name: str) -> Any:
    """Return the name of an account that is a token of a subject."""
    # A dot would make it another request (`test_an_account_that_would_be_another_subject`).
    return checked(Prefix(1), "account", name)


def _unanswered(error: RequestTimeout, answered: str) -> RequestTimeout:
    # A server does not even refuse a request of another account.
    return RequestTimeout(f"{error}; a server only answers {answered}")


def _server_of(reply: RescueReply) -> str:
    return reply.server
