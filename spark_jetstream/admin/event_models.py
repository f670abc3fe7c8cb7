"""The types of events: the documented import path of `spark_jetstream.admin.models.events`."""

from __future__ import annotations

from spark_jetstream.admin.models.events import *  # noqa: F403 - the classes of all types, and what they share
from spark_jetstream.admin.models.events import EVENT_TYPES

_SHARED = ["EVENT_TYPES", "ClusterEvent", "DeliveryEvent", "GroupEvent"]

__all__ = [
    name
    for name in dir()
    if name in {*_SHARED, *(model.__name__ for model in EVENT_TYPES.values())}
]
