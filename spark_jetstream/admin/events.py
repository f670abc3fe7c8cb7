"""Events as they happen: `JetStreamAdmin.events`.

No server keeps these core NATS messages: see docs/events.md.
"""

from __future__ import annotations

import contextlib

from spark_jetstream.admin.api import Api, consumer_name, stream_name, subject_filter
from spark_jetstream.admin.event_parsing import PREFIX, event_subjects, parse_event
from spark_jetstream.admin.models.events import Event
from spark_jetstream.admin.subscription import (
    SUBSCRIPTION_TIMES,
    Subscription,
    SubscriptionTimes,
)
from spark_jetstream.client.subscription import CoreMessage
from spark_jetstream.errors import (
    ApiError,
    JetStreamNotEnabled,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import Timestamp

_SYSTEM = "$SYS.REQ.SERVER.PING"


class Events:
    """The events of an account; ``admin.events``. Raises what `Api` raises."""

    def __init__(self, api: Api, *, times: SubscriptionTimes = SUBSCRIPTION_TIMES) -> None:
        self._api = api
        self._times = times

    def watch(
        self,
        *wanted: str | type[Event],
        advisories: bool = True,
        metrics: bool = True,
        stream: str | None = None,
        consumer: str | None = None,
        timeout: float | None = None,
        count: int | None = None,
        prefix: str | None = None,
    ) -> Subscription[Event]:
        """Subscribe to events; all events after this call are received.

        ``wanted`` are kinds (``"max_deliver"`` or `MaxDeliver`), or subjects
        (``"ADVISORY.CONSUMER.>"``); by default all. ``stream`` and ``consumer`` choose events whose
        subject names them; so none of the API, a server, or a domain. It ends after ``timeout``
        seconds, or ``count`` events; a `Gap` does not count. ``prefix`` begins the subjects, for
        events of another account that this one imports. By default it is ``$JS.EVENT``, and the
        account must have JetStream, or be the system account.

        Raises:
            OptionError: The arguments do not fit together.
            PermissionDenied: The account may not subscribe to a subject, which the error has.
            JetStreamNotEnabled: The account has no JetStream, as far as it may ask.
            NoResponders: The server has no JetStream, as far as the account may ask.
        """
        subjects = event_subjects(
            wanted,
            advisories=advisories,
            metrics=metrics,
            stream=None if stream is None else stream_name(stream),
            consumer=None if consumer is None else consumer_name(consumer),
            prefix=PREFIX if prefix is None else subject_filter(prefix, literal=True),
        )
        if prefix is None:
            # Events of another account need no JetStream in this one.
            self._need_jetstream()
        return Subscription(self._api, subjects, _event, timeout, count, times=self._times)

    def _need_jetstream(self) -> None:
        """Raise where there can be no event.

        Other errors are ignored: events also report a cluster in trouble.
        """
        connection = self._api.connection
        context = "listen to events"
        seconds = connection.timing.sign_of_life
        # Without JetStream no event ever comes, and a watch would wait for ever.
        try:
            connection.ask(
                jsapi.subject(connection.prefix, jsapi.ACCOUNT_INFO),
                b"",
                context=context,
                timeout=seconds,
            )
        except (JetStreamNotEnabled, NoResponders):
            # The system account has no JetStream, but events of servers and domains. Only it
            # reaches this subject.
            with contextlib.suppress(NoResponders, PermissionDenied, RequestTimeout):
                connection.request(_SYSTEM, b"", context=context, timeout=seconds)
                return
            raise
        # An account that may not ask listens all the same.
        except (ApiError, PermissionDenied, RequestTimeout):
            pass


def _event(message: CoreMessage, received: Timestamp) -> Event:
    return parse_event(message.subject, message.data, received)
