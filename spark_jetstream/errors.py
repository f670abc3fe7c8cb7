"""Every error that spark-jetstream raises on purpose.

The tree, with `*` beside the classes that are worth another try (`retriable`):

    Exception
    └── JetStreamError
        ├── OptionError (also ValueError)     an option is unknown, malformed, or contradicts another
        ├── SchemaError (also ValueError)     a schema asks for a column or a type that does not exist
        ├── WorkerPythonError                 the Python of Spark's workers cannot use this package
        ├── ConnectionFailed *                no server could be reached
        │   ├── UntrustedServer               one was reached, and TLS as asked for is not possible with it
        │   └── WrongServer                   something that is not a NATS server answered
        ├── AuthenticationFailed              a server was reached and refused the credentials
        ├── PermissionDenied                  the account may not use a subject
        ├── RequestTimeout *                  a request got no reply in time
        ├── NoResponders *                    no subscriber has the subject of a request
        ├── ProtocolError                     bytes or JSON that are not what NATS or JetStream sends
        ├── ApiError                          the JetStream API answered with an error
        │   ├── StreamNotFound                10059
        │   ├── ConsumerNotFound              10014
        │   ├── MessageNotFound               10037
        │   │   └── KeyNotFound               a key of a bucket has no value
        │   ├── WrongRevision                 10071, of a key of a bucket
        │   ├── StreamExists                  10058 10130
        │   ├── JetStreamNotEnabled           10039 10076
        │   ├── ConsumerLimitReached          10026
        │   ├── InsufficientResources         10002 10023 10028 10047
        │   └── ServerBusy *                  10004 10008 10009 10118 10119 10158 10163 10164 10167 10210 10211
        ├── PullRefused                       the server refused a request for messages of a consumer
        │   └── PinMismatch                   423, where another client of a priority group is pinned
        ├── ConsumerLost *                    a pull consumer vanished, moved, or skipped a delivery
        ├── OutageError                       an outage lasted longer than ``retryTimeout``
        ├── DataLossError                     messages that should be read are gone
        ├── RowRefused                        a row cannot be stored
        ├── DeliveryError                     what the delivery level promises cannot be kept
        ├── RegistryError                     a schema registry does not answer, refuses the login, or is none
        ├── BackupError                       a backup is damaged or not complete, or could not be restored
        └── ServerStartError                  an embedded nats-server did not start

Spark sends errors from one process to another: every class pickles, and the copy has the same type,
message and attributes. No message contains the value of a secret option, or a control character,
and none is longer than `LONGEST_MESSAGE`: messages repeat texts of servers, publishers and files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

LAYOUT = "\n\t"
"""What `printable` keeps of a text of several lines."""

LONGEST_TEXT = 500
"""How many characters of a text of a server an error or a log repeats."""
LONGEST_MESSAGE = 4000
"""How many characters an error has at most: one may repeat several texts."""


def printable(text: str, kept: str = "") -> str:
    r"""Return a text with control characters shown like ``\x1b``, except those of ``kept``."""
    if text.isprintable():
        return text
    shown = []
    for char in text:
        if char.isprintable() or char in kept:
            shown.append(char)
        else:
            # The escape without its quotes.
            shown.append(ascii(char)[1:-1])
    return "".join(shown)


def brief(text: str, most: int = LONGEST_TEXT, kept: str = "") -> str:
    """Return a server's text for errors and logs: `printable`, and cut after ``most`` characters.

    The characters of escapes count.
    """
    # Cut first: the escapes of a text of megabytes would take far more memory than the text.
    shown = printable(text[: most + 1], kept)
    if len(shown) <= most:
        return shown
    return f"{shown[:most]}..."


def closest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the name in ``known`` most like ``given`` in any case; "" if none is like it."""
    # Spark hands the names of options on in lower case.
    names = {name.lower(): name for name in known}
    # Comparing takes time that grows with the length, and a longer text is no typing error.
    matches = difflib.get_close_matches(given[:80].lower(), names, n=1, cutoff=cutoff)
    if not matches:
        return ""
    return names[matches[0]]


class JetStreamError(Exception):
    """Base of all errors of this package.

    ``retriable``: the same request may succeed later without any change.
    """

    retriable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        # Messages repeat texts of servers and publishers, which may hold control characters that a
        # terminal obeys: test_errors.py, test_no_message_does_anything_to_a_terminal.
        super().__init__(brief(message, LONGEST_MESSAGE, LAYOUT))

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would call the constructor with `args` alone, and keyword arguments would be
        # missing.
        return type(self).__new__, (type(self), *self.args), dict(self.__dict__)


