"""Prints, as JSON, what a Python of the workers has. Run by that Python, as a script: it may lack everything.

Also imported, to look at the Python that runs the doctor.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata

DISTRIBUTIONS = ("spark-jetstream", "pyspark", "pyarrow", "nats-py", "numpy", "pydantic", "pandas", "nkeys", "aiohttp")


def look_around() -> dict[str, object]:
    """``python``: its version; ``versions``: of the distributions that there are; ``format``: why Spark's
    workers cannot import the connector, empty where they can."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        module = importlib.import_module("pyspark_jetstream")
        fault = "" if hasattr(module, "DefaultSource") else "pyspark_jetstream has no DefaultSource"
    except Exception as error:  # whatever an import raises is what the workers would see
        fault = f"{type(error).__name__}: {error}"
    return {"python": ".".join(map(str, sys.version_info[:3])), "versions": versions, "format": fault}


if __name__ == "__main__":
    # Python puts the folder of a script in front of all others, and the modules here have names of others.
    sys.path.pop(0)
    sys.stdout.write(json.dumps(look_around()) + "\n")
