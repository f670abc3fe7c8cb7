"""Build the wheel, install it into a folder of its own, and check what users get: ``python -m tests.check_wheel``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from pathlib import Path
from zipfile import ZipFile

import spark_jetstream

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = {
    ("console_scripts", "spark-jetstream", "spark_jetstream.cli.main:main"),
    ("pytest11", "spark_jetstream", "spark_jetstream.testing.plugin"),
}


def check(holds: bool, text: str) -> None:
    """End with this text unless the condition holds."""
    if not holds:
        raise SystemExit(f"the wheel is not what it should be: {text}")


def pip(*arguments: str | Path) -> None:
    """Run pip without a package index and without dependencies."""
    common = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    command, *rest = arguments
    subprocess.run([sys.executable, "-m", "pip", command, *common, *rest], check=True)


def check_files(wheel: Path) -> None:
    """Compare the files in the wheel with those of the package."""
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = (path for path in (ROOT / "spark_jetstream").rglob("*") if path.is_file())
    sources = {path.relative_to(ROOT).as_posix() for path in package if "__pycache__" not in path.parts}
    sources.add("pyspark_jetstream.py")
    check("spark_jetstream/py.typed" in packed, "py.typed is missing")
    check(packed == sources, f"missing or not of the package: {sorted(packed ^ sources)}")


def check_metadata(target: Path) -> None:
    """Compare name, version, description, license and entry points."""
    (distribution,) = Distribution.discover(path=[str(target)])
    metadata = distribution.metadata
    version = spark_jetstream.__version__
    check(metadata["Name"] == "spark-jetstream", f"its name is {metadata['Name']}")
    check(metadata["Version"] == version, f"its version is {metadata['Version']}, not {version}")
    readme = (ROOT / "README.md").read_text().strip()
    check(readme in (distribution.read_text("METADATA") or ""), "README.md is not its description")
    check(metadata["License-File"] == "LICENSE", "LICENSE is missing")
    entry_points = {(point.group, point.name, point.value) for point in distribution.entry_points}
    check(entry_points == ENTRY_POINTS, f"its entry points are {entry_points}")


def check_import(target: Path, folder: Path) -> None:
    """Import both modules in another process, and nothing from this repository."""
    code = "import spark_jetstream, pyspark_jetstream; print(spark_jetstream.__file__, pyspark_jetstream.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    for path in run.stdout.split():
        check(Path(path).is_relative_to(target), f"imported {path}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        target = folder / "target"
        pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        pip("install", "--target", target, wheel)
        check_files(wheel)
        check_metadata(target)
        check_import(target, folder)


if __name__ == "__main__":
    main()
