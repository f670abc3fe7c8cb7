"""Files that options name, found on the node that needs them."""

from __future__ import annotations

import os

from pyspark import SparkFiles


def find_file(path: str) -> str:
    """The place of a file on this node: as named, or as sent along with `--files` or `addArtifacts`."""
    if os.path.exists(path):
        return path
    name = os.path.basename(path)
    try:
        sent = SparkFiles.get(name)
    except (RuntimeError, AttributeError, AssertionError):  # outside a Spark process there are no such files
        return path
    # The driver of a streaming query is given a folder of its own, `streaming_job`, below the one with the files.
    above = os.path.join(os.path.dirname(os.path.dirname(sent)), name)
    return next((place for place in (sent, above) if os.path.exists(place)), path)
