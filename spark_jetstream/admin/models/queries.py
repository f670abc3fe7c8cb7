"""Queries of `Streams.find` and `Consumers.find`: each field has its test beside its type. Pure."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from typing import Annotated, Any

from spark_jetstream.admin.models.base import (
    Boolean,
    Count,
    Duration,
    Model,
    OptionalSubject,
    String,
)
from spark_jetstream.admin.models.streams import replicas
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.subjects import subjects_overlap
from spark_jetstream.protocol.units import NEVER, Timestamp, shown

_Words = String | None
_Yes = Boolean | None
_Most = Count | None
_Span = Duration | None
_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.boolop,
    ast.UnaryOp,
    ast.unaryop,
    ast.Compare,
    ast.cmpop,
    ast.Attribute,
    ast.Subscript,
    ast.Name,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.expr_context,
)
"""The parts of Python that an expression may have: none of them calls anything."""


class _Tuples(ast.NodeTransformer):
    """Makes tuples of lists, which models do not have."""

    def visit_List(self, node: ast.List) -> ast.Tuple:
        return ast.Tuple([self.visit(item) for item in node.elts], node.ctx)


def _holds(info: Any, text: str) -> bool:
    """Return whether an expression that only compares is true; what a reply lacks makes it false.

    Or `OptionError`.
    """
    names = {"info": info, "config": info.config, "state": getattr(info, "state", info)}
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            # A name with an underscore leads from any value to the whole of Python (`__class__`).
            if not isinstance(node, _ALLOWED) or getattr(node, "attr", "").startswith("_"):
                raise SyntaxError(f"only comparisons are possible, not {ast.unparse(node)}")
        tree = ast.fix_missing_locations(_Tuples().visit(tree))
        return bool(eval(compile(tree, "expression", "eval"), {"__builtins__": {}}, names))
    # A key or an item that this reply lacks.
    except LookupError:
        return False
    except (
        AttributeError,
        MemoryError,
        NameError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        # An attribute of a part that this reply lacks, such as a mirror.
        if getattr(error, "obj", error) is None:
            return False
        problem = getattr(error, "msg", str(error)) or "it is nested too deeply"
        raise OptionError(f"expression {shown(text)}: {problem}") from None


# The tests of the criteria: each gets an info of a stream or consumer, and the criterion's value.


def _has_server(info: Any, pattern: str) -> bool:
    return any(fnmatchcase(replica.server, pattern) for replica in replicas(info.cluster))


def _has_leader(info: Any, pattern: str) -> bool:
    # Outside of a cluster, the name is empty: only a pattern such as ``*`` matches it.
    return fnmatchcase(getattr(info.cluster, "leader", ""), pattern)


def _is_in_cluster(info: Any, pattern: str) -> bool:
    return fnmatchcase(getattr(info.cluster, "name", ""), pattern)


def _is_offline(info: Any, wanted: bool) -> bool:
    return any(replica.offline for replica in replicas(info.cluster)) == wanted


def _has_replicas(info: Any, most: int) -> bool:
    # A consumer with 0 has as many replicas as its stream.
    count = info.config.num_replicas or len(replicas(info.cluster))
    return bool(count <= most)


def _is_past(info: Any, time: Timestamp | None, span: int) -> bool:
    """Return whether a time is at least so long ago by the server's clock."""
    return bool(info.ts.nanoseconds - (time or NEVER).nanoseconds >= span)


def _was_created(info: Any, span: int) -> bool:
    return _is_past(info, info.created, span)


def _is_empty(info: Any, wanted: bool) -> bool:
    return bool(info.state.messages == 0) == wanted


def _stores_nothing(info: Any, span: int) -> bool:
    return _is_past(info, info.state.last_ts, span)


def _has_consumers(info: Any, most: int) -> bool:
    return bool(info.state.consumer_count <= most)


def _has_sources(info: Any, wanted: bool) -> bool:
    return bool(info.config.sources) == wanted