class OptionError(JetStreamError, ValueError):
    """An option is unknown, malformed, out of range, or contradicts another one.

    ``option`` is its name as the documentation writes it, or None when the error is not about one
    option.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class SchemaError(JetStreamError, ValueError):
    """A schema given by the user has a column, or a type, that does not exist."""


class WorkerPythonError(JetStreamError):
    """The Python of Spark's workers cannot use this package.

    ``PYSPARK_PYTHON`` names another one.
    """


class ConnectionFailed(JetStreamError):
    """No server could be reached, or the connection broke before it was usable."""

    retriable = True


class UntrustedServer(ConnectionFailed):
    """A server has no trusted certificate, or offers no TLS although the options ask for it."""

    retriable = False


class WrongServer(ConnectionFailed):
    """Something else than a NATS server answers, such as an HTTP server or a monitoring port."""

    retriable = False


class AuthenticationFailed(JetStreamError):
    """A server was reached, and refused the credentials."""


class PermissionDenied(JetStreamError):
    """The account may not publish or subscribe to ``subject``, None if it is not known."""

    def __init__(self, message: str, *, subject: str | None = None) -> None:
        super().__init__(message)
        self.subject = subject


class RequestTimeout(JetStreamError):
    """A request got no reply in time; whether it was carried out is unknown."""

    retriable = True


class NoResponders(JetStreamError):
    """The server said at once (status 503) that no subscriber has the subject of a request."""

    retriable = True


class ProtocolError(JetStreamError):
    """Bytes or JSON that are not what NATS or JetStream sends."""


class ApiError(JetStreamError):
    """The JetStream API answered with an error.

    ``code`` is its HTTP-like class (404, 503), ``err_code`` the exact reason (10059),
    ``description`` the server's own words. 0 and ``""`` stand for what the server left out.
    """

    def __init__(self, message: str, *, code: int, err_code: int, description: str) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code
        self.description = description


class StreamNotFound(ApiError):
    """The stream does not exist in this account, domain or API prefix."""


class ConsumerNotFound(ApiError):
    """The consumer does not exist on its stream."""


class MessageNotFound(ApiError):
    """No message has this sequence or subject (deleted, expired, purged, or never stored)."""


class KeyNotFound(MessageNotFound):
    """A key of a Key-Value bucket has no value.

    ``operation`` is what took it away, ``DELETE`` or ``PURGE``, and ``revision`` which revision
    that is; ``""`` and 0 when nothing is left of the key, or when it never was.
    """

    def __init__(
        self,
        message: str,
        *,
        bucket: str,
        key: str,
        operation: str = "",
        revision: int = 0,
    ) -> None:
        super().__init__(message, code=404, err_code=10037, description="")
        self.bucket = bucket
        self.key = key
        self.operation = operation
        self.revision = revision


class WrongRevision(ApiError):
    """A key of a Key-Value bucket has another revision than a write expects; nothing was stored.

    ``expected`` is that revision (0: none), ``found`` the key's, 0 when it has none, None when the
    server did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        bucket: str,
        key: str,
        expected: int,
        found: int | None,
        err_code: int = 10071,
    ) -> None:
        super().__init__(message, code=400, err_code=err_code, description="")
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.found = found


class StreamExists(ApiError):
    """A stream of this name exists: with another configuration, or where one is to be restored."""


class JetStreamNotEnabled(ApiError):
    """The server, or the account, has no JetStream."""


class ConsumerLimitReached(ApiError):
    """The stream or the account allows no further consumer.

    Since 2.15 a stream allows 1,000, unless its configuration has another limit.
    """


class InsufficientResources(ApiError):
    """The server or the account is out of memory, storage, or peers."""


class ServerBusy(ApiError):
    """The server cannot answer now.

    It holds an election, a replica is offline, a queue is full, or a write is in progress.
    """

    retriable = True


class PullRefused(JetStreamError):
    """The server refused a request for messages of a consumer, which can never succeed.

    ``code`` is its status (400, 409, 412), ``description`` the server's own words.
    """

    def __init__(self, message: str, *, code: int, description: str) -> None:
        super().__init__(message)
        self.code = code
        self.description = description


class PinMismatch(PullRefused):
    """Status 423: the ``id`` of the request is not that of the client which the server has pinned.

    Ask without it.
    """


class ConsumerLost(JetStreamError):
    """A pull consumer vanished, moved to another server, or skipped a delivery.

    Nothing is lost: reading continues with a new consumer at the next stream sequence.
    """

    retriable = True


