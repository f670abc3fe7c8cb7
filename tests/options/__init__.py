"""Options, without a server."""
