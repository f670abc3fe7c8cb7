"""What is on the wire and on the server, as data: no socket, clock, log, asyncio or Spark."""
