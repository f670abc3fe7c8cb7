"""JSON of others: what is an object within bounds is read, and everything else is one error."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from spark_jetstream.protocol.json_text import MAX_DEPTH, json_object


def nested(depth: int, wide: int = 1) -> dict[str, Any]:
    """An object with `depth` levels, itself counted, and `wide` members of the same depth."""
    body: Any = 1
    for level in range(depth - 1):
        body = [body] if level % 2 else {"[{": body}
    return {str(number): body for number in range(wide)}


def test_an_object_may_be_wide_and_not_deep() -> None:
    for body in (nested(MAX_DEPTH), nested(MAX_DEPTH, 50), nested(2, 10_000), {"a": "[{" * 10_000}):
        text = json.dumps(body)
        assert json_object(text) == json_object(text.encode()) == body
    for wide in (1, 50):
        with pytest.raises(ValueError, match=r"^is nested too deeply$"):
            json_object(json.dumps(nested(MAX_DEPTH + 1, wide)))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, sys.getrecursionlimit() - 200, 10**6])
@pytest.mark.parametrize("level", [b"[", b'{"a":'])
def test_the_error_of_a_deep_object_does_not_depend_on_python(level: bytes, depth: int) -> None:
    end = {b"[": b"]"}.get(level, b"}")
    with pytest.raises(ValueError, match=r"^is nested too deeply$"):
        json_object(b'{"a":' + level * depth + b"1" + end * depth + b"}")


def test_an_empty_array_is_a_level() -> None:
    arrays = MAX_DEPTH - 1
    body = f'{{"a":{"[" * arrays}{"]" * arrays}}}'
    assert json.dumps(json_object(body), separators=(",", ":")) == body
    with pytest.raises(ValueError, match=r"^is nested too deeply$"):
        json_object(f'{{"a":{"[" * MAX_DEPTH}{"]" * MAX_DEPTH}}}')


NO_JSON = [
    *(b"", b"{", b'{"a":"\xff"}', b'{"a":%s}' % (b"9" * 10_000), "{'a': 1}", b"{} {}"),
    # Python's reader takes these, which become neither a number of the server nor bytes.
    *(
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        '{"\udfff":1}',
    ),
    '{"a":1}'.encode("utf-16"),
]


@pytest.mark.parametrize("data", NO_JSON)
def test_text_that_is_not_json_is_an_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"^is not JSON$"):
        json_object(data)


@pytest.mark.parametrize("data", [b"[]", b"null", b'"a"', "1"])
def test_json_that_is_not_an_object_is_an_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"^is not a JSON object$"):
        json_object(data)
