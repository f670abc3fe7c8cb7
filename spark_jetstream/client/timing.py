"""The times of connections: how long each step waits, and how often it is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """All fields are seconds, except for `attempt_share` and `unanswered_pings`.

    Users choose the other times, with options (`ConnectionOptions`, `SourceOptions`, `SinkOptions`).
    """

    # Logging in
    between_attempts: float = 0.25
    """The least time between two attempts at the same server."""
    attempt_share: float = 0.9
    """The part of the time to connect for one attempt. The rest is for the error of the attempt."""
    greeting_quiet: float = 1.0
    """A peer that says nothing for so long is asked whether it is a server of another kind."""
    refused_for: float = 5.0
    """Refusals by all servers are final after this time: a server that restarts, or reloads its
    configuration, refuses logins for less."""
    late: float = 10.0
    """An attempt may end so much later than it should before it is given up."""

    # An open connection
    ping_interval: float = 20.0
    """The time between two pings that no request is behind."""
    unanswered_pings: int = 2
    """The number of those pings that a server may leave without an answer."""
    sign_of_life: float = 2.0
    """The time in which a server must answer the ping that follows a request without a reply."""
    look_again: float = 0.01
    """The time between two looks whether the connection is up again."""
    goodbye: float = 2.0
    """The time to send buffered bytes before a connection that takes none is given up."""

    # Requests
    ask_again: float = 2.0
    """A question without a reply is sent again after this time."""
    election: float = 5.0
    """A server that woke up, and led, has by then heard its successor, or knows that nobody
    follows it."""


TIMING = Timing()
