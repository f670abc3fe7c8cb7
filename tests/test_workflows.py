"""The files of the code host: they parse, call what exists, and ask for no more than they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.project import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
#: The permissions of a job beside reading the repository.
RIGHTS = {
    ("docs", "deploy"): {"pages": "write", "id-token": "write"},
    ("release", "attest"): {"id-token": "write", "attestations": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("release", "announce"): {"contents": "write"},
}


def read(path: Path) -> Any:
    """Return a YAML file with every value as text: `on` is a key, and 3.10 is no number."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def test_all_files_are_yaml() -> None:
    files = [*GITHUB.rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) > len(WORKFLOWS) > 3
    assert all(isinstance(read(path), dict) for path in files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_have_few_rights_and_end_in_time(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    for name, job in workflow["jobs"].items():
        assert 0 < int(job["timeout-minutes"]) <= 120, name
        assert job.get("permissions", {}) == RIGHTS.get((path.stem, name), {})
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] == "false"
            # A name or a branch that somebody else chose is never part of a script.
            assert "${{" not in step.get("run", "")


def test_actions_are_pinned_by_commit_and_each_by_one() -> None:
    # A tag can be moved to another commit; the comment is what people and Dependabot read.
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    used = re.findall(r"^.*\buses:(.*)$", text, re.MULTILINE)
    pins = [
        re.fullmatch(r" ([\w./-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)
        for each in sorted(set(used))
    ]
    assert None not in pins, used
    assert len({pin[1] for pin in pins if pin}) == len(pins) > 5


def test_files_are_published_after_they_were_audited_and_attested() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    steps = [step.get("run") for step in jobs["build"]["steps"]]
    assert steps.index("make audit") < steps.index("make release-check")
    assert jobs["publish"]["needs"] == "attest"


def test_workflows_and_pages_run_only_commands_that_exist() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    made = set(re.findall(r"^  make (\S+)", listed, re.MULTILINE))
    steps = [
        step for path in WORKFLOWS for job in read(path)["jobs"].values() for step in job["steps"]
    ]
    run = "\n".join(step["run"] for step in steps if "run" in step)
    called = set(re.findall(r"\bmake ([\w-]+)", run))
    pages = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    )
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", pages, re.MULTILINE))
    assert {"lint", "test", "docs", "audit", "release-check", "lock", "matrix"} <= called <= made
    assert {"demo", "test"} <= named <= made
    for script in re.findall(r"^(\.\S+)", run, re.MULTILINE):
        assert (ROOT / script).is_file(), script
