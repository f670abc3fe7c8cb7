"""Join the sites of several versions: ``.ci/site_versions.py DIRECTORY``, which has a folder for each version.

Writes what the selector of versions reads. A reader who names no version gets the newest release,
or ``dev``, the site of the main branch, while there is none.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import Version

DEVELOPMENT = "dev"


def join(pages: Path) -> None:
    """Write `versions.json`, `index.html`, `404.html` and `llms.txt` beside the folders."""
    names = {folder.name for folder in pages.iterdir() if folder.is_dir()}
    versions = [*sorted(names - {DEVELOPMENT}, key=Version, reverse=True), DEVELOPMENT]
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (pages / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    first = (
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/"><a '
        f'href="{versions[0]}/">spark-jetstream</a>\n'
    )
    (pages / "index.html").write_text(
        f"<!doctype html><title>spark-jetstream</title>{first}", encoding="utf-8"
    )
    # Programs look for llms.txt at the root; its links name the version.
    for name in ("404.html", "llms.txt"):
        shutil.copy(pages / versions[0] / name, pages)


if __name__ == "__main__":
    join(Path(sys.argv[1]))
