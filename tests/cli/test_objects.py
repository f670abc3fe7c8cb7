"""``spark-jetstream object`` on the real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.cli.conftest import Command, refused
from tests.support.objects import content

GROUP = ("object",)
DATA = content("a", 1, 300_000)


@pytest.fixture
def bucket(name: str, admin: JetStreamAdmin) -> str:
    admin.objects.create(name, storage="memory")
    return name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cat.bin"
    path.write_bytes(DATA)
    return path


def test_objects_are_put_from_and_got_into_files(
    do: Command,
    run: Command,
    bucket: str,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    put = do("put", bucket, file, "--json").json
    assert (put["name"], put["size"], put["chunks"]) == ("cat.bin", len(DATA), 3)
    more = ("-H", "Kind: cat", "--metadata", "a=b", "--chunk-size", "10k")
    output = do("put", bucket, file, "--name", "pets/tom.bin", *more).out
    assert output == f"object pets/tom.bin of bucket {bucket} has 300,000 bytes\n"
    shown = do("info", bucket, "pets/tom.bin", "--json").json
    assert (shown["headers"], shown["metadata"], shown["chunks"]) == (
        {"Kind": ["cat"]},
        {"a": "b"},
        30,
    )
    assert put["digest"] in do("info", bucket, "cat.bin").out

    got = do("get", bucket, "pets/tom.bin", "--json").json
    assert (got["file"], (tmp_path / "tom.bin").read_bytes()) == ("tom.bin", DATA)
    file.write_bytes(b"old")
    do("get", bucket, "cat.bin", "-O", file, "--force")
    assert file.read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["cat.bin", "tom.bin"]
    assert run("get", bucket, "cat.bin", "-O", tmp_path, "--force").code == 2


def test_objects_go_through_standard_input_and_output(do: Command, bucket: str) -> None:
    for data in (b"", DATA):
        do("put", bucket, "-", "--name", "piped", "--force", stdin=data)
        assert do("get", bucket, "piped", "--output", "-").raw == data


def test_text_that_is_not_utf8_is_refused(
    do: Command, run: Command, bucket: str, file: Path
) -> None:
    do("put", bucket, file)
    for words in (
        ("--description", "caf\udce9"),
        ("-H", "A: caf\udce9"),
        ("--metadata", "caf\udce9=a"),
    ):
        for command in (("describe", bucket, "cat.bin"), ("put", bucket, file, "--force")):
            refused(run(*command, *words), 2, " must be ", "text")
    assert [each["name"] for each in do("ls", bucket, "--json").json] == ["cat.bin"]


def test_no_name_leads_out_of_the_folder(
    do: Command, run: Command, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    for name, code in {"../escaped": 0, "/escaped": 0, "a/..": 2, "..": 2, "a\\b": 2}.items():
        do("put", bucket, "-", "--name", name, stdin=b"x")
        assert run("get", bucket, name, "--force").code == code, name
    assert (os.listdir(inner), os.listdir(tmp_path)) == (["escaped"], ["inner"])


def test_ls_shows_objects_links_and_deletions(
    do: Command, bucket: str, admin: JetStreamAdmin
) -> None:
    assert do("ls", bucket).err == f"bucket {bucket} has no objects\n"
    there = admin.objects.bucket(bucket)
    there.put("b", DATA)
    there.put("a\x1b[31m", b"x")
    there.link("l", bucket, "b")
    there.put("z", b"x")
    there.delete("z")
    rows = do("ls", bucket).out.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [
        ["a\\x1b[31m", "1B"],
        ["b", "293.0KiB"],
        ["l", "0B"],
    ]
    assert rows[3].endswith(f"link to b of bucket {bucket}")
    listed = do("ls", bucket, "--deleted", "--json").json
    assert {item["name"]: item["deleted"] for item in listed} == {
        "a\x1b[31m": False,
        "b": False,
        "l": False,
        "z": True,
    }
    assert listed[2]["link"] == {"bucket": bucket, "name": "b"}
    assert do("info", bucket, "z", "--deleted", "--json").json["deleted"] is True


def test_describe_link_and_rm_change_objects(
    do: Command, run: Command, bucket: str, admin: JetStreamAdmin
) -> None:
    there = admin.objects.bucket(bucket)
    there.put("a", DATA, description="old", headers={"H": "1"})
    changed = do("describe", bucket, "a", "--rename", "b", "--description", "new", "--json").json
    assert (changed["name"], changed["description"], changed["headers"]) == (
        "b",
        "new",
        {"H": ["1"]},
    )
    assert "headers" not in do("describe", bucket, "b", "--header", "", "--json").json
    there.put("a", b"x")
    assert run("describe", bucket, "a", "--rename", "b").code == 2

    assert do("link", bucket, "best", bucket, "b", "--json").json["link"] == {
        "bucket": bucket,
        "name": "b",
    }
    assert do("get", bucket, "best", "-O", "-").raw == DATA
    assert f"link to bucket {bucket}" in do("link", bucket, "all", bucket).out
    assert run("link", bucket, "a", bucket, "b").code == 2

    assert do("rm", bucket, "b", "--force", "--json").json == {
        "bucket": bucket,
        "name": "b",
        "deleted": True,
    }
    refused(
        run("rm", bucket, "b", "--force"),
        1,
        f"there is no object 'b' in bucket {bucket}: it was deleted\n",
    )


def test_watch_prints_each_change(
    do: Command, run: Command, bucket: str, admin: JetStreamAdmin
) -> None:
    there = admin.objects.bucket(bucket)
    there.put("a", DATA)
    there.put("b", b"x")
    there.delete("b")
    seen = do("watch", bucket, "--wait", "200ms", "--json").objects
    assert [(item["name"], item["deleted"]) for item in seen] == [("a", False), ("b", True)]
    rows = [row[1:] for row in do("watch", bucket, "--count", "2").rows]
    assert rows == [["a:", "300,000", "bytes"], ["b:", "deleted"]]
    assert len(do("watch", bucket, "--no-deletes", "--wait", "200ms").rows) == 1
    refused(
        run("watch", bucket, "--updates-only", "--count", "1", "--wait", "200ms"), 1, "after 0 of 1"
    )
