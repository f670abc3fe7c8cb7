"""The source."""
