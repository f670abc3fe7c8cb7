"""Which streams of the account a query reads, where options streamPattern and streamMetadata choose them."""

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
"""How the names of buckets begin, and those of the server's own streams: a pattern must begin so too."""


class Selection:
    """The streams that match. Used by one thread."""

    def __init__(
        self, options: SourceOptions, requests: Requests, clock: Callable[[], float]
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._text = options.stream_pattern or "*"
        self._pattern = name_pattern(self._text)
        self._metadata = [pair.split("=", 1) for pair in options.stream_metadata]
        given = [name for name in ("streamPattern", "streamMetadata") if name in options.given()]
        self._context = (
            f"find the streams to read (option{'s'[len(given) < 2 :]} {' and '.join(given)})"
        )
        self._looked: float | None = None
        self._trouble = ""  # that was logged last
        self._mismatched: set[str] | None = None  # when it looked last
        self.chosen: set[str] = set()
        """The streams that matched when `look` looked last."""
        self.others: set[str] = set()
        """The streams that did not match then, nor when it looked before: a former leader has old metadata."""

    def may_have(self, name: str) -> bool:
        """Whether a stream of this name matches, if its metadata does."""
        if name == f"KV_{LEDGER_BUCKET}":
            return name == self._text
        apart = next((begin for begin in _APART if name.startswith(begin)), "")
        return self._text.startswith(apart) and self._pattern.fullmatch(name) is not None

    def look(self, *, complete: bool) -> None:
        """Ask the server for its streams, at most every `FIND_EVERY` seconds.

        With `complete` now, and all of them: raises what `Requests.call` raises, `ServerBusy` when
        streams are missing in the answer, and `ApiError` when these are only streams that no server
        can run. Otherwise what is missing is logged, and found by a later look.
        """
        first, now = self._looked is None, self._clock()
        if self._looked is not None and not complete and now - self._looked < FIND_EVERY:
            return
        requests = self._requests if first or complete else Requests(self._requests.connect, 0.0)
        try:
            requests.call(partial(self._look, complete=complete))
        except JetStreamError as error:
            if first or complete or not error.retriable:
                raise
            log.warning("%s; new streams are found later", error)
        self._looked = now
        if first and not self.chosen:
            log.warning("cannot %s: none matches yet", self._context)

    def _look(self, connection: Connection, *, complete: bool) -> None:
        endpoint = jsapi.STREAM_LIST if self._metadata else jsapi.STREAM_NAMES
        subject = jsapi.subject(connection.prefix, endpoint)
        ask = connection.api if endpoint.gathers else connection.ask
        matching: dict[str, bool] = {}
        trouble: list[str] = []
        lasting: list[str] = []
        offset, last = 0, ""
        while True:
            page = ask(subject, jsapi.request_body(offset=offset), context=self._context)
            here = dict(map(self._read, jsapi.field(page, "streams", list, self._context, [])))
            # Servers that do not support a stream's configuration say why.
            offline: dict[str, Any] = jsapi.field(page, "offline", dict, self._context, {})
            missing = {
                *map(str, jsapi.field(page, "missing", list, self._context, []))
            } - offline.keys()
            trouble += [
                f"no server answered for stream {name}"
                for name in sorted(missing)
                if self.may_have(name)
            ]
            lasting += [
                f"no server can run stream {name} ({brief(str(why))})"
                for name, why in offline.items()
                if self.may_have(name)
            ]
            matching |= here
            names = sorted(here.keys() | missing | offline.keys())
            if offset and names[:1] != [last]:
                trouble.append("a stream was created or deleted meanwhile")
            following = offset + jsapi.whole(page, "limit", self._context)
            if (
                not names
                or following - 1 <= offset
                or following >= jsapi.whole(page, "total", self._context)
            ):
                break
            # Pages overlap by one name: if it is another one, the server has counted other streams
            # before it.
            offset, last = following - 1, names[-1]
        kind = ServerBusy if trouble else ApiError
        trouble += lasting
        if trouble and complete:
            why = f"cannot {self._context}: {'; '.join(trouble)}"
            raise kind(why, code=503, err_code=0, description=why)
        if trouble and self._trouble != trouble[0]:
            self._trouble = trouble[0]
            log.warning("cannot %s as a whole: %s", self._context, "; ".join(trouble))
        self.chosen = {name for name, matches in matching.items() if matches}
        mismatched = matching.keys() - self.chosen
        self.others = mismatched & (mismatched if self._mismatched is None else self._mismatched)
        self._mismatched = mismatched

    def _read(self, entry: Any) -> tuple[str, bool]:
        """Return the name of a stream in a reply, and whether it matches."""
        config: Mapping[str, Any] = {"name": entry}
        if self._metadata:
            config = jsapi.field({"entry": entry}, "entry.config", dict, self._context)
        name = jsapi.field(config, "name", str, self._context)
        metadata = jsapi.field(config, "metadata", dict, self._context, {})
        return name, self.may_have(name) and all(
            metadata.get(key) == value for key, value in self._metadata
        )
