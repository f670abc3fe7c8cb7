"""Measures what the source and the sink reach with a server, without Spark: their own code, in this process."""
