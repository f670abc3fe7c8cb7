"""Values for people: models with durations and sizes as text, and what a terminal may show. Pure."""

from __future__ import annotations

import json
from typing import Any

from spark_jetstream.admin.models.base import Model


def readable(value: Any) -> str:
    """A value for people: durations such as ``1h30m``, sizes such as ``1GiB``, JSON for what has parts."""
    if value is None or value in ((), {}, ""):
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Model):
        return json.dumps(rendered(value), ensure_ascii=False)
    if isinstance(value, (tuple, dict)):
        return json.dumps(_rendered(value), ensure_ascii=False)
    return str(value)


def rendered(model: Model) -> dict[str, Any]:
    """The fields that are set, for people: durations and sizes as text that `Model.parse` reads again."""
    return {name: _rendered(getattr(model, name)) for name in model.field_names if name in model.model_fields_set}


def _rendered(value: Any) -> Any:
    if isinstance(value, Model):
        return rendered(value)
    if isinstance(value, (tuple, list)):
        return [_rendered(each) for each in value]
    if isinstance(value, dict):
        return {name: _rendered(each) for name, each in value.items()}
    if isinstance(value, bool) or value is None or type(value) in (int, str):
        return value
    if isinstance(value, int) and value < 0:
        return int(value)  # there is no text for a negative duration
    return str(value)
