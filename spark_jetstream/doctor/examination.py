"""The whole of it, step by step: each section is looked at when it is asked for, and shown before the next begins."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import SecretStr

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.client.pool import connect
from spark_jetstream.doctor.account import check_account, check_connection, check_login, clocks
from spark_jetstream.doctor.findings import Finding, failed, unknown
from spark_jetstream.doctor.java import check_java
from spark_jetstream.doctor.origins import check_files, check_origins
from spark_jetstream.doctor.probes import check_permissions
from spark_jetstream.doctor.purposes import Chosen
from spark_jetstream.doctor.pythons import check_driver, check_extras, check_workers, this_python
from spark_jetstream.doctor.servers import compare, look_at
from spark_jetstream.doctor.spark import check_spark
from spark_jetstream.doctor.stream import Use, check_stream
from spark_jetstream.errors import JetStreamError, PermissionDenied, StreamNotFound
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.servers import address
from spark_jetstream.protocol.units import parse_time


@dataclass(frozen=True)
class Section:
    """Findings that belong together, under a title; they are looked for while they are read."""

    title: str
    findings: Iterable[Finding]
    brief: bool = False
    """Whether those that are ok may be counted instead of shown."""


class Examination:
    """All that can be looked at with what is given.

    ``given`` are connection options of the command line, ``environ`` the variables, ``chosen`` what is to be done.
    ``spark``: True also starts one, False leaves out Spark, its Java and its Python.
    """

    def __init__(
        self, given: Mapping[str, SecretStr], environ: Mapping[str, str], chosen: Chosen, *, spark: bool | None
    ) -> None:
        self.reached = False
        """Whether a server has let us in."""
        self._given = given
        self._environ = environ
        self._chosen = chosen
        self._spark = spark
        self._somebody = False
        self._jetstream = False
        self._info: StreamInfo | None = None
        self._clock_known = False

    def sections(self) -> Iterator[Section]:
        """What there is to look at, in order. Raises `OptionError` when the options make no sense."""
        admin = JetStreamAdmin.from_environment(**self._given)
        if self._spark is not False:
            yield Section("Spark on this machine", self._machine())
        yield Section("Options", self._options(admin.options))
        yield Section("Servers", self._servers(admin.options))
        yield Section("Account", self._account(admin))
        name = self._chosen.stream_name
        if self._jetstream and name is not None:
            yield Section(f"Stream {name}", self._stream(admin, name))
        if self._jetstream and self._chosen.purposes:
            title = f"Permissions to {', '.join(self._chosen.purposes)}"
            yield Section(title, self._permissions(admin.options), brief=True)
        if self._spark:
            yield Section("A local Spark", self._start_spark(admin.options))

    def _machine(self) -> Iterator[Finding]:
        mine = this_python()
        yield from check_java(self._environ, mine.versions.get("pyspark"))
        yield from check_driver(mine, self._environ)
        yield from check_workers(mine, self._environ)

    def _options(self, options: ConnectionOptions) -> Iterator[Finding]:
        yield from check_origins(options, self._given, self._environ)
        yield from check_files(options)
        yield from check_extras(options)

    def _servers(self, options: ConnectionOptions) -> Iterator[Finding]:
        looked = [look_at(url, options) for url in options.servers]
        self._somebody = some = any(each.info is not None for each in looked)
        for each in looked:
            for finding in each.findings:
                # One server that is away is no reason to fail where others are there.
                status = "warning" if finding.status == "failed" and some and each.info is None else finding.status
                check = f"{address(each.url)} {finding.check}"
                yield Finding(check, status, finding.said, finding.what_to_do)
        yield from compare(looked)

    def _account(self, admin: JetStreamAdmin) -> Iterator[Finding]:
        if not self._somebody:
            yield unknown("login", "there is no server to log in to")
            return
        try:
            yield from check_login(admin.options)
        except JetStreamError:
            return  # its finding says it all
        self.reached = True
        for finding in [*check_connection(connect(admin.options))]:
            self._clock_known |= finding.check == "clock"
            yield finding
        self._jetstream = True
        for finding in check_account(admin):
            # Without it all the rest would only say the same again.
            self._jetstream &= (finding.check, finding.status) != ("jetstream", "failed")
            yield finding

    def _stream(self, admin: JetStreamAdmin, name: str) -> Iterator[Finding]:
        try:
            before = time.time_ns()
            self._info = info = admin.streams.load(name)
        except StreamNotFound:
            other = "in which domain is it (option domain)? " if "domain" not in admin.options.given() else ""
            advice = f"{other}is the name right? make it, or let option ensureStream make it"
            yield failed("stream", f"there is no stream {name} in this account", advice)
            return
        except PermissionDenied as error:
            yield unknown("stream", str(error), "see the permissions below")
            return
        except JetStreamError as error:
            yield failed("stream", str(error), "is a leader being elected? try again; then look into the server's log")
            return
        if not self._clock_known:
            yield clocks(parse_time(str(info.ts)), before, time.time_ns())
        yield from check_stream(info, self._use(admin), admin.options)

    def _use(self, admin: JetStreamAdmin) -> Use:
        try:
            account = admin.account.info()
        except JetStreamError:
            # What is wrong with that stands above.
            level = most = None
        else:
            level, most = account.api.level, account.limits.max_consumers
        # Keys of buckets are captured by all means.
        subject = self._chosen.subject if self._chosen.stream is not None else None
        return Use(frozenset(self._chosen.purposes), subject, level, most)

    def _permissions(self, options: ConnectionOptions) -> Iterator[Finding]:
        connection = connect(options)
        queue = self._info is not None and self._info.config.retention == "workqueue"
        clustered = self._info is None or bool(self._info.cluster and self._info.cluster.name)
        lines = self._chosen.permissions(options, queue=queue, old=connection.server_version < (2, 14))
        yield from check_permissions(connection, lines, clustered=clustered)

    def _start_spark(self, options: ConnectionOptions) -> Iterator[Finding]:
        if self._info is None:
            yield unknown("local Spark", "there is no stream to read from", "name one with --stream")
            return
        yield from check_spark(options, _reading(self._chosen, self._info), self._environ)


def _reading(chosen: Chosen, info: StreamInfo) -> dict[str, str]:
    """Options that read the end of a stream, or a bucket."""
    if chosen.bucket is not None:
        return {"bucket": chosen.bucket}
    if chosen.object_bucket is not None:
        return {"objectBucket": chosen.object_bucket, "contentOff": "true"}
    name = info.config.name
    found = {"stream": name, "startingOffsets": json.dumps({name: max(1, info.state.last_seq)})}
    if "direct" in chosen.purposes or info.config.retention == "workqueue":
        found["readWith"] = "direct"
    return found