class OutageError(JetStreamError):
    """An outage lasted longer than ``retryTimeout``. The operation is safe to repeat."""


class DataLossError(JetStreamError):
    """Messages that should be read are gone.

    The text names stream, sequences and ``failOnDataLoss``.
    """


class RowRefused(JetStreamError):
    """A row cannot be stored, and its task fails.

    ``number`` counts the rows of the task from 1 (0: no single row is to blame). ``subject`` is its
    subject, ``err_code`` the server's reason (0 when it has none). ``stored`` is the number of rows
    that this attempt of the task has stored.
    """

    def __init__(
        self,
        message: str,
        *,
        number: int,
        subject: str,
        err_code: int = 0,
        stored: int = 0,
    ) -> None:
        super().__init__(message)
        self.number = number
        self.subject = subject
        self.err_code = err_code
        self.stored = stored


class DeliveryError(JetStreamError):
    """The promise of option ``delivery`` cannot be kept.

    The stream, another attempt, or other rows prevent it.
    """


class RegistryError(JetStreamError):
    """A schema registry cannot be reached, refuses the login, or answers as no registry does.

    A task fails with it: no payload is to blame.
    """


class BackupError(JetStreamError):
    """A backup of a stream is damaged or not complete, or could not be restored."""


class ServerStartError(JetStreamError):
    """An embedded nats-server did not start; the message holds the end of its log."""


#: err_code -> class, for the codes that deserve more than `ApiError` (nats-server:
#: server/errors.json).
API_ERRORS: Mapping[int, type[ApiError]] = {
    10002: InsufficientResources,  # resource limits exceeded for account
    10004: ServerBusy,  # incomplete results: a server of the cluster did not answer
    10008: ServerBusy,  # JetStream system temporarily unavailable: no meta leader
    10009: ServerBusy,  # JetStream cluster can not handle request: not the leader
    10014: ConsumerNotFound,
    10023: InsufficientResources,  # insufficient resources
    10026: ConsumerLimitReached,
    10028: InsufficientResources,  # insufficient memory resources available
    10037: MessageNotFound,
    10039: JetStreamNotEnabled,  # for the account
    10047: InsufficientResources,  # insufficient storage resources available
    10058: StreamExists,
    10059: StreamNotFound,
    10076: JetStreamNotEnabled,  # on the server
    10118: ServerBusy,  # stream is offline
    10119: ServerBusy,  # consumer is offline
    10130: StreamExists,  # and so it cannot be restored
    10158: ServerBusy,  # the same message id is being stored right now
    10163: ServerBusy,  # the last sequence of the subject is not known yet
    10164: ServerBusy,  # an earlier message of the subject is being stored right now
    10167: ServerBusy,  # the stream's ingest queue is full (429)
    10210: ServerBusy,  # too many atomic batches in flight (429)
    10211: ServerBusy,  # too many fast batches in flight (429)
}


_NO_SUITABLE_PEERS = 10005
"""Too few servers can take a replica. The description lists why (nats-server: selectPeerError)."""
_PEERS_MAY_RETURN = (
    "peer offline",
    # A server of which the leader has not heard since its own start, or one with max_ha_assets.
    "miscellaneous issue",
)


def pull_refused(message: str, code: int, description: str) -> PullRefused:
    """Return the error for a status that refuses a request for messages of a consumer."""
    if code == 423:
        return PinMismatch(message, code=code, description=description)
    return PullRefused(message, code=code, description=description)


def api_error(error: Mapping[str, Any], context: str) -> ApiError:
    """Return the exception for the ``error`` object of a reply of the JetStream API.

    Its fields may be missing or malformed.
    ``context`` says what was asked, as an infinitive without "to": ``"create a consumer on stream
    ORDERS"``.
    """
    # Any program may answer as a server, with any JSON: test_errors.py,
    # test_any_reply_gives_an_error.
    code = _integer(error.get("code"))
    err_code = _integer(error.get("err_code"))
    given = error.get("description")
    description = brief(given) if isinstance(given, str) else ""
    reason = description or "the server gave no reason"
    message = f"cannot {context}: {reason} (code {code}, error {err_code})"
    kind = API_ERRORS.get(err_code, ApiError)
    if err_code == _NO_SUITABLE_PEERS and any(why in description for why in _PEERS_MAY_RETURN):
        kind = ServerBusy
    return kind(message, code=code, err_code=err_code, description=description)


def _integer(value: object) -> int:
    # JSON's true is an int to Python.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return 0
