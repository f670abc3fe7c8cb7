"""The names and texts that users import, call, set and type, as plain JSON.

`write_formats` stores them, `test_formats` compares with them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import typer

import spark_jetstream
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.cli.app import FAILED, INTERRUPTED, NOT_REACHED, WRONG_USAGE, exit_code
from spark_jetstream.cli.main import app
from spark_jetstream.errors import API_ERRORS, ApiError, JetStreamError
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from tools.references import commands_of

MODULES = (
    "",
    ".admin",
    ".admin.event_models",
    ".monitoring",
    ".monitoring.checks",
    ".monitoring.traces",
    ".testing",
    ".permissions",
    ".options",
    ".errors",
    ".java",
)


def interface() -> dict[str, Any]:
    return {name: make() for name, make in KINDS.items()}


def public_names() -> dict[str, dict[str, Any]]:
    """The public names of each module that users import: those of its `__all__`, else those that
    its text defines.
    """
    result = {}
    for name in MODULES:
        module = importlib.import_module(f"spark_jetstream{name}")
        names = getattr(module, "__all__", None) or [
            item for item in _defined(module) if not item.startswith("_")
        ]
        result[module.__name__] = {
            item: _described(getattr(module, item)) for item in sorted(names)
        }
    return result


def _defined(module: Any) -> Iterator[str]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (item.id for item in targets if isinstance(item, ast.Name))


def _described(value: object) -> Any:
    """How a function is called; of a class also its bases and members; "" for a constant."""
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__]
        return {"bases": bases, "call": _parameters(value), "members": _members(value)}
    return _parameters(value) if inspect.isfunction(value) else ""


def _members(kind: type) -> dict[str, str]:
    """Public methods and properties of a class, those that it inherits within this package
    included.
    """
    result: dict[str, str] = {}
    for owner in kind.__mro__:
        if owner.__module__.startswith("spark_jetstream"):
            for name, member in vars(owner).items():
                plain = (
                    member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                )
                if not name.startswith(("_", "model_")) and name not in result:
                    if inspect.isfunction(plain):
                        result[name] = _parameters(plain)
                    elif hasattr(plain, "__get__"):
                        result[name] = "property"
    return dict(sorted(result.items()))


def _parameters(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults of parameters, without types."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return ""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def error_classes() -> Iterator[type[JetStreamError]]:
    """Every class of the error tree, whichever module of the package defines it."""
    for module in pkgutil.walk_packages(spark_jetstream.__path__, "spark_jetstream."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pending = [JetStreamError]
    while pending:
        pending += pending[0].__subclasses__()
        yield pending.pop(0)


def error_tree() -> dict[str, list[Any]]:
    """Each error class of the package: its bases, whether it is worth another try, the exit code,
    the server's codes.

    Classes whose name begins with an underscore are nobody's business.
    """
    result: dict[str, list[Any]] = {}
    for kind in error_classes():
        if kind.__module__.startswith("spark_jetstream") and not kind.__name__.startswith("_"):
            codes = sorted(code for code, other in API_ERRORS.items() if other is kind)
            bases = [base.__name__ for base in kind.__bases__]
            result[kind.__name__] = [bases, kind.retriable, exit_code(kind.__new__(kind)), codes]
    return dict(sorted(result.items()))


def managers() -> dict[str, Any]:
    """The managers of `JetStreamAdmin`, with their methods, and what gives buckets."""
    package = "spark_jetstream.admin"
    public = inspect.getmembers(
        JetStreamAdmin(), lambda value: type(value).__module__.startswith(package)
    )
    return {name: _members(type(value)) for name, value in public if not name.startswith("_")}


def options() -> dict[str, dict[str, list[Any]]]:
    """The options: default, the only kind of query that has it, whether it is secret."""
    sides = {
        "connection": ConnectionOptions.specs,
        "source": SourceOptions.specs,
        "sink": SinkOptions.specs,
    }
    return {
        side: {item.name: [item.default, item.only, item.secret] for item in of}
        for side, of in sides.items()
    }


def commands() -> dict[str, list[str]]:
    """The options and arguments of each command; ``+shared`` stands for all options of
    ``spark-jetstream`` itself.
    """
    root = typer.main.get_command(app)
    shared = [
        _parameter(parameter) for parameter in root.params if "completion" not in parameter.name
    ]
    result = {"": shared}
    for name, command in sorted(commands_of(root)):
        own = [_parameter(parameter) for parameter in command.params]
        common = [item for item in shared if not item.startswith("--version")]
        if set(common) <= set(own):
            own = [*(item for item in own if item not in common), "+shared"]
        result[" ".join(name)] = own
    return result


def _parameter(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = (
        parameter.name.upper()
        if is_argument
        else "/".join([*parameter.opts, *parameter.secondary_opts])
    )
    annotation = parameter.type_descriptor.annotation
    is_choice = get_origin(annotation) is Literal
    kind = (
        "|".join(get_args(annotation))
        if is_choice
        else getattr(annotation, "__name__", str(annotation))
    )
    marks = [
        mark
        for mark in ("required", "multiple", "is_flag", "hidden")
        if getattr(parameter, mark, False)
    ]
    marks += ["any number"] if parameter.nargs == -1 else []
    default = (
        ""
        if parameter.default in (None, False) or callable(parameter.default)
        else f"={parameter.default}"
    )
    return " ".join([f"{names}: {kind}{default}", *marks])


def exit_codes() -> dict[str, int]:
    """Return the exit codes of the command line."""
    return {
        "done": 0,
        "failed": FAILED,
        "wrong usage": WRONG_USAGE,
        "not reached": NOT_REACHED,
        "interrupted": INTERRUPTED,
        "another error of the server": exit_code(
            ApiError("", code=500, err_code=1, description="")
        ),
    }


KINDS: dict[str, Callable[[], Any]] = {
    "public names": public_names,
    "errors": error_tree,
    "managers": managers,
    "options": options,
    "commands": commands,
    "exit codes": exit_codes,
}
"""What makes each part of the interface."""
