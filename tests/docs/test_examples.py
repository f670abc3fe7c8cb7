"""The folder examples/: jobs run as they are, and the other files parse."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.support.identities import Operator, user
from tests.support.jobs import run_python
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT

EXAMPLES = ROOT / "examples"
SUBJECTS = {"orders.de": 10, "orders.fr": 10}


class Manifest(NamedTuple):
    """A manifest of an operator: its file, what its kind is, and the fields that name script and
    arguments of the job.
    """

    file: str
    api: str
    script: str
    arguments: str


OPERATORS = (
    Manifest("apache-operator.yaml", "spark.apache.org/v1", "pyFiles", "driverArgs"),
    Manifest(
        "kubeflow-operator.yaml",
        "sparkoperator.k8s.io/v1beta2",
        "mainApplicationFile",
        "arguments",
    ),
)

#: The fields of `spec` that each manifest may have, with their types, as the operators define them
#: (releases 1.0.0 and 2.5.2). A field that a manifest gets is looked up there and added here.
FIELDS: dict[str, dict[str, type]] = {
    "apache-operator.yaml": {
        "pyFiles": str,
        "driverArgs": str,
        "sparkConf.*": str,
        "applicationTolerations.restartConfig.restartPolicy": str,
        "applicationTolerations.restartConfig.maxRestartAttempts": int,
        "applicationTolerations.restartConfig.restartBackoffMillis": int,
        "applicationTolerations.restartConfig.restartCounterResetMillis": int,
        "runtimeVersions.sparkVersion": str,
    },
    "kubeflow-operator.yaml": {
        "type": str,
        "pythonVersion": str,
        "mode": str,
        "sparkVersion": str,
        "image": str,
        "mainApplicationFile": str,
        "arguments": str,
        "restartPolicy.type": str,
        "restartPolicy.onFailureRetryInterval": int,
        "restartPolicy.onSubmissionFailureRetryInterval": int,
        "volumes.name": str,
        "volumes.persistentVolumeClaim.claimName": str,
        "driver.cores": int,
        "driver.memory": str,
        "driver.serviceAccount": str,
        "driver.secrets.name": str,
        "driver.secrets.path": str,
        "driver.secrets.secretType": str,
        "driver.volumeMounts.name": str,
        "driver.volumeMounts.mountPath": str,
        "executor.instances": int,
        "executor.cores": int,
        "executor.memory": str,
        "executor.secrets.name": str,
        "executor.secrets.path": str,
        "executor.secrets.secretType": str,
        "executor.volumeMounts.name": str,
        "executor.volumeMounts.mountPath": str,
    },
}

#: A folder with the operators' definitions, under the names of the manifests, and with the schema
#: of bundles (`databricks bundle schema`), `databricks.json`. They belong to other projects.
SCHEMAS = os.environ.get("EXAMPLE_SCHEMAS")
#: The beginning of the reason of a skipped test; the test behind it checks the same file.
NO_SCHEMAS = "EXAMPLE_SCHEMAS names no folder with schemas; the file is checked by"

BUNDLES = ("databricks", "databricks-serverless", "databricks-pipeline")


@pytest.fixture
def url(nats_server_factory: Callable[..., NatsServer]) -> str:
    """A server with 20 orders of 10 to 200, and a stream for large ones."""
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url) as admin:
        admin.streams.create("ORDERS", subjects="orders.>")
        admin.streams.create("LARGE", subjects="large.>")
        for number in range(1, 21):
            data = json.dumps({"id": number, "amount": number * 10.0})
            admin.publish(f"orders.{'de' if number % 2 else 'fr'}", data)
    return server.url


def environment(folder: Path) -> dict[str, str]:
    """The variables of a user's shell in the environment that has this package.

    With `SPARK_TESTING` a server of Spark Connect listens on a free port: tests that run side by
    side start one each.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    java = {"JAVA_HOME": ensure_java(), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return {
        **kept,
        **java,
        "PATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",
        "TMPDIR": str(folder),
    }


def load(file: Path) -> dict[str, Any]:
    """Return the only document of a YAML file."""
    loaded: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return loaded


def application(manifest: Manifest) -> dict[str, Any]:
    """Return the only document of a manifest that is of the operator's kind."""
    text = (EXAMPLES / "kubernetes" / manifest.file).read_text(encoding="utf-8")
    (found,) = [each for each in yaml.safe_load_all(text) if each["apiVersion"] == manifest.api]
    assert found["kind"] == "SparkApplication"
    return dict(found)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is no list or mapping, with the names that lead to it.

    The keys of `sparkConf` are no fields: they are `*`.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            name = "*" if path == "sparkConf" else key
            yield from leaves(each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path, value


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a definition's schema that refuses fields it does not have, as servers warn of them."""
    closing = {
        key: [closed(each) for each in value] if key in ("allOf", "anyOf", "oneOf") else value
        for key, value in schema.items()
    }
    if "items" in schema:
        closing["items"] = closed(schema["items"])
    if "properties" in schema:
        closing["properties"] = {name: closed(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closing["additionalProperties"] = False
    return closing


def parameters(arguments: list[str]) -> dict[str, str]:
    """Return the values of arguments of the form ``--name=value``."""
    return dict(argument.split("=", 1) for argument in arguments)


def bundle_texts(folder: str) -> dict[str, str]:
    """Return the defaults of a bundle's variables, as the bundle writes the variables."""
    variables = load(EXAMPLES / folder / "databricks.yml")["variables"]
    return {f"${{var.{name}}}": variable["default"] for name, variable in variables.items()}


def credentials_file(folder: Path) -> Path:
    """Write the credentials of a user; a server without logins takes them as well."""
    path = folder / "user.creds"
    path.write_text(Operator().credentials(user()), encoding="utf-8")
    return path


@pytest.mark.full
def test_the_script_copies_what_came_since_its_last_run(url: str, tmp_path: Path) -> None:
    arguments = ("--servers", url, "--stream", "ORDERS", "--to", tmp_path / "orders", "--once")
    for more in (0, 3):
        with JetStreamAdmin(servers=url) as admin:
            for _ in range(more):
                admin.publish("orders.it", "{}")
        run_python(
            EXAMPLES / "script" / "copy_orders.py",
            *arguments,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        sequences = pq.read_table(tmp_path / "orders", columns=["sequence"])["sequence"].to_pylist()
        assert sorted(sequences) == list(range(1, 21 + more))


@pytest.mark.full
@pytest.mark.parametrize("written", ["offsets", "commits"])
def test_ctrl_c_ends_the_script_with_one_line(written: str, url: str, tmp_path: Path) -> None:
    """In a micro-batch and after it. A terminal sends the signal to all processes, Spark's as well.

    `SparkContext.stop` interrupts the thread that sends a finished task's accumulators to Python
    (`EventLoop.stop`). The interrupt closes the channel (`PythonAccumulatorV2`), and Python prints
    the `EOFError`. So the script must leave the stop to the JVM.
    """
    arguments = ("--servers", url, "--stream", "ORDERS", "--to", tmp_path / "orders")
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "script" / "copy_orders.py", *arguments],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            batch = tmp_path / "orders-checkpoint" / written / "0"
            poll(
                lambda: batch.exists() or script.poll() is not None or None,
                120,
                lambda: TimeoutError(str(batch)),
            )
            os.killpg(script.pid, signal.SIGINT)
            out, err = script.communicate(timeout=120)
        finally:
            script.kill()
    assert (script.returncode, out) == (
        0,
        "stopped; the next run continues after the last micro-batch\n",
    )
    assert not re.search(r"Traceback|Exception|Error", err), err


@pytest.mark.full
def test_the_client_reads_over_spark_connect(url: str, tmp_path: Path) -> None:
    client = EXAMPLES / "connect" / "read_orders.py"
    printed = run_python(client, "local[1]", url, "ORDERS", cwd=tmp_path, env=environment(tmp_path))
    rows = [
        line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|orders")
    ]
    assert {subject.strip(): int(count) for subject, count in rows} == SUBJECTS


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_pipeline_fills_its_table_and_its_sink_once(url: str, tmp_path: Path) -> None:
    project = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", project)
    specification = project / "spark-pipeline.yml"
    text = specification.read_text()
    assert DEFAULT_URL in text
    assert FOLDER in text
    specification.write_text(
        text.replace(DEFAULT_URL, url).replace(FOLDER, str(tmp_path / "storage"))
    )
    # As docs/pipelines.md says: Spark's default catalog forgets the tables, and the second run
    # would fail.
    catalog = "spark.sql.catalogImplementation=hive"
    command: list[str | Path] = [
        Path(sys.executable).with_name("spark-pipelines"),
        "run",
        "--conf",
        catalog,
    ]
    variables = {**environment(tmp_path), "PYSPARK_PYTHON": sys.executable}
    for run in (1, 2):
        ran = subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        with JetStreamAdmin(servers=url) as admin:
            large = [json.loads(message.data) for message in admin.messages.read("LARGE")]
            if run == 1:
                admin.publish("orders.it", '{"id": 21, "amount": 210}')
        assert sorted(order["id"] for order in large) == list(range(10, 20 + run))
    table = pq.read_table(project / "spark-warehouse" / "orders", columns=["sequence"])
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 22))
    # What it leaves in the user's folder the page names, and git ignores.
    left = {path.name for path in project.iterdir()} - {
        path.name for path in (EXAMPLES / "pipeline").iterdir()
    }
    assert left == {"spark-warehouse", "metastore_db", "derby.log"}
    page, ignored = (EXAMPLES.parent / name for name in ("docs/pipelines.md", ".gitignore"))
    for name in left:
        assert f"`{name}`" in page.read_text(encoding="utf-8")
        assert name in ignored.read_text(encoding="utf-8").replace("/\n", "\n").splitlines()


@pytest.mark.full
@pytest.mark.parametrize("manifest", OPERATORS, ids=lambda manifest: manifest.file)
def test_the_job_of_an_operator_runs_with_the_arguments_of_its_manifest(
    manifest: Manifest, url: str, tmp_path: Path
) -> None:
    spec = application(manifest)["spec"]
    replaced = {
        "--servers": url,
        "--to": str(tmp_path / "orders"),
        "--credentials": str(credentials_file(tmp_path)),
    }
    given = {**parameters(spec[manifest.arguments]), **replaced}
    run_python(
        EXAMPLES / "script" / Path(spec[manifest.script]).name,
        *[f"{name}={value}" for name, value in given.items()],
        "--once",
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    table = pq.read_table(tmp_path / "orders", columns=["sequence"])
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 21))


@pytest.mark.full
def test_the_serverless_job_runs_with_the_parameters_of_its_bundle(
    url: str, tmp_path: Path
) -> None:
    folder = EXAMPLES / "databricks-serverless"
    (task,) = load(folder / "databricks.yml")["resources"]["jobs"]["copy_orders"]["tasks"]
    written = "\n".join(task["spark_python_task"]["parameters"])
    for variable, default in bundle_texts(folder.name).items():
        written = written.replace(variable, default)
    given = parameters(written.splitlines())
    scope, key = given["--secret"].split("/")
    # A stand-in for the module that only Databricks has.
    runtime = tmp_path / "modules" / "databricks" / "sdk" / "runtime.py"
    runtime.parent.mkdir(parents=True)
    runtime.write_text(
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "def get(scope, key):\n"
        f"    assert (scope, key) == ({scope!r}, {key!r})\n"
        f"    return Path({str(credentials_file(tmp_path))!r}).read_text()\n"
        "dbutils = SimpleNamespace(secrets=SimpleNamespace(get=get))\n",
        encoding="utf-8",
    )
    given |= {"--servers": url, "--table": "orders", "--checkpoint": str(tmp_path / "checkpoint")}
    run_python(
        folder / task["spark_python_task"]["python_file"],
        *[f"{name}={value}" for name, value in given.items()],
        cwd=tmp_path,
        env={
            **environment(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{runtime.parents[2]}{os.pathsep}{ROOT}",
        },
    )
    table = pq.read_table(tmp_path / "spark-warehouse" / "orders", columns=["sequence"])
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 21))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_pipeline_of_the_bundle_runs_with_its_configuration(url: str, tmp_path: Path) -> None:
    project = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "databricks-pipeline", project)
    (pipeline,) = load(project / "databricks.yml")["resources"]["pipelines"].values()
    values = {"orders.servers": url, "orders.creds": str(credentials_file(tmp_path))}
    assert pipeline["configuration"].keys() == values.keys()
    specification = {
        "name": pipeline["name"],
        "storage": f"file://{tmp_path}/storage",
        "libraries": pipeline["libraries"],
        "configuration": values,
    }
    (project / "spark-pipeline.yml").write_text(yaml.safe_dump(specification), encoding="utf-8")
    # Spark's own pipelines find the format without this (docs/pipelines.md).
    source = project / "transformations" / "orders.py"
    text = source.read_text(encoding="utf-8")
    assert "\nspark_jetstream.register(spark)\n" in text
    source.write_text(text.replace("\nspark_jetstream.register(spark)\n", "\n"), encoding="utf-8")
    ran = subprocess.run(
        [
            Path(sys.executable).with_name("spark-pipelines"),
            "run",
            "--conf",
            "spark.sql.catalogImplementation=hive",
        ],
        cwd=project,
        env={**environment(tmp_path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = pq.read_table(project / "spark-warehouse" / "orders", columns=["sequence"])
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 21))
    with JetStreamAdmin(servers=url) as admin:
        large = [json.loads(message.data)["id"] for message in admin.messages.read("LARGE")]
    assert sorted(large) == list(range(10, 21))


@pytest.mark.parametrize("manifest", OPERATORS, ids=lambda manifest: manifest.file)
def test_a_manifest_has_fields_of_its_operator(manifest: Manifest) -> None:
    found = application(manifest)
    known = FIELDS[manifest.file]
    wrong = [
        (path, value)
        for path, value in leaves(found["spec"])
        if not isinstance(value, known.get(path, ()))
    ]
    assert wrong == []
    assert found.keys() == {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.parametrize("manifest", OPERATORS, ids=lambda manifest: manifest.file)
def test_a_manifest_names_a_script_of_the_image_and_a_claim_of_its_own(manifest: Manifest) -> None:
    text = (EXAMPLES / "kubernetes" / manifest.file).read_text(encoding="utf-8")
    spec = application(manifest)["spec"]
    dockerfile = (EXAMPLES / "kubernetes" / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (\S+) (/\S+/)$", dockerfile, re.MULTILINE)
    assert spec[manifest.script] in [f"local://{folder}{name}" for name, folder in copied]
    (claim,) = [
        each["metadata"]["name"]
        for each in yaml.safe_load_all(text)
        if each["kind"] == "PersistentVolumeClaim"
    ]
    claims = {value for path, value in leaves(spec) if path.endswith("claimName")} | {
        value for key, value in spec.get("sparkConf", {}).items() if key.endswith("claimName")
    }
    assert claims == {claim}


@pytest.mark.parametrize("folder", BUNDLES)
def test_the_files_and_variables_of_a_bundle_are_there(folder: str) -> None:
    bundle = load(EXAMPLES / folder / "databricks.yml")
    used = {
        variable
        for _, value in leaves(bundle["resources"])
        for variable in re.findall(r"\$\{var\.\w+\}", str(value))
    }
    assert used == set(bundle_texts(folder))
    files = [
        value
        for path, value in leaves(bundle["resources"])
        if path.endswith(("python_file", "notebook_path", "glob.include"))
    ]
    assert files
    for file in files:
        assert list((EXAMPLES / folder).glob(file.removeprefix("./"))), file


@pytest.mark.parametrize("manifest", OPERATORS, ids=lambda manifest: manifest.file)
@pytest.mark.skipif(not SCHEMAS, reason=f"{NO_SCHEMAS} test_a_manifest_has_fields_of_its_operator")
def test_a_manifest_is_valid_by_the_definition_of_its_operator(manifest: Manifest) -> None:
    definition = load(Path(str(SCHEMAS)) / manifest.file)
    _, version = manifest.api.split("/")
    (schema,) = [
        each["schema"]["openAPIV3Schema"]
        for each in definition["spec"]["versions"]
        if each["name"] == version
    ]
    spec = closed(schema["properties"]["spec"])
    jsonschema.Draft202012Validator(spec).validate(application(manifest)["spec"])


@pytest.mark.parametrize("folder", BUNDLES)
@pytest.mark.skipif(
    not SCHEMAS, reason=f"{NO_SCHEMAS} test_the_files_and_variables_of_a_bundle_are_there"
)
def test_a_bundle_is_valid_by_the_schema_of_bundles(folder: str) -> None:
    text = (Path(str(SCHEMAS)) / "databricks.json").read_text(encoding="utf-8")
    # Python's patterns have no classes of Unicode; the names of these variables need none.
    text = text.replace(r"[\\p{L}\\p{N}]", "[A-Za-z0-9]").replace(r"\\p{L}", "[A-Za-z]")
    schema = json.loads(text)
    bundle = load(EXAMPLES / folder / "databricks.yml")
    jsonschema.Draft202012Validator(schema).validate(bundle)


def test_the_files_that_nothing_here_can_run_parse() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".yml", ".yaml")]
    assert len(files) == 9
    for path in files:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        assert documents
        assert all(isinstance(document, dict) for document in documents)
    for path in EXAMPLES.rglob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
        assert os.access(path, os.X_OK)
    for path in EXAMPLES.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
