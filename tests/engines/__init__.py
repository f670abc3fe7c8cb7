"""Differences of the engines that call the data source."""
