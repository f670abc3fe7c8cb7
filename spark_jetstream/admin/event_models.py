"""The types of events: the documented import path of `spark_jetstream.admin.models.events`."""

from __future__ import annotations

from spark_jetstream.admin.models import events
from spark_jetstream.admin.models.events import *  # noqa: F403 - all of its names, as `__all__` there lists them

__all__ = events.__all__
