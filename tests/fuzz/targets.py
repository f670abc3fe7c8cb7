"""All targets, by name."""

from tests.fuzz import files, messages, replies
from tests.fuzz.engine import TARGETS

__all__ = ["TARGETS", "files", "messages", "replies"]
