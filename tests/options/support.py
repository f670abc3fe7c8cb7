"""What tests of options check of errors and of models."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from spark_jetstream.errors import OptionError
from spark_jetstream.options import ConnectionOptions

SECRET = "hunter2-never-shown"


def assert_refused(make: Callable[[], object], option: str, words: str) -> None:
    """An `OptionError` of one sentence that names the option and has these words."""
    with pytest.raises(OptionError) as caught:
        make()
    message = str(caught.value)
    assert caught.value.option == option
    assert option in message
    assert words in message
    assert "\n" not in message
    # One sentence: no full stop inside of it or at its end, other than in what is quoted.
    assert not re.search(r"\.(\s|$)", re.sub(r'"[^"]*"', "", message).replace("...", ""))
    assert pickle.loads(pickle.dumps(caught.value)).option == option


def secret_options(*beside: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Each secret option beside each of these options."""
    return [{spec.name: SECRET, **more} for more in beside for spec in ConnectionOptions.specs if spec.secret]


def hides(make: Callable[[], object]) -> None:
    """An `OptionError` that holds the secret nowhere, and no other error that could."""
    with pytest.raises(OptionError) as caught:
        make()
    error = caught.value
    assert (error.__context__, error.__cause__) == (None, None)
    for text in (str(error), repr(error), repr(error.__dict__), repr(error.args), *traceback.format_exception(error)):
        assert SECRET not in text
    assert SECRET.encode() not in pickle.dumps(error)


def check_identity(make: Callable[..., Any], **change: object) -> None:
    """Models of equal options are equal, hash alike, pickle with their secrets, and cannot be changed."""
    model = make()
    for same in (make(), pickle.loads(pickle.dumps(model))):
        assert (same, hash(same), hash(same.connection)) == (model, hash(model), hash(model.connection))
        assert same.connection.token.get_secret_value() == model.connection.token.get_secret_value()
    assert make(**change) != model
    with pytest.raises(ValidationError, match="frozen"):
        model.streaming = True
