"""Servers that count as older or newer than they are."""

from __future__ import annotations

from dataclasses import replace

from spark_jetstream.protocol.features import Feature


def for_all(feature: Feature) -> Feature:
    """Return a feature that each server has."""
    return replace(feature, version=(0, 0, 0), level=0)


def for_none(feature: Feature) -> Feature:
    """Return a feature that no server has."""
    return replace(feature, version=(99, 0, 0), level=99)
