"""Servers, workers and drivers that are killed, clusters and topologies."""
