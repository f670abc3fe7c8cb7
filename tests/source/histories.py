"""Histories of streams and of a streaming query that reads them, made from a seed.

A history has a stream or several, a query with random options, and some dozens of operations in a
random order. An operation changes what streams hold, or lets Spark take the next of its steps,
crash, or start again with other options.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spark_jetstream.admin.streams import Streams
from tests.model.stream import HOUR, Kept, Life
from tests.source.expected import Difference
from tests.source.modelled import Query
from tests.support.publish import Message, Publisher

TOKENS = ("a", "b", "c", "a.x", "b.x")


class History:
    """A history, which `run` makes. `log` says what happened so far."""

    def __init__(
        self, seed: int, url: str, publisher: Publisher, admin: Streams, folder: Path
    ) -> None:
        self.seed, self.url, self.publisher, self.admin, self.folder = (
            seed,
            url,
            publisher,
            admin,
            folder,
        )
        self.log: list[str] = []
        self.chance = chance = random.Random(f"history {seed}")
        self.name = f"H{seed}"
        self.what = chance.choice(["stream"] * 6 + ["streamPattern"] * 2 + ["bucket"])
        kinds = (
            ["limits", "limits", "limits", "interest", "workqueue"]
            if self.what == "stream"
            else ["limits"]
        )
        self.retention = chance.choice(kinds)
        self.query = Query(chance, url, self.name, self.what, self.retention, self.log)
        self.streams = [
            self._stream(n)
            for n in range(1 if self.what == "bucket" else chance.choice([1, 1, 1, 2, 3]))
        ]
        self.query.streams = self.streams

    def run(self) -> None:
        """Do operations, then let the query read the rest.

        Raises `Difference` with all that happened.
        """
        operations: dict[Callable[[], None], int] = {
            self.query.step: 60,
            self.publish: 20,
            self.delete_message: 5,
            self.purge: 3,
            self.update: 2,
            self.recreate: 1,
            self.query.crash: 4,
            self.query.read_batch: 3,
            self.acknowledge: 3 if self.retention != "limits" else 0,
        }
        try:
            for kept in self.streams:
                self._create(kept)
            for _ in range(self.chance.randint(20, 60)):
                (operation,) = self.chance.choices(list(operations), list(operations.values()))
                with suppress(LookupError):  # no stream exists
                    operation()
            self._drain()
        except Exception as error:
            told = error if isinstance(error, Difference) else f"{type(error).__name__}: {error}"
            raise Difference("\n".join([f"SEED={self.seed}", *self.log, f"!! {told}"])) from error
        finally:
            for kept in self.streams:
                if kept.life is not None:
                    kept.delete()

    def _drain(self) -> None:
        self.log.append("drain")
        for kept in self.streams:
            if kept.life is None:
                self._create(kept)
        self.query.read_the_rest()

    # Streams

    def _stream(self, number: int) -> Kept:
        chance, config = self.chance, dict[str, Any](allow_direct=True, retention=self.retention)
        config["storage"] = chance.choice(["memory", "memory", "file"])
        name, subject = f"{self.name}-{number}", f"{self.name}.{number}"
        if self.what == "bucket":
            name, subject = f"KV_{self.name}", f"$KV.{self.name}"
            config |= {
                "max_msgs_per_subject": chance.choice([1, 3, 64]),
                "discard": "new",
                "allow_rollup_hdrs": True,
            }
            config |= {"deny_delete": True, "allow_msg_ttl": chance.random() < 0.3}
        else:
            rare: list[tuple[float, str, Any]] = [
                (0.3, "max_msgs", chance.randint(3, 40)),
                (0.15, "max_bytes", chance.randint(2, 40) * 1000),
                (0.2, "max_msgs_per_subject", chance.randint(1, 5)),
                (0.2, "discard", "new"),
                (0.1, "max_age", HOUR),
                (0.1, "first_seq", chance.choice([2, 10, 2**53 + 1])),
                (0.15, "allow_rollup_hdrs", True),
                (0.1, "allow_msg_ttl", True),
            ]
            config |= {option: value for share, option, value in rare if chance.random() < share}
        return Kept(self.url, self.publisher, name, subject, config)

    def _create(self, kept: Kept) -> None:
        kept.create()
        self.log.append(f"create {kept.name} {kept.config}")
        if self.query.other:
            other = {
                "durable_name": "other",
                "ack_policy": "explicit",
                "filter_subject": f"{kept.subject}.c",
            }
            body = {"stream_name": kept.name, "config": other}
            self.publisher.api(f"CONSUMER.CREATE.{kept.name}.other", body)

    def _any(self) -> tuple[Kept, Life]:
        """One of the streams that exist. Raises `LookupError` if none does."""
        kept = self.chance.choice([kept for kept in self.streams if kept.life is not None])
        assert kept.life is not None
        return kept, kept.life

    def publish(self) -> None:
        chance, said = self.chance, list[str]()
        kept, life = self._any()
        for _ in range(chance.choice([1, 1, 2, 3, 5, 8, 13])):
            size = chance.choice([0, 1, 10, 100, 1000, chance.choice([5000, 300_000])])
            headers, rollup = list[tuple[str, str]](), ""
            if chance.random() < 0.3:
                headers += [
                    (chance.choice("ABC"), str(chance.randint(0, 9)))
                    for _ in range(chance.randint(1, 3))
                ]
            if kept.config.get("allow_rollup_hdrs") and chance.random() < 0.05:
                rollup = "sub" if self.what == "bucket" else chance.choice(["sub", "all"])
                headers.append(("Nats-Rollup", rollup))
            if kept.config.get("allow_msg_ttl") and chance.random() < 0.3:
                headers.append(("Nats-TTL", "1h"))
            if self.what == "bucket" and (rollup or chance.random() < 0.2):
                headers.append(("KV-Operation", "PURGE" if rollup else "DEL"))
            subject = f"{kept.subject}.{chance.choice(TOKENS)}"
            answer = kept.publish(Message(subject, chance.randbytes(size), headers or None))
            kept.look()
            if rollup:
                life.purged(subject if rollup == "sub" else "", self.query.filters)
            said.append(f"{subject}={answer}{rollup and ' rollup ' + rollup}")
        self.log.append(f"publish {' '.join(said)}")

    def delete_message(self) -> None:
        kept, life = self._any()
        if life.present and not kept.config.get("deny_delete"):
            sequence = self.chance.choice(
                [min(life.present), max(life.present), self.chance.choice([*life.present])]
            )
            how = {"seq": sequence, "no_erase": self.chance.random() < 0.7}
            self.publisher.api(f"STREAM.MSG.DELETE.{kept.name}", how)
            kept.look()
            life.deleted_to = max(life.deleted_to, sequence + 1)
            self.log.append(f"delete from {kept.name} {how}")

    def purge(self) -> None:
        kept, life = self._any()
        which: dict[str, Any] = {}
        if self.chance.random() < 0.6:
            which["filter"] = f"{kept.subject}.{self.chance.choice([*TOKENS, '>', '*.x'])}"
        limit = self.chance.choice(["seq", "keep", None, None])
        if limit is not None:
            which[limit] = (
                self.chance.randint(max(1, life.first - 1), life.last + 1) if limit == "seq" else 3
            )
        self.publisher.api(f"STREAM.PURGE.{kept.name}", which)
        kept.look().purged(which.get("filter", ""), self.query.filters, which.get("seq", 0))
        self.log.append(f"purge {kept.name} {which}: now {life.first} to {life.last}")

    def update(self) -> None:
        kept, _ = self._any()
        changes: list[dict[str, Any]] = [
            {"max_msgs": self.chance.choice([-1, self.chance.randint(3, 40)])},
            {"max_bytes": self.chance.choice([-1, self.chance.randint(2, 40) * 1000])},
            {"max_msgs_per_subject": self.chance.choice([-1, self.chance.randint(1, 5)])},
            {"discard": self.chance.choice(["old", "new"])},
        ]
        if self.what != "bucket":
            change = self.chance.choice(changes)
            self.log.append(f"update {kept.name} {change}")
            kept.update(change)

    def recreate(self) -> None:
        kept = self.chance.choice(self.streams)
        # An interest stream without consumers loses its messages at some time.
        if self.chance.random() < 0.3 and self.retention == "limits":
            kept.back_up(self.admin, self.folder / kept.name)
            return
        if kept.life is not None:
            kept.delete()
            self.log.append(f"delete {kept.name}")
        if self.chance.random() < 0.5 and kept.restore(self.admin):
            self.log.append(f"restore {kept.name}")
        elif (
            self.chance.random() < 0.7 or self.what == "bucket"
        ):  # no run begins without its bucket
            self._create(kept)

    def acknowledge(self) -> None:
        """Let the consumer of another application take messages."""
        kept, _ = self._any()
        if self.query.other:
            pending = self.publisher.api(f"CONSUMER.INFO.{kept.name}.other")["num_pending"]
            taken = (
                kept.acknowledge("other", min(pending, 3), self.query.filters) if pending else []
            )
            self.log.append(f"acknowledge {kept.name} {taken}")


@contextmanager
def warnings_of(history: History) -> Iterator[None]:
    """Gives a history the warnings of the connector."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            history.query.warnings.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("spark_jetstream")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
