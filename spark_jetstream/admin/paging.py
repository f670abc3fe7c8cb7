"""Long lists of the JetStream API, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from spark_jetstream.admin.consumer_models import ConsumerPage
from spark_jetstream.admin.model import Page
from spark_jetstream.admin.stream_replies import StreamPage
from spark_jetstream.errors import ServerBusy

P = TypeVar("P", bound=Page)

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def pages(model: type[P], ask: Ask, request: Mapping[str, Any], context: str) -> Iterator[P]:
    """The pages of a list, each asked for when it is needed. ``ask(body)`` returns a reply.

    What is created or deleted between two pages may be missed, or come twice.
    """
    offset = 0
    while True:
        page = model.from_server(ask({**request, **({"offset": offset} if offset else {})}), context)
        yield page
        # Not by what came: a server of a cluster that did not answer leaves its part of a page out.
        following = page.offset + page.limit
        if following >= page.total or following <= offset:
            return
        offset = following


class Absent:
    """What a list lacks, page by page."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def add(self, page: StreamPage | ConsumerPage) -> None:
        """Note what is not in a page, though it belongs there."""
        self._said += [f"no server answered for {name}" for name in page.missing]
        self._said += [f"no server can run {name} ({why})" for name, why in page.offline.items()]

    def check(self, context: str) -> None:
        """Raise `ServerBusy` when something was not there."""
        if self._said:
            said = f"cannot {context} as a whole: {'; '.join(self._said)}"
            raise ServerBusy(said, code=0, err_code=0, description="")
