"""The root of the repository, and what pyproject.toml says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: The project's pages on the code host and of the documentation.
URLS: dict[str, str] = PYPROJECT["project"]["urls"]
