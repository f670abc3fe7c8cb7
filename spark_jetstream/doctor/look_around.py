"""Prints the versions of a Python and of its libraries as JSON.

The Python of Spark's workers runs this as a script, and may lack all libraries. The doctor's own Python imports it.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata

DISTRIBUTIONS = ("spark-jetstream", "pyspark", "pyarrow", "nats-py", "numpy", "pydantic", "pandas", "nkeys", "aiohttp")


def look_around() -> dict[str, object]:
    """Return what the script prints.

    ``python`` is the version of Python, ``versions`` has those of the installed distributions, and ``format`` is the
    error of importing the connector, empty if there is none.
    """
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        module = importlib.import_module("pyspark_jetstream")
        fault = "" if hasattr(module, "DefaultSource") else "pyspark_jetstream has no DefaultSource"
    except Exception as error:  # noqa: BLE001 - whatever hinders an import is what the doctor reports
        fault = f"{type(error).__name__}: {error}"
    return {"python": ".".join(map(str, sys.version_info[:3])), "versions": versions, "format": fault}


if __name__ == "__main__":
    # Python puts the folder of a script first, and modules here have the names of other modules.
    sys.path.pop(0)
    sys.stdout.write(json.dumps(look_around()) + "\n")
