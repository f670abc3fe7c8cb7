"""The data on the wire and on the server: no socket, clock, log, asyncio or Spark."""
