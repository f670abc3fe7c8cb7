"""The fixtures of the commands: the doctor is called as a command."""

from tests.cli.conftest import do, name, run, without_settings

__all__ = ["do", "name", "run", "without_settings"]
