"""The doctor runs as a command, without the settings of whoever runs the tests."""

from tests.cli.conftest import without_settings

__all__ = ["without_settings"]
