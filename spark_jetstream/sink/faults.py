"""Faults: the reasons why rows can never be stored, to which the publisher adds number and subject.

The first reason of a row counts. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import BoolArray, IntArray, flags
from spark_jetstream.protocol.subjects import MAX_SUBJECT

Faults = dict[int, str]
"""The reasons by the indices of rows."""

BLANK_OR_CONTROL = r"[\x00-\x20\x7f]"
_BLANK_OR_CONTROL_BYTE = re.compile(BLANK_OR_CONTROL.encode())


def note(faults: Faults, bad: pa.Array, reason: str, row: IntArray | None = None) -> BoolArray:
    """Note a reason for the bad rows, unless they have one already. Return the flags of `bad`.

    `row` has the index of the row of each flag, where that is not the flag's own.
    """
    marked = flags(bad)
    for at in np.flatnonzero(marked):
        index = at if row is None else row[at]
        faults.setdefault(int(index), reason)
    return marked


def note_each(
    faults: Faults,
    values: pa.BinaryArray,
    doubtful: BoolArray,
    fault: Callable[[bytes], str | None],
) -> BoolArray:
    """Note what `fault` says of doubtful values, and return the bad ones.

    Looks at each distinct value once.
    """
    bad = np.zeros(len(values), np.bool_)
    # A column often has few distinct values, and `fault` is Python for each.
    reasons: dict[bytes, str | None] = {}
    for at in np.flatnonzero(doubtful).tolist():
        value = values[at].as_py()
        if value not in reasons:
            reasons[value] = fault(value)
        reason = reasons[value]
        if reason is not None:
            faults.setdefault(at, reason)
            bad[at] = True
    return bad


def note_subjects(faults: Faults, subject: pa.BinaryArray) -> None:
    """Note the rows with an invalid subject. Looks at each distinct subject once."""
    coded = subject.dictionary_encode("encode")
    reasons = [
        "column subject is null" if one is None else subject_fault(one)
        for one in coded.dictionary.to_pylist()
    ]
    # The usual case: no row is looked at.
    if not any(reasons):
        return
    for index, code in enumerate(coded.indices.to_pylist()):
        reason = reasons[code]
        if reason is not None:
            faults.setdefault(index, reason)


def subject_fault(subject: bytes) -> str | None:
    """Return why a subject is invalid for publishing, or None."""
    if not subject:
        return "its subject is empty"
    if len(subject) > MAX_SUBJECT:
        return f"its subject has {len(subject)} bytes, more than {MAX_SUBJECT}"
    if _BLANK_OR_CONTROL_BYTE.search(subject):
        return f"its subject {shown_bytes(subject)} holds a blank or a control character"
    tokens = subject.split(b".")
    if b"" in tokens:
        return f"its subject {shown_bytes(subject)} has an empty token"
    if b"*" in tokens or b">" in tokens:
        return f"its subject {shown_bytes(subject)} has a wildcard"
    if tokens[0] in (b"$JS", b"$SYS"):
        return f"its subject {shown_bytes(subject)} is one of the server's own"
    return None


def shown_bytes(text: bytes) -> str:
    """Return bytes as an error message quotes them."""
    return repr(text[:80].decode("utf-8", "replace"))
