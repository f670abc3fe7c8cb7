"""Connections to a server. The only package that imports nats."""
