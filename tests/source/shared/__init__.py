"""Queries that share a work queue (option share)."""
