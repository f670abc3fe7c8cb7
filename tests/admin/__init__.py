"""Administration, against a real server."""
