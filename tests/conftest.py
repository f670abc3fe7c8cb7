"""Shared by all tests: one server, one Spark session, streams of a test's own."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import close_all
from spark_jetstream.java import ensure_java
from spark_jetstream.sink import preflight, stream_warnings
from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.ledger import LedgerTimes
from spark_jetstream.testing import NatsServer
from tests.support.client import close_lost, set_timing
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream

pytest_plugins = ["spark_jetstream.testing.plugin"]

# Two cores that Spark and a server share: how long one example takes says nothing.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

_numbers = itertools.count(1)
_spark_log: pytest.StashKey[Path] = pytest.StashKey()

# A shell without job control starts what is in the background with interrupts ignored, which
# processes pass on.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Accept the sockets that older Sparks leave to the garbage collector, one for each `collect`."""
    if pyspark.__version__.startswith(("4.0.", "4.1.")):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


# Last: then `items` holds only the tests that will run.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give one process the tests of minutes first, and the next process those that use the
    session's Spark.

    With `--dist worksteal` each process begins with an equal share of the list, and takes from the
    end of another's share when it has finished its own. No process is left alone with a long test
    at the end, and in the quick tier often only one starts Spark.
    """
    on_spark = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    others = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]
    folders = ("tests/chaos/", "tests/compat/", "tests/demo/")
    others.sort(
        key=lambda item: (
            item.get_closest_marker("full") is None and not item.nodeid.startswith(folders)
        )
    )
    share = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [*others[:share], *on_spark, *others[share:]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of what Spark wrote with a failure: its exceptions in Python do not tell their
    causes.
    """
    report = yield
    if (
        report.failed
        and "spark" in getattr(item, "fixturenames", ())
        and _spark_log in item.config.stash
    ):
        text = item.config.stash[_spark_log].read_text("utf-8", "replace")
        report.sections.append(("Standard error of Spark", text[-8000:]))
    return report


class SparkLog:
    """The standard error of Spark and its Python processes since the test began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    @property
    def text(self) -> str:
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode("utf-8", "replace")

    def wait_for(self, pattern: str) -> None:
        """Wait until a line matches: what a Python process says takes a moment through the JVM."""
        wait_until(lambda: re.search(pattern, self.text) is not None, pattern)


@pytest.fixture(scope="session")
def spark_log_file(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = pytestconfig.stash[_spark_log] = tmp_path_factory.mktemp("spark") / "log"
    path.touch()
    return path


@pytest.fixture(scope="session")
def spark(spark_log_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark of two cores, one for the whole session. It finds the data source by
    `pyspark_jetstream`.

    With several processes (pytest-xdist) each has one: starting it takes seconds, and the tests
    that use it minutes.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["JAVA_HOME"] = ensure_java()
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark-jetstream tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        # Each query runs for a second or two: what the JVM's second compiler makes of it is never
        # used.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    )
    session = _into(spark_log_file, builder.getOrCreate)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _into(path: Path, start: Callable[[], SparkSession]) -> SparkSession:
    """Start the JVM with its output in a file: it keeps these descriptors for good, whatever pytest
    does to ours.
    """
    kept = [os.dup(1), os.dup(2)]
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            return start()
        finally:
            for number, copy in enumerate(kept, start=1):
                os.dup2(copy, number)
                os.close(copy)


@pytest.fixture
def spark_log(spark: SparkSession, spark_log_file: Path) -> SparkLog:
    """Return the standard error of Spark during this test."""
    return SparkLog(spark_log_file)


@pytest.fixture(scope="session")
def nats_server_options() -> dict[str, Any]:
    """The shared server also serves its counters, and keeps connections that are quiet while long
    tests run.

    Its limit does not depend on how full the disk is.
    """
    return {
        "http_monitor": True,
        "config": 'ping_interval: "1h"\njetstream { max_file_store: 1TB }',
    }


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of the test's own, which holds nothing; it tells how many clients it has."""
    with NatsServer(http_monitor=True) as running:
        yield running


@pytest.fixture(autouse=True)
def no_lost_connection() -> Iterator[None]:
    """No connection that was lost outlives the test."""
    yield
    close_lost()


@pytest.fixture
def no_connection_left() -> Iterator[None]:
    """No connection outlives the test: where each has servers of its own, none is of use to the
    next.
    """
    yield
    close_all()


@pytest.fixture
def no_election(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask a server that says that there is no stream again at once, over connections of the test."""
    close_all()
    set_timing(monkeypatch, election=0.01)
    yield
    close_all()


@pytest.fixture
def quick_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease in the ledger is short, and nothing that an earlier test has checked counts."""
    monkeypatch.setattr(MessageSink, "ledger_times", LedgerTimes(lease=0.3))
    for known in (preflight._checked, stream_warnings._warned):
        known.clear()


@pytest.fixture(scope="session")
def publisher(nats_server: NatsServer) -> Iterator[Publisher]:
    """A connection to the shared server, to store messages and to look after streams."""
    with Publisher(nats_server.url) as publisher:
        publisher.store = nats_server.store_dir
        # A server removes the folder of an account's streams together with the last one, in the
        # background, and fails to make the store of a stream that is created at that moment: one
        # that stays keeps the folder.
        publisher.api(
            "STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"], "storage": "file"}
        )
        yield publisher


@pytest.fixture
def stream(nats_server: NatsServer, publisher: Publisher) -> Iterator[MakeStream]:
    """A function that makes a stream on the shared server, with a name of its own; gone after the
    test.
    """
    made: list[Stream] = []

    def make(name: str = "", **config: Any) -> Stream:
        made.append(Stream(nats_server.url, name or f"T{next(_numbers)}", publisher, **config))
        return made[-1]

    yield make
    for each in made:
        names = publisher.api("STREAM.NAMES").get("streams") or []
        if each.name in names:
            each.delete()


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[WireProxy]:
    """A wire to the shared server that a test can break."""
    with WireProxy(nats_server.url) as running:
        yield running


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[JetStreamAdmin]:
    """Administers the shared server."""
    with JetStreamAdmin(servers=nats_server.url) as admin:
        yield admin
