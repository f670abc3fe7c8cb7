"""Which streams of the account options streamPattern and streamMetadata choose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import ApiError, JetStreamError, ServerBusy, brief
from spark_jetstream.options.names import name_pattern
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import LEDGER_BUCKET

log = logging.getLogger(__name__)

FIND_EVERY = 10.0
"""Seconds between two looks of a running query. Spark may plan a hundred times in a second."""

_APART = ("KV_", "OBJ_", "$")
"""How the names of buckets begin, and those of the server's own streams.

A pattern that chooses one must begin so too.
"""


class Selection:
    """The streams that match. Used by one thread.

    Two looks of a running query are at least `find_every` seconds of `clock` apart.
    """

    def __init__(
        self,
        options: SourceOptions,
        requests: Requests,
        clock: Callable[[], float],
        *,
        find_every: float = FIND_EVERY,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._find_every = find_every
        self._text = options.stream_pattern or "*"
        self._pattern = name_pattern(self._text)
        self._metadata = [pair.split("=", 1) for pair in options.stream_metadata]
        self._context = f"find the streams to read ({_choosing(options)})"
        self._looked: float | None = None
        self._trouble = ""  # that was logged last
        self._mismatched: set[str] | None = None  # when it looked last
        self.chosen: set[str] = set()
        """The streams that matched when `look` looked last."""
        self.others: set[str] = set()
        """The streams that did not match then, nor when `look` looked before.

        A former leader has old metadata.
        """

    def may_have(self, name: str) -> bool:
        """Whether a stream of this name matches, if its metadata does."""
        if name == f"KV_{LEDGER_BUCKET}":
            # Only its whole name chooses the ledger of the sink.
            return name == self._text
        apart = next((begin for begin in _APART if name.startswith(begin)), "")
        return self._text.startswith(apart) and self._pattern.fullmatch(name) is not None

    def look(self, *, complete: bool) -> None:
        """Ask the server for its streams, at most every `find_every` seconds.

        With `complete` it asks now, for all of them. It then raises what `Requests.call` raises,
        `ServerBusy` when streams are missing in the answer, and `ApiError` when only streams are
        missing that no server can run. Without `complete` missing streams are logged, and a later
        call finds them.
        """
        now = self._clock()
        first = self._looked is None
        if not complete and not self._is_due(now):
            return
        must_succeed = first or complete
        # A running query has streams, and a later look finds new ones.
        if must_succeed:
            requests = self._requests
        else:
            requests = Requests(self._requests.connect, 0.0)
        try:
            requests.call(partial(self._look, complete=complete))
        except JetStreamError as error:
            if must_succeed or not error.retriable:
                raise
            log.warning("%s; new streams are found later", error)
        self._looked = now
        if first and not self.chosen:
            log.warning("cannot %s: none matches yet", self._context)

    def _is_due(self, now: float) -> bool:
        return self._looked is None or now - self._looked >= self._find_every

    def _look(self, connection: Connection, *, complete: bool) -> None:
        """Ask once. Sets `chosen` and `others`; raises what `look` raises."""
        answer = self._ask(connection)
        faults = [*answer.passing, *answer.lasting]
        if faults and complete:
            why = f"cannot {self._context}: {'; '.join(faults)}"
            kind = ServerBusy if answer.passing else ApiError
            raise kind(why, code=503, err_code=0, description=why)
        if faults and self._trouble != faults[0]:
            self._trouble = faults[0]
            log.warning("cannot %s as a whole: %s", self._context, "; ".join(faults))
        self.chosen = {name for name, matches in answer.streams.items() if matches}
        mismatched = answer.streams.keys() - self.chosen
        before = mismatched if self._mismatched is None else self._mismatched
        self.others = mismatched & before
        self._mismatched = mismatched

    def _ask(self, connection: Connection) -> _Answer:
        """Return the streams of all pages of the answer."""
        answer = _Answer()
        offset = 0
        last = ""  # the last name of the page before
        while True:
            page = self._page(connection, offset)
            names = self._add(page, answer)
            # Pages overlap by one name: if it is another one, the server has counted other streams
            # before it.
            if offset and names[:1] != [last]:
                answer.passing.append("a stream was created or deleted meanwhile")
            following = offset + jsapi.whole(page, "limit", self._context)
            # An offset that does not grow would ask for the same page for ever.
            if not names or following - 1 <= offset:
                return answer
            if following >= jsapi.whole(page, "total", self._context):
                return answer
            offset = following - 1
            last = names[-1]

    def _page(self, connection: Connection, offset: int) -> Mapping[str, Any]:
        """Return the part of the answer that begins at an offset."""
        # Only the configurations of streams have metadata.
        endpoint = jsapi.STREAM_LIST if self._metadata else jsapi.STREAM_NAMES
        subject = jsapi.subject(connection.prefix, endpoint)
        body = jsapi.request_body(offset=offset)
        if endpoint.gathers:
            return connection.api(subject, body, context=self._context)
        return connection.ask(subject, body, context=self._context)

    def _add(self, page: Mapping[str, Any], answer: _Answer) -> list[str]:
        """Add the streams of a page to an answer. Return all their names, sorted."""
        here: dict[str, bool] = {}
        for entry in jsapi.field(page, "streams", list, self._context, []):
            name, matches = self._read(entry)
            here[name] = matches
        # Servers that do not support a stream's configuration say why.
        offline: dict[str, Any] = jsapi.field(page, "offline", dict, self._context, {})
        unanswered = set(map(str, jsapi.field(page, "missing", list, self._context, [])))
        missing = unanswered - offline.keys()
        for name in filter(self.may_have, sorted(missing)):
            answer.passing.append(f"no server answered for stream {name}")
        for name in filter(self.may_have, offline):
            why = brief(str(offline[name]))
            answer.lasting.append(f"no server can run stream {name} ({why})")
        answer.streams |= here
        return sorted(here.keys() | missing | offline.keys())

    def _read(self, entry: Any) -> tuple[str, bool]:
        """Return the name of a stream in a reply, and whether it matches."""
        config: Mapping[str, Any] = {"name": entry}
        if self._metadata:
            config = jsapi.field({"entry": entry}, "entry.config", dict, self._context)
        name = jsapi.field(config, "name", str, self._context)
        metadata = jsapi.field(config, "metadata", dict, self._context, {})
        has_metadata = all(metadata.get(key) == value for key, value in self._metadata)
        return name, has_metadata and self.may_have(name)


class _Answer:
    """The streams that servers have named, and the faults of the answer."""

    def __init__(self) -> None:
        #: The name of each stream, and whether it matches.
        self.streams: dict[str, bool] = {}
        #: Faults that another answer may not have.
        self.passing: list[str] = []
        #: Faults that stay: streams that no server can run.
        self.lasting: list[str] = []


def _choosing(options: SourceOptions) -> str:
    """Return the options that choose the streams, in words."""
    given = [name for name in ("streamPattern", "streamMetadata") if name in options.given()]
    if len(given) == 1:
        return f"option {given[0]}"
    return f"options {' and '.join(given)}"
