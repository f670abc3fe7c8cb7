"""The JetStream of a cluster as a whole, which only its system account may change."""

from __future__ import annotations

from spark_jetstream.admin.api import Api, Body, checked
from spark_jetstream.errors import RequestTimeout
from spark_jetstream.options.names import Prefix
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.jsapi import Endpoint


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

    def purge_account(self, account: str) -> None:
        """Let all streams and consumers of an account be deleted; do not await it.

        An unknown account is no error.
        """
        # The account is a token of the subject: a dot would make it another request
        # (`test_an_account_that_would_be_another_subject`).
        name = checked(Prefix(1), "account", account)
        self._ask(jsapi.ACCOUNT_PURGE, {}, f"delete the streams of account {name}", account=name)

    def _ask(self, endpoint: Endpoint, body: Body, context: str, **names: str) -> None:
        try:
            self._api.ask(endpoint, body, context=context, **names)
        # A server does not even refuse a request of another account.
        except RequestTimeout as error:
            raise RequestTimeout(
                f"{error}; a server only answers the system account of a cluster",
            ) from None
