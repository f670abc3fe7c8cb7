"""Readers of a stream."""
