"""Queries that share a work queue with other clients (option share)."""
