"""Replies about the JetStream of a cluster as a whole. Pure."""

from __future__ import annotations

from spark_jetstream.admin.models.base import Count, Reply, String
from spark_jetstream.admin.models.streams import ApiErrorBody
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.json_text import json_object


class RescueReply(Reply):
    """Whether a server lets fewer servers decide (ADR-61)."""

    server: String = ""
    """The name of the server."""
    server_id: String = ""
    """Its id."""
    prev_quorum: Count = 0
    """How many servers had to agree; 0 if nothing has changed."""
    new_quorum: Count = 0
    """How many have to now; 0 if nothing has changed."""
    error: ApiErrorBody | None = None
    """Why the server refuses; None if it has done so."""

    @classmethod
    def from_json(cls, payload: bytes, context: str) -> RescueReply:
        """Return the reply of a payload, also one with an error. Raises `ProtocolError`."""
        try:
            body = json_object(payload)
        except ValueError as fault:
            raise ProtocolError(f"cannot {context}: the server's reply {fault}") from None
        return cls.from_server(body, context)

    @property
    def reason(self) -> str:
        """Why the server refuses, in its words; empty if it does not."""
        return "" if self.error is None else self.error.description
