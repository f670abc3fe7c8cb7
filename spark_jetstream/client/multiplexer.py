"""Requests under way on one connection: each waits for its reply, a cut, or the server's word that it is not permitted.

nats-py sends a request and waits for its reply. It knows neither that a cut has lost the reply, nor that a permissions
violation, which names only a subject, is about a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.login import Login
from spark_jetstream.client.reasons import error_text
from spark_jetstream.errors import ConnectionFailed, JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi


class Multiplexer:
    """The requests of one connection. On the loop's thread."""

    def __init__(self, login: Login) -> None:
        self._login = login
        #: What each waits for beside its reply -> its subject.
        self._waiting: dict[asyncio.Future[JetStreamError], str] = {}
        self._deaf: PermissionDenied | None = (
            None  # why no reply can come, from a refused subscription to the next cut
        )

    async def request(
        self,
        subject: str,
        payload: bytes,
        context: str,
        seconds: float,
        headers: dict[str, str] | None = None,
        every: float | None = None,
    ) -> bytes:
        """Return the payload of the reply to a request; see `Connection.request`."""
        deadline = Deadline(seconds)
        await self._login.wait(seconds)
        trouble: asyncio.Future[JetStreamError] = asyncio.get_running_loop().create_future()
        if self._deaf is not None:
            trouble.set_result(self._deaf)
        self._waiting[trouble] = subject
        answers: list[asyncio.Future[Msg]] = []
        try:
            while True:
                left = max(0.001, deadline.left)
                sent = self._login.client.request(subject, payload, timeout=left, headers=headers)
                answers.append(asyncio.ensure_future(sent))
                either: set[asyncio.Future[Any]] = {trouble, *answers}
                await asyncio.wait(either, timeout=every, return_when=asyncio.FIRST_COMPLETED)
                answer = next((future for future in answers if future.done()), None)
                if answer is not None:
                    return bytes(answer.result().data)
                if trouble.done():
                    failure = trouble.result()
                    text = f"cannot {context}: {failure}"
                    if isinstance(failure, PermissionDenied):
                        raise PermissionDenied(text, subject=failure.subject)
                    raise ConnectionFailed(text)
        except nats.errors.NoRespondersError:
            raise NoResponders(
                f"cannot {context}: nobody answers at {subject}: is JetStream enabled for this server and account, and "
                f"{advice.API}"
            ) from None
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            raise jsapi.no_reply(context, seconds, advice.REQUEST_TIMEOUT) from None
        except (nats.errors.Error, OSError) as error:
            raise ConnectionFailed(f"cannot {context}: {error_text(error)}") from None
        finally:
            del self._waiting[trouble]
            trouble.cancel()
            for future in answers:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, so that asyncio does not log it

    def cut(self, message: str) -> None:
        """Fail what waits: the connection was cut."""
        self._deaf = None
        self._fail(ConnectionFailed(message), [*self._waiting])

    def denied(
        self, publishing: bool, subject: str, trouble: PermissionDenied, *, elsewhere: bool
    ) -> None:
        """Fail the requests that a refused publish, or subscription (`trouble`), concerns.

        nats-py gives the subject in lower case; the request has its spelling. It subscribes once for all replies: if
        the subscription is not one `elsewhere`, requests that come later would wait in vain, too.
        """
        if not publishing:
            if not elsewhere:
                self._deaf = trouble
            self._fail(trouble, [*self._waiting])
            return
        for future, asked in self._waiting.items():
            named = next(
                (name for name in self._login.spellings(asked) if name.lower() == subject), None
            )
            if named is not None:
                self._fail(
                    PermissionDenied(f"the account may not publish to {named}", subject=named),
                    [future],
                )

    def _fail(self, error: JetStreamError, waiting: list[asyncio.Future[JetStreamError]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(error)
