"""What all option models share: reading values, refusing pairs, and errors that reveal nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator

from spark_jetstream.errors import OptionError
from spark_jetstream.options.specs import EXCLUSIVE, NEEDED, OptionSpec, display_field, option_name, parse_field

Model = TypeVar("Model", bound="Options")


def fields_of(given: Mapping[str, SecretStr], specs: tuple[OptionSpec, ...]) -> dict[str, object]:
    """The values of these options by the names of the models' fields."""
    return {spec.field_name: given[spec.name] for spec in specs if spec.name in given}


class Options(BaseModel):
    """What the models of options have in common: they are frozen, and refuse pairs that make no sense together."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: object, info: ValidationInfo) -> object:
        return parse_field(str(info.field_name), value)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for field, value in super().__repr_args__():
            yield field, display_field(str(field), value)

    def given(self) -> frozenset[str]:
        """The names of the options that were given a value."""
        return frozenset(option_name(field) for field in self.model_fields_set if getattr(self, field) is not None)

    @model_validator(mode="after")
    def _refuse_pairs(self: Model) -> Model:
        given = self.given()
        for one, other in EXCLUSIVE:
            if one in given and other in given:
                raise OptionError(f"options {one} and {other} exclude each other", option=one)
        for name, needed in NEEDED.items():
            if name in given and needed not in given:
                raise OptionError(f"option {name} has no meaning without {needed}", option=name)
        return self


def build(model: type[Model], fields: Mapping[str, object]) -> Model:
    """The model, or `OptionError`."""
    try:
        return model.model_validate(fields)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, OptionError):
            message, option = str(cause), cause.option
        else:
            option = option_name(str(first["loc"][0])) if first["loc"] else None
            message = f"option {option} is not valid: {first['msg'].lower()}"
    # Raised from scratch and outside of the except block: pydantic's error holds all of the input, secrets
    # included, and would be reachable as `__context__`.
    raise OptionError(message, option=option)
