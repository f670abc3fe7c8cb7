"""The servers for tests."""
