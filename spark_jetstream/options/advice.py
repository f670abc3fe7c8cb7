"""Words about options and about settings of streams, for errors of the layers below. Pure.

`client`, `streams` and `buckets` add these words to their errors, and name no option themselves.
`protocol.pub_ack` says why a server refuses a message, and nothing about the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_jetstream.protocol.own_traffic import stores_any_inbox
from spark_jetstream.protocol.pub_ack import Cause, RefusalCode, StoreFault

SERVERS = "(option servers)"
STREAM = "; option stream would name it"
#: The option that names a stream, by the beginning of the stream's name.
STREAM_OPTIONS = {"": "stream", "KV_": "bucket", "OBJ_": "objectBucket"}
NAMED_BY = {beginning: f"option {name}" for beginning, name in STREAM_OPTIONS.items()}
# A request to the API that nobody answers.
API = "are the options domain and apiPrefix right?"
API_PREFIX = "option apiPrefix"
# The option in brackets, after the thing that it sets.
INBOX_PREFIX = "(option inboxPrefix)"
CONNECT_TIMEOUT = "(option connectTimeout)"
REQUEST_TIMEOUT = "(option requestTimeout)"
RETRY_TIMEOUT = "(option retryTimeout)"
# Logins and TLS.
CREDENTIALS = "give both as a .creds file (option credentialsFile or credentialsSecret)"
AUTHORITY = "(options tlsCaFile, tlsHostname)"
CLIENT_CERTIFICATE = "(options tlsCertFile and tlsKeyFile)"
TLS_FIRST = "option tlsHandshakeFirst"

# Messages that a server refuses.
SINGLE_MESSAGES: Mapping[Cause, str] = {
    StoreFault.SUBJECT_FULL: "raise the stream's max_msgs_per_subject",
    StoreFault.RECORD_TOO_LARGE: (
        "a stream with file storage keeps no message of more than 32 MiB: make the row smaller, or "
        "write to a stream with memory storage"
    ),
}
"""What to change where the store of a stream refuses a single message."""
_MAKE_ROOM = "make room, or raise the limits of the server or the account"
REFUSED_MESSAGES: Mapping[Cause, str] = {
    **SINGLE_MESSAGES,
    StoreFault.STREAM_FULL: (
        "the stream is full and discards what is new: raise its limits or set discard to old"
    ),
    RefusalCode.MESSAGE_TOO_LARGE: "raise the stream's max_msg_size",
    RefusalCode.STREAM_SEALED: (
        "nothing can be written to a sealed stream any more: write to another one"
    ),
    RefusalCode.ACCOUNT_FULL: _MAKE_ROOM,
    RefusalCode.RESOURCES_USED: _MAKE_ROOM,
    RefusalCode.MEMORY_USED: _MAKE_ROOM,
    RefusalCode.STORAGE_USED: _MAKE_ROOM,
}
"""What to change in streams, accounts and servers that refuse messages, whatever writes them."""

_NARROW = "give the stream narrower subjects"


def stored_inboxes(subjects: Sequence[str]) -> str:
    """Return how to keep a stream with these subjects from storing what the connector receives."""
    if stores_any_inbox(subjects):
        return _NARROW
    return f"set option inboxPrefix to a prefix that they do not match, or {_NARROW}"
