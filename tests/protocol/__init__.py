"""Parsers and encoders, without a server."""
