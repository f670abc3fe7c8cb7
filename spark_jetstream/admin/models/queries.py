"""What `Streams.find` and `Consumers.find` look for: each field of a query has its test beside its type. Pure."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from typing import Annotated, Any

from spark_jetstream.admin.models.base import Boolean, Count, Duration, Model, OptionalSubject, String
from spark_jetstream.admin.models.streams import replicas
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.subjects import subjects_overlap
from spark_jetstream.protocol.units import NEVER, Timestamp, shown

_Words = String | None
_Yes = Boolean | None
_Most = Count | None
_Span = Duration | None
_ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop),
    *(ast.Attribute, ast.Subscript, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.expr_context),
)


class _Tuples(ast.NodeTransformer):
    """Makes tuples of lists, which models do not have."""

    def visit_List(self, node: ast.List) -> ast.Tuple:
        return ast.Tuple([self.visit(item) for item in node.elts], node.ctx)


def _holds(info: Any, text: str) -> bool:
    """Return whether an expression that only compares is true; what a reply lacks makes it false. Or `OptionError`."""
    names = {"info": info, "config": info.config, "state": getattr(info, "state", info)}
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED) or getattr(node, "attr", "").startswith("_"):
                raise SyntaxError(f"only comparisons are possible, not {ast.unparse(node)}")
        tree = ast.fix_missing_locations(_Tuples().visit(tree))
        return bool(eval(compile(tree, "expression", "eval"), {"__builtins__": {}}, names))
    except LookupError:
        return False
    except (AttributeError, MemoryError, NameError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        if getattr(error, "obj", error) is None:
            return False
        problem = getattr(error, "msg", str(error)) or "it is nested too deeply"
        raise OptionError(f"expression {shown(text)}: {problem}") from None


def _past(info: Any, time: Timestamp | None) -> int:
    """Return how long ago a time was by the server's clock, in nanoseconds."""
    return int(info.ts.nanoseconds - (time or NEVER).nanoseconds)


def _stores(info: Any, subject: str) -> bool:
    return any(subjects_overlap(subject, stored) for stored in info.config.subjects)


class _Query(Model):
    server_name: Annotated[_Words, lambda i, n: any(fnmatchcase(r.server, n) for r in replicas(i.cluster))] = None
    """It has a replica on a server of this name; wildcards are ``*`` and ``?``."""
    leader: Annotated[_Words, lambda i, name: fnmatchcase(i.cluster.leader if i.cluster else "", name)] = None
    """Its leader is a server of this name; wildcards allowed."""
    cluster: Annotated[_Words, lambda i, name: fnmatchcase(i.cluster.name if i.cluster else "", name)] = None
    """It is in a cluster of this name; wildcards allowed."""
    offline: Annotated[_Yes, lambda i, on: any(r.offline for r in replicas(i.cluster)) == on] = None
    """Whether a server that has a replica is away."""
    replicas: Annotated[_Most, lambda i, most: (i.config.num_replicas or len(replicas(i.cluster))) <= most] = None
    """It has at most so many replicas."""
    created: Annotated[_Span, lambda i, span: _past(i, i.created) >= span] = None
    """It was created at least so long ago."""
    expression: Annotated[_Words, _holds] = None
    """An expression of Python is true; its names are ``config``, ``state`` and ``info``, as in ``info --json``."""
    invert: Boolean = False
    """Turn each criterion into its opposite."""

    def matches(self, info: Any) -> bool:
        """Return whether all criteria that are set are met. Raises `OptionError` for an expression that is none."""
        tests = {name: type(self).model_fields[name].metadata[0] for name in self.model_fields_set - {"invert"}}
        return all(test(info, getattr(self, name)) != self.invert for name, test in tests.items())


class StreamQuery(_Query):
    """Criteria for streams; one that is not set does not count."""

    empty: Annotated[_Yes, lambda i, on: (i.state.messages == 0) == on] = None
    """Whether it has no messages."""
    idle: Annotated[_Span, lambda i, span: _past(i, i.state.last_ts) >= span] = None
    """Nothing was stored for at least so long."""
    consumers: Annotated[_Most, lambda i, most: i.state.consumer_count <= most] = None
    """It has at most so many consumers."""
    sourced: Annotated[_Yes, lambda i, on: bool(i.config.sources) == on] = None
    """Whether it has sources."""
    mirrored: Annotated[_Yes, lambda i, on: bool(i.config.mirror) == on] = None
    """Whether it is a mirror."""
    subject: Annotated[OptionalSubject | None, _stores] = None
    """It stores this subject, or a part of it."""


class ConsumerQuery(_Query):
    """Criteria for consumers; one that is not set does not count."""

    pull: Annotated[_Yes, lambda i, on: i.config.push != on] = None
    """Whether it is a pull consumer."""
    push: Annotated[_Yes, lambda i, on: i.config.push == on] = None
    """Whether it is a push consumer."""
    bound: Annotated[_Yes, lambda i, on: (i.push_bound or i.num_waiting > 0) == on] = None
    """Whether a client is subscribed to it, or pulls wait."""
    durable: Annotated[_Yes, lambda i, on: bool(i.config.durable_name) == on] = None
    """Whether it is durable."""
    idle: Annotated[_Span, lambda i, span: _past(i, i.delivered.last_active) >= span] = None
    """Nothing was delivered for at least so long."""
    pending: Annotated[_Most, lambda i, limit: i.num_pending < limit] = None
    """Fewer messages than this are still to be delivered."""
    ack_pending: Annotated[_Most, lambda i, limit: i.num_ack_pending < limit] = None
    """Fewer messages than this wait for their acknowledgement."""
    waiting: Annotated[_Most, lambda i, limit: i.num_waiting < limit] = None
    """Fewer pulls than this wait."""
