"""What errors of a connection say about options.

`client` and `streams` take these words, and name no option. Pure.
"""

from __future__ import annotations

SERVERS = "(option servers)"
STREAM = "; option stream would name it"
NAMED_BY = {"": "option stream", "KV_": "option bucket", "OBJ_": "option objectBucket"}
"""What names a stream, by the beginning of the names of those of its kind."""
NARROW = "give the stream narrower subjects"
OTHER_INBOX = f"set option inboxPrefix to a prefix that they do not match, or {NARROW}"
API = "are the options domain and apiPrefix right?"
INBOX_PREFIX = "(option inboxPrefix)"
CONNECT_TIMEOUT = "(option connectTimeout)"
REQUEST_TIMEOUT = "(option requestTimeout)"
RETRY_TIMEOUT = "(option retryTimeout)"
CREDENTIALS = "give both as a .creds file (option credentialsFile or credentialsSecret)"
AUTHORITY = "(options tlsCaFile, tlsHostname)"
CLIENT_CERTIFICATE = "(options tlsCertFile and tlsKeyFile)"
TLS_FIRST = "option tlsHandshakeFirst"
