"""The table of features agrees with the levels of the API."""

from __future__ import annotations

import pytest

from spark_jetstream.protocol import features
from spark_jetstream.protocol.features import COUNTERS, LEVELS, Feature, shown_version, since

ALL = [value for value in vars(features).values() if isinstance(value, Feature)]


@pytest.mark.parametrize("feature", ALL, ids=lambda feature: f"level-{feature.level}")
def test_a_feature_has_the_level_of_its_version(feature: Feature) -> None:
    assert LEVELS[feature.level] == feature.since


def test_a_feature_is_in_its_version_and_later_ones() -> None:
    assert [COUNTERS.is_in(version) for version in ((2, 11, 99), (2, 12, 0), (3, 0, 0))] == [
        False,
        True,
        True,
    ]
    assert [COUNTERS.is_at(level) for level in (1, 2, 5)] == [False, True, True]


def test_a_level_names_the_first_server_that_has_it() -> None:
    """A level between two servers, and one of a later release, is that of the last server known."""
    assert [since(level) for level in (0, 1, 2, 3, 5, 9)] == [
        "before 2.11",
        "2.11",
        "2.12",
        "2.12",
        "2.15",
        "2.15",
    ]


def test_a_version_is_shown_as_servers_write_it() -> None:
    assert shown_version((2, 11, 6)) == "2.11.6"
