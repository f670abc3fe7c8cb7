"""Configurations to begin with: what a new stream or consumer has where nothing else is said. Pure but for `template`.

A template is a mapping of fields; what is given beside it wins::

    admin.streams.create(DEFAULT_WORK_QUEUE, name="JOBS", subjects=["jobs.>"])
    admin.streams.create(template("team-stream.yaml"), name="ORDERS", subjects=["orders.>"], max_age="30d")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spark_jetstream.admin.changing import own_configuration
from spark_jetstream.admin.plan_files import file_content
from spark_jetstream.errors import OptionError
from spark_jetstream.values import file_path

DEFAULT_STREAM: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "allow_direct": True,
    }
)
"""A stream on disk that keeps everything until a limit says otherwise, and answers direct reads."""

DEFAULT_WORK_QUEUE: Mapping[str, Any] = MappingProxyType(
    {
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
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


def template(path: str | os.PathLike[str], what: str = "template") -> dict[str, Any]:
    """The user's own template: a file with one object, whose fields are those of a configuration.

    The file may also hold what ``stream info --json`` or ``consumer info --json`` prints, here or by the ``nats``
    command.

    YAML where the name ends in ``.yaml`` or ``.yml``, else JSON. Which fields there are, and what they may hold, is
    checked where the template is used. `OptionError`, which begins with ``what`` and the file, when the file cannot be
    read, or holds something else.
    """
    file = os.path.expanduser(file_path(what, path))
    documents = file_content(file, f"{what} {file}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise OptionError(f"{what} {file}: this is not one object with the fields of a configuration")
    return dict(own_configuration(documents[0]))