def _is_mirror(info: Any, wanted: bool) -> bool:
    return bool(info.config.mirror) == wanted


def _stores(info: Any, subject: str) -> bool:
    return any(subjects_overlap(subject, stored) for stored in info.config.subjects)


def _is_pull(info: Any, wanted: bool) -> bool:
    return bool(info.config.push != wanted)


def _is_push(info: Any, wanted: bool) -> bool:
    return bool(info.config.push == wanted)


def _is_bound(info: Any, wanted: bool) -> bool:
    return bool(info.push_bound or info.num_waiting > 0) == wanted


def _is_durable(info: Any, wanted: bool) -> bool:
    return bool(info.config.durable_name) == wanted


def _delivers_nothing(info: Any, span: int) -> bool:
    return _is_past(info, info.delivered.last_active, span)


def _has_pending(info: Any, limit: int) -> bool:
    return bool(info.num_pending < limit)


def _has_ack_pending(info: Any, limit: int) -> bool:
    return bool(info.num_ack_pending < limit)


def _has_waiting(info: Any, limit: int) -> bool:
    return bool(info.num_waiting < limit)


class _Query(Model):
    server_name: Annotated[_Words, _has_server] = None
    """It has a replica on a server of this name; wildcards are ``*`` and ``?``."""
    leader: Annotated[_Words, _has_leader] = None
    """Its leader is a server of this name; wildcards allowed."""
    cluster: Annotated[_Words, _is_in_cluster] = None
    """It is in a cluster of this name; wildcards allowed."""
    offline: Annotated[_Yes, _is_offline] = None
    """Whether a server that has a replica is away."""
    replicas: Annotated[_Most, _has_replicas] = None
    """It has at most this number of replicas."""
    created: Annotated[_Span, _was_created] = None
    """It was created at least so long ago."""
    expression: Annotated[_Words, _holds] = None
    """An expression of Python is true; its names are ``config``, ``state`` and ``info``, as in
    ``info --json``."""
    invert: Boolean = False
    """Turn each criterion into its opposite."""

    def matches(self, info: Any) -> bool:
        """Return whether all criteria that are set are met.

        Raises `OptionError` for an expression that is none.
        """
        for name in self.model_fields_set - {"invert"}:
            # The test stands first beside the type of the field.
            test = type(self).model_fields[name].metadata[0]
            if test(info, getattr(self, name)) == self.invert:
                return False
        return True


class StreamQuery(_Query):
    """Criteria for streams; one that is not set does not count."""

    empty: Annotated[_Yes, _is_empty] = None
    """Whether it has no messages."""
    idle: Annotated[_Span, _stores_nothing] = None
    """Nothing was stored for at least so long."""
    consumers: Annotated[_Most, _has_consumers] = None
    """It has at most this number of consumers."""
    sourced: Annotated[_Yes, _has_sources] = None
    """Whether it has sources."""
    mirrored: Annotated[_Yes, _is_mirror] = None
    """Whether it is a mirror."""
    subject: Annotated[OptionalSubject | None, _stores] = None
    """It stores this subject, or a part of it."""


class ConsumerQuery(_Query):
    """Criteria for consumers; one that is not set does not count."""

    pull: Annotated[_Yes, _is_pull] = None
    """Whether it is a pull consumer."""
    push: Annotated[_Yes, _is_push] = None
    """Whether it is a push consumer."""
    bound: Annotated[_Yes, _is_bound] = None
    """Whether a client is subscribed to it, or pulls wait."""
    durable: Annotated[_Yes, _is_durable] = None
    """Whether it is durable."""
    idle: Annotated[_Span, _delivers_nothing] = None
    """Nothing was delivered for at least so long."""
    pending: Annotated[_Most, _has_pending] = None
    """Fewer messages than this are still to be delivered."""
    ack_pending: Annotated[_Most, _has_ack_pending] = None
    """Fewer messages than this wait for their acknowledgement."""
    waiting: Annotated[_Most, _has_waiting] = None
    """Fewer pulls than this wait."""
