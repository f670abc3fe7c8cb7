"""The demo: flights through a server, Spark and back."""
