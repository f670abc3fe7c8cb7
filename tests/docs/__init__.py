"""The examples of the docs and the notebooks."""
