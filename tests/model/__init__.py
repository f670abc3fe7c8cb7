"""One model of a stream, and one of a query: the rows that a read returns, and those that are stored."""
