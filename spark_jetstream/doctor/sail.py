"""Checks of Sail on this machine: its release, its client, and whether it finds the connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata

from spark_jetstream.doctor.findings import Finding, failed, ok, version_of, warning

_TESTED = (0, 7)
_GROUP = "pysail.datasources"


def is_alone(versions: Mapping[str, str]) -> bool:
    """Whether a Python with these distributions has Sail, and no Spark that it could start."""
    return "pysail" in versions and "pyspark" not in versions


def engine_of(versions: Mapping[str, str]) -> str:
    """Return the name of the engine that a Python with these distributions can start."""
    return "Sail" if is_alone(versions) else "Spark"


def check_sail(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Sail of this Python, if it has one. ``versions`` are those of distributions."""
    sail = versions.get("pysail")
    if sail is None:
        return
    client = versions.get("pyspark-client", versions.get("pyspark"))
    if client is None:
        text = f"{sail} has no client in this Python"
        yield failed("pysail", text, "pip install 'pyspark-client>=4.0'")
    elif version_of(sail)[:2] != _TESTED:
        known = ".".join(map(str, _TESTED))
        text = f"{sail} was not tested with the connector, and {known} was"
        yield warning("pysail", text, f"pip install 'pysail=={known}.*'")
    else:
        text = f"{sail}, with client {client}: reads and writes batches, without Java"
        yield ok("pysail", text)
    yield _check_format()


def _check_format() -> Finding:
    check = 'format("jetstream") on Sail'
    if any(entry.name == "jetstream" for entry in metadata.entry_points(group=_GROUP)):
        return ok(check, "Sail finds it")
    text = f"spark-jetstream is not installed with an entry point {_GROUP}, by which Sail finds it"
    advice = "pip install spark-jetstream anew, or call spark_jetstream.register(spark)"
    return failed(check, text, advice)
