"""Which of many subjects some filters match. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import BoolArray, IntArray, as_arrow, as_vector, binaries, piece
from spark_jetstream.protocol.subjects import Shape, by_shape

_DOT = piece(b".")


class Matcher:
    """Filters as a server applies them, byte for byte. Without any, all subjects match.

    The filters of a shape are compared with all subjects at once, whatever their number.
    """

    def __init__(self, filters: Sequence[str]) -> None:
        # For each shape, the tokens of its filters that are no wildcards: a subject must have them.
        self._literal: dict[Shape, pa.BinaryArray] = {}
        for shape, several in by_shape(filters or (">",)).items():
            keys = []
            for tokens in several:
                literal = [tokens[at] for at in shape.literal]
                keys.append(".".join(literal).encode())
            self._literal[shape] = binaries(keys)

    def matches(self, subjects: pa.BinaryArray) -> BoolArray:
        """Return for each subject whether a filter matches it."""
        found = np.zeros(len(subjects), np.bool_)
        split = pc.split_pattern(subjects, ".")
        first: IntArray = as_vector(split.offsets)[:-1]
        # int32 (n,): how many tokens each subject has;
        # `first` is where they begin in `split.values`.
        counts = np.diff(as_vector(split.offsets))
        for shape, literal in self._literal.items():
            # A last `>` matches at least one token.
            fitting = counts > shape.tokens if shape.rest else counts == shape.tokens
            # int64: subjects with the right number of tokens that no filter has matched yet.
            rows = np.flatnonzero(fitting & ~found)
            if not len(rows):
                continue
            if not shape.literal:
                found[rows] = True
                continue
            # The tokens of these subjects where the filters have no wildcards.
            tokens = [split.values.take(as_arrow(first[rows] + at)) for at in shape.literal]
            keys = pc.binary_join_element_wise(*tokens, _DOT)
            found[rows] = as_vector(pc.is_in(keys, value_set=literal))
        return found
