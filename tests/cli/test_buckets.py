"""Creating, changing and removing buckets of both kinds: ``spark-jetstream kv`` and ``spark-jetstream object``."""

from __future__ import annotations

from functools import partial

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("group", "title", "subjects", "own"),
    [
        ("kv", "Key-Value", ["$KV.{}.>"], {"history": 3, "max_value_size": 1024}),
        ("object", "Object Store", ["$O.{}.C.>", "$O.{}.M.>"], {"max_bytes": -1}),
    ],
)
def test_the_life_of_a_bucket(
    group: str, title: str, subjects: list[str], own: dict[str, int], do: Command, run: Command, name: str
) -> None:
    kv = group == "kv"
    bucket, attempt = partial(do, group), partial(run, group)
    options: tuple[str, ...] = ("--storage", "memory", "--description", "what colours are", "--metadata", "owner=me")
    options += ("--history", "3", "--max-value-size", "1k") if kv else ()
    add = ("add", name, *options, "--ttl", "1h")
    made = bucket(*add, "--json").json
    assert (made["bucket"], made["ttl"], made["metadata"]) == (name, 3600 * 10**9, {"owner": "me"})
    assert own.items() <= made.items()
    config = made["stream"]["config"]
    assert (config["name"], config["subjects"]) == (
        f"{'KV' if kv else 'OBJ'}_{name}",
        [each.format(name) for each in subjects],
    )
    again = bucket(*add)
    assert (again.err, again.out.splitlines()[0]) == (
        f"bucket {name} already exists, unchanged\n", f"{title} bucket {name}",
    )  # fmt: skip
    refused = attempt("add", name, *options, "--json")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.endswith("; there -> asked for: max_age: 1h -> 0s\n")
    lines = [" ".join(row) for row in bucket("info", name).rows]
    assert lines[0] == f"{title} bucket {name}"
    shown = {"ttl 1h", "max bytes no limit", "metadata owner=me", *(["history 3", "max value size 1KiB"] if kv else [])}
    assert shown <= {*lines}
    listed = {each["bucket"]: each for each in bucket("ls", "--json").json}
    assert (listed[name]["description"], listed[name]["created"]) == ("what colours are", made["created"])
    row = ["0", "0", "3", "1h"] if kv else ["0", "memory", "1h"]
    assert [name, "what", "colours", "are", *row] in [each[: 4 + len(row)] for each in bucket("ls").rows]
    # Changing it
    edit = ("edit", name, "--ttl", "2h", "--unset", "metadata")
    ran = attempt(*edit)
    assert ran.code == 2  # nobody is there to say yes
    assert "max_age: 1h -> 2h" in ran.out
    assert bucket(*edit, "--dry-run", "--json").json["changed"] is False
    changed = bucket(*edit, "--force", "--json").json
    assert {"max_age", "metadata.owner"} == {each["field"] for each in changed["differences"]}
    info = bucket("info", name, "--json").json
    assert (info["ttl"], info["metadata"]) == (7200 * 10**9, {})
    if kv:
        copy = bucket("add", f"{name}copy", "--mirror", name, "--storage", "memory", "--json").json
        assert copy["mirror"]["name"] == f"KV_{name}"
        assert f"mirror of {name}" in bucket("info", f"{name}copy").out
    else:
        assert bucket("seal", name, "--force", "--json").json == {"bucket": name, "sealed": True}
        assert "sealed" in bucket("ls").out
    # Its end
    assert bucket("rm", name, "--force", "--json").json == {"bucket": name, "deleted": True}
    assert attempt("info", name).code == 1
