"""Ask for known vulnerabilities of every version in constraints.txt, whatever Python it is for.

    python -m tools.audit [options of pip-audit]

It ends with an error for a known vulnerability, and also for a version that could not be looked up.
Without ``--strict`` pip-audit reports nothing for a package that the index does not answer for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.project import ROOT

_ENTRY = re.compile(r"^(\S+)==(\S+)[^\\\n]*\\\n((?:    --hash=.*\n)+)", re.MULTILINE)


def files(constraints: str) -> list[str]:
    """Return the entries of a lock file without conditions, as files with each package once.

    pip-audit leaves out an entry whose condition does not hold where it runs, and takes one version
    of a package.
    """
    versions: Counter[str] = Counter()
    found: list[str] = []
    for name, version, hashes in _ENTRY.findall(constraints):
        if versions[name] == len(found):
            found.append("")
        found[versions[name]] += f"{name}=={version} \\\n{hashes}"
        versions[name] += 1
    return found


def main() -> None:
    """Run pip-audit over the files, and end with its exit code."""
    command = [sys.executable, "-m", "pip_audit", "--strict", "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off", *sys.argv[1:], "--requirement"]
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for number, text in enumerate(files((ROOT / "constraints.txt").read_text())):
            path = Path(folder, f"constraints-{number}.txt")
            path.write_text(text)
            results.append(subprocess.run([*command, path], check=False).returncode)
    if any(results):
        raise SystemExit(
            "the audit of constraints.txt failed: a version is vulnerable, or could not be looked "
            "up"
        )


if __name__ == "__main__":
    main()
