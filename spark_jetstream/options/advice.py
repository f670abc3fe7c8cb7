"""Words about options, for errors of a connection. Pure.

`client`, `streams` and `buckets` add these words to their errors, and name no option themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jetstream.protocol.own_traffic import stores_any_inbox

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

_NARROW = "give the stream narrower subjects"


def stored_inboxes(subjects: Sequence[str]) -> str:
    """Return how to keep a stream with these subjects from storing what the connector receives."""
    if stores_any_inbox(subjects):
        return _NARROW
    return f"set option inboxPrefix to a prefix that they do not match, or {_NARROW}"
