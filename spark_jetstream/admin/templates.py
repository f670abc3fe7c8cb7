"""Configurations to begin with: what a new stream or consumer has where nothing else is said. Pure but for `template`.

A template is a mapping of fields; what is given beside it wins::

    admin.streams.create(DEFAULT_WORK_QUEUE, name="JOBS", subjects=["jobs.>"])
    admin.streams.create(template("team-stream.json"), name="ORDERS", subjects=["orders.>"], max_age="30d")
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spark_jetstream.errors import OptionError

DEFAULT_STREAM: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "duplicate_window": "2m",
        "allow_direct": True,
    }
)
"""A stream on disk that keeps everything until a limit says otherwise, and answers direct reads."""

DEFAULT_WORK_QUEUE: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
        "duplicate_window": "2m",
        "allow_direct": True,
    }
)
"""A queue on disk from which a message goes when it was worked on; when it is full, publishers are told."""

DEFAULT_CONSUMER: Mapping[str, Any] = MappingProxyType(
    {
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
    }
)
"""A pull consumer that delivers everything, and everything again until it is acknowledged."""


def template(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The user's own template: a JSON file with one object, whose fields are those of a configuration.

    Which fields there are, and what they may hold, is checked where the template is used. `OptionError` when the file
    cannot be read, or is something else.
    """
    file = Path(path).expanduser()
    fault = ""
    found: object = None
    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as error:
        fault = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
    except UnicodeDecodeError:
        fault = "is not UTF-8 text"
    except (ValueError, RecursionError) as error:
        fault = f"is not JSON: {error}"
    if not fault and not isinstance(found, dict):
        fault = "is not a JSON object"
    if fault or not isinstance(found, dict):
        raise OptionError(f"template {file} {fault}")
    return found
