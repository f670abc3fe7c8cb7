"""Every end of a run, one by one: at each request that the run sends to the server."""
