"""Faults of Spark: killed workers, planners, executors and drivers; queries with other options."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from spark_jetstream.protocol import features
from spark_jetstream.protocol.conventions import LEDGER_BUCKET
from tests.chaos.scenario import Fault, Layout, Query
from tests.support.jobs import kill
from tests.support.publish import Refused

if TYPE_CHECKING:
    from tests.chaos.world import World

_LOOK = 0.0005  # seconds between two looks at what is on disk for some milliseconds only


def workers_killed(world: World, fault: Fault) -> None:
    """The Python processes that run tasks."""
    kill(world.job.workers())


def planners_killed(world: World, fault: Fault) -> None:
    """The Python process that plans one of the queries: the query fails, and is started again."""
    planners = sorted(world.job.planners())
    kill(planners[fault.target % len(planners) :][:1] if planners else [])


def executor_killed(world: World, fault: Fault) -> None:
    """The JVM of one of two executors, with its Python workers and whatever its tasks have done."""
    world.wait(lambda: bool(world.job.executors()), "executors")
    executors = sorted(world.job.executors())
    kill([executors[fault.target % len(executors)]])


def driver_killed(world: World, fault: Fault) -> None:
    """All processes of the job, which is started again."""
    world.job.kill()
    world.start_job()


def driver_killed_between_commits(world: World, fault: Fault) -> None:
    """The same when the sink of a query has a batch that Spark has not noted as done: the batch
    comes again.

    The driver is stopped to look. If Spark has noted the batch by then, it goes on until the next
    one.
    """
    noting = [query for query in world.scenario.queries if query.level in (None, "exactly-once")]
    # In `foreachBatch` each batch has an entry of its own in the ledger.
    ahead = [_ahead(world, query) for query in noting if query.spread != "united"]

    def caught() -> bool:
        if not any(each() for each in ahead):
            return False
        drivers = world.job.drivers()
        kill(drivers, signal.SIGSTOP)
        if any(each() for each in ahead):
            return True
        kill(drivers, signal.SIGCONT)
        return False

    def look() -> bool:
        """Many times in a row: it lasts for some milliseconds only."""
        end = time.monotonic() + 1
        while time.monotonic() < end:
            if caught():
                return True
            time.sleep(_LOOK)
        return False

    world.wait(look, "a batch that a sink has committed and Spark has not")
    driver_killed(world, fault)


def _ahead(world: World, query: Query) -> Callable[[], bool]:
    """Whether the sink of a query has committed a later batch than Spark."""
    job = world.job
    if query.level is None:
        return lambda: job.latest(f"rows/{query.name}") > job.latest(f"{query.name}/commits")
    stream, key = (
        f"KV_{LEDGER_BUCKET}",
        json.loads((job.checkpoint / query.name / "metadata").read_text())["id"],
    )

    def noted() -> bool:
        committed = job.latest(f"{query.name}/commits")
        with contextlib.suppress(OSError, Refused):
            last = {"last_by_subj": f"$KV.{LEDGER_BUCKET}.{key}.batch"}
            message = world.api(f"STREAM.MSG.GET.{stream}", last)["message"]
            return int(json.loads(base64.b64decode(message["data"]))["batch"]) > committed
        return False

    return noted


def options_changed(world: World, fault: Fault) -> None:
    """All processes of the job, whose queries have other options when it is started again."""
    world.job.kill()
    world.changed = fault.target
    world.start_job()


def layout_changed(world: World, fault: Fault) -> None:
    """All processes of the job when a query has stored some rows of a batch; the batch comes in
    other partitions.
    """
    if world.scenario.servers == 1:
        writing = [query for query in world.scenario.queries if query.level is not None]
        query = writing[fault.target % len(writing)]
        held = world.proxy.stall_after(
            b'{"stream":"%s"' % query.target.encode(), 1 + fault.target % 20
        )
        _kill_at(world, held, world.job.processes, cut=fault.target % 2 == 0)
    world.job.kill()
    world.layout = Layout.of(fault.target)
    world.start_job()


def workers_killed_reading(world: World, fault: Fault) -> None:
    """The Python workers when the server has sent some of the messages that they read, and no more
    comes.
    """
    reading = [query for query in world.scenario.queries if query.source.of != "files"]
    query = reading[fault.target % len(reading)]
    # Each text begins with the name of its stream.
    held = world.proxy.stall_after(b"\r\n%s " % query.streams[0].encode(), 1 + fault.target % 40)
    _kill_at(world, held, world.job.workers)


def workers_killed_writing(world: World, fault: Fault) -> None:
    """The same when they have sent rows: these are under way, or are lost, or are stored and the
    answers under way.
    """
    query = world.scenario.queries[-1]
    if fault.target % 2:
        held = world.proxy.stall_after(
            b'{"stream":"%s"' % query.target.encode(), 1 + fault.target % 20
        )
    else:
        held = world.proxy.stall_at(b"%s.row" % query.target.encode())
    _kill_at(world, held, world.job.workers, cut=fault.target % 4 == 0)


def planners_killed_committing(world: World, fault: Fault) -> None:
    """The planners when a query moves its consumer: the request is under way, or lost, or its
    answer is lost.

    The request lets go of a batch's messages. Or it takes the consumer over for a new run, after a
    planner was killed.
    """
    durable = [query for query in world.scenario.queries if query.source.durable]
    rest, at = divmod(fault.target, len(durable))
    cut, moment = divmod(rest, 3)
    query = durable[at]
    name = query.streams[0].encode()
    request, answer = _letting_go(query)
    if moment == 0:
        held = world.proxy.replace_frames(answer, 1, lambda frame: b"")
    elif moment == 1:
        held = world.proxy.stall_at(b"$JS.API.%s.%s" % (request, name))
    else:
        # With one filter the request's subject ends in it.
        filters = (
            b""
            if query.source.subject is None
            else b".%s.%s" % (name, query.source.subject.encode())
        )
        held = world.proxy.stall_at(b"$JS.API.CONSUMER.CREATE.%s.spark%s " % (name, filters))
        kill(world.job.planners())
    _kill_at(world, held, world.job.planners, cut=cut % 2 == 1)


def _letting_go(query: Query) -> tuple[bytes, bytes]:
    """The request by which a commit lets go of messages, and the type of its answer."""
    if query.source.purges:
        return b"STREAM.PURGE", b"stream_purge_response"
    if features.CONSUMER_RESET.is_in(query.server):
        return b"CONSUMER.RESET", b"consumer_reset_response"
    # The commit creates the consumer again.
    return b"CONSUMER.DELETE", b"consumer_delete_response"


def _kill_at(
    world: World,
    held: threading.Event,
    victims: Callable[[], Collection[int]],
    *,
    cut: bool = False,
) -> None:
    """Kill at a moment when the wire may stand still.

    Frames that were held back are lost, or arrive after the death.
    """
    try:
        world.wait(held.is_set, "the moment to kill")
        kill(victims())
        if cut:
            world.proxy.cut()
    finally:
        world.proxy.drop(None)
        world.proxy.unstall()
