"""The error tree: every class survives pickling, and codes of the server find their class."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream import errors
from spark_jetstream.doctor.findings import failed
from spark_jetstream.errors import (
    API_ERRORS,
    LONGEST_MESSAGE,
    LONGEST_TEXT,
    ApiError,
    JetStreamError,
    OptionError,
    PermissionDenied,
    ServerBusy,
    api_error,
    brief,
    printable,
)
from tests.compat.interface import error_classes

TEXTS = ("option", "subject", "description", "bucket", "key", "operation")
NUMBERS = ("code", "err_code", "number", "stored", "revision", "expected", "found")
VALUES: dict[str, Any] = {name: f"some {name}" for name in TEXTS} | {
    name: len(name) for name in NUMBERS
}


def example(cls: type[JetStreamError]) -> JetStreamError:
    keywords = inspect.getfullargspec(cls.__init__).kwonlyargs
    return cls("stream ORDERS: it went wrong", **{name: VALUES[name] for name in keywords})


@pytest.mark.parametrize("cls", list(error_classes()), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_class_pickles(cls: type[JetStreamError], protocol: int) -> None:
    error = example(cls)
    error.__dict__["note"] = "kept"
    copied = pickle.loads(pickle.dumps(error, protocol))
    assert type(copied) is cls
    assert str(copied) == str(error) == "stream ORDERS: it went wrong"
    assert copied.args == error.args
    assert copied.__dict__ == error.__dict__
    assert copied.retriable is error.retriable


def test_the_docstring_shows_the_whole_tree() -> None:
    tree = errors.__doc__ or ""
    own = [cls for cls in error_classes() if cls.__module__ == errors.__name__]
    for cls in own:
        line = next(line for line in tree.splitlines() if f"─ {cls.__name__} " in f"{line} ")
        assert ("*" in line) is cls.retriable, line
        for code in (code for code, mapped in API_ERRORS.items() if mapped is cls):
            assert str(code) in line
    assert tree.count("─ ") == len(own)


@pytest.mark.parametrize(("err_code", "cls"), API_ERRORS.items())
def test_a_code_finds_its_class(err_code: int, cls: type[ApiError]) -> None:
    error = api_error(
        {"code": 400, "err_code": err_code, "description": "said the server"}, "read stream ORDERS"
    )
    assert type(error) is cls
    assert (error.code, error.err_code, error.description) == (400, err_code, "said the server")
    assert str(error) == f"cannot read stream ORDERS: said the server (code 400, error {err_code})"


@pytest.mark.parametrize(
    ("reasons", "cls"),
    [
        ("", ApiError),
        (", peer offline", ServerBusy),
        (", peer offline, exclude tag set", ServerBusy),
        (", miscellaneous issue", ServerBusy),
        (", insufficient storage", ApiError),
    ],
)
def test_a_replica_that_cannot_be_placed_may_be_placed_when_a_server_is_back(
    reasons: str, cls: type[ApiError]
) -> None:
    description = f"no suitable peers for placement{reasons}"
    error = api_error({"code": 400, "err_code": 10005, "description": description}, "make a stream")
    assert type(error) is cls


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({}, (ApiError, 0, 0, "")),
        (
            {"code": 418, "err_code": 99999, "description": "teapot"},
            (ApiError, 418, 99999, "teapot"),
        ),
        ({"code": "503", "err_code": True, "description": 7}, (ApiError, 0, 0, "")),
        ({"code": 503, "err_code": 10008}, (ServerBusy, 503, 10008, "")),
        (
            {"code": 400, "err_code": 1, "description": "no\n\x1b[2J"},
            (ApiError, 400, 1, r"no\n\x1b[2J"),
        ),
    ],
)
def test_any_reply_gives_an_error(reply: dict[str, Any], expected: tuple[object, ...]) -> None:
    error = api_error(reply, "do it")
    assert (type(error), error.code, error.err_code, error.description) == expected
    reason = error.description or "the server gave no reason"
    assert str(error) == f"cannot do it: {reason} (code {error.code}, error {error.err_code})"


@pytest.mark.parametrize("cls", [JetStreamError, OptionError, PermissionDenied])
def test_no_message_does_anything_to_a_terminal(cls: type[JetStreamError]) -> None:
    assert (
        str(cls("a\x1b[31m\x07\x9b\u202e\ud800b\nc\td"))
        == r"a\x1b[31m\x07\x9b\u202e\ud800b" + "\nc\td"
    )


@given(st.text() | st.text(st.sampled_from("a\x07\u200b\U000e0001\n")), st.integers(1, 50))
def test_a_text_is_cut_after_its_escapes(text: str, most: int) -> None:
    whole, cut = printable(text), brief(text, most)
    assert cut.isprintable()
    assert cut == (whole if len(whole) <= most else f"{whole[:most]}...")


@pytest.mark.parametrize("char", ["x", "\x07", "\U000e0001"])
def test_no_message_is_longer_than_a_log_bears(char: str) -> None:
    assert len(str(JetStreamError(char * 10**6))) == LONGEST_MESSAGE + len("...")
    error = api_error({"code": 500, "description": char * 10**6}, "look")
    assert len(error.description) == LONGEST_TEXT + len("...")
    assert len(str(error)) < LONGEST_TEXT + 100
    assert len(failed("server", f"is {char * 10**6}", "wait").said) <= LONGEST_MESSAGE + len("...")
