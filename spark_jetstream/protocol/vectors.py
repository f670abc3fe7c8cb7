"""Decimal numbers inside byte buffers, read as vectors, eight digits at a step.

A number of up to eight digits that ends at byte `e` occupies the eight bytes before `e`: loaded as
one little-endian word its last digit is the highest byte. A shift removes the bytes before the
number, and three multiplications add the digits up pairwise. No socket, no clock; arbitrary bytes
give a number or a false flag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spark_jetstream.protocol.arrow import BoolArray, IntArray

WordArray = npt.NDArray[np.uint64]

_ZEROS = np.uint64(0x3030303030303030)
_SPACES = np.uint64(0x2020202020202020)
_HIGH = np.uint64(0x8080808080808080)
_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_ABOVE_9 = np.uint64(0x7676767676767676)
_PAIR = np.uint64(0x000000FF000000FF)
_MUL_A = np.uint64(0x000F424000000064)
_MUL_B = np.uint64(0x0000271000000001)
# Digits of the largest number of 63 bits.
_LONGEST = 19
_BEFORE = np.array([[0], [8], [16]])
"""Digits of a number behind those of its last, last but one, and first word."""


def load4(data: Any, at: IntArray) -> npt.NDArray[np.uint32]:
    """The four bytes at each place as a little-endian word; a place needs four bytes after it."""
    words: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    return words[at]


def load8(data: Any, at: IntArray) -> WordArray:
    """The eight bytes at each place as a little-endian word; a place needs eight bytes after it."""
    words: WordArray = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    return words[at]


def begins_with(data: Any, at: IntArray, text: bytes) -> BoolArray:
    """Where data[at[i]:] begins with `text`, which has at least eight bytes."""
    last = len(text) - 8
    # The last eight bytes overlap those before them, unless the length is a multiple of eight.
    end = at + last if last else at
    same: BoolArray = load8(data, end) == np.frombuffer(text, "<u8", 1, last)[0]
    for offset in range(0, last, 8):
        same &= load8(data, at + offset) == np.frombuffer(text, "<u8", 1, offset)[0]
    return same


def _value(word: WordArray, digits: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the value of the last 0 to 8 bytes of each word, and whether they are digits."""
    # Bits in front of the number; numpy shifts all 64 bits out, as C does not.
    junk = (64 - 8 * digits).view(np.uint64)
    # Take the ASCII code of 0 off each digit, and leave zeros in front.
    word = ((word >> junk) << junk) - ((_ZEROS >> junk) << junk)
    # A byte above 9 sets its highest bit, by itself or with 0x76 added.
    good = ((word + _ABOVE_9) | word) & _HIGH == 0
    # Two digits become one number below 100, then four of these the value.
    word = word * np.uint64(10) + (word >> np.uint64(8))
    value = ((word & _PAIR) * _MUL_A + ((word >> np.uint64(16)) & _PAIR) * _MUL_B) >> np.uint64(32)
    return value.view(np.int64), good


def trailing_number(data: Any, end: IntArray) -> tuple[IntArray, BoolArray]:
    """The number between the last space before `end` and `end`, where it has one to seven digits.

    Returns the values and whether each could be read so; places need eight bytes before them.
    """
    word = load8(data, end - 8)
    # A space becomes zero, and of the zero bytes alone the highest bit is set.
    odd = word ^ _SPACES
    is_space = ~(((odd & _LOW7) + _LOW7) | odd | _LOW7)
    # The exponent of a floating point number tells the highest bit, which is the last space.
    exponent = np.frexp(is_space.astype(np.float64))[1].astype(np.int64)
    # int64 (n,): 0 without a space, so that a number of eight digits or more is not good.
    digits = np.where(is_space == 0, 0, 7 - ((exponent - 1) >> 3))
    value, good = _value(word, digits)
    return value, good & (digits > 0)


def parse_unsigned(data: Any, start: IntArray, end: IntArray) -> tuple[IntArray, BoolArray]:
    """The numbers data[start[i]:end[i]] of 1 to 19 digits, as int64, and whether each is one.

    `end` needs eight bytes before it. A number that does not fit into 63 bits is not good.
    """
    length = end - start
    good: BoolArray = (length > 0) & (length <= _LONGEST)
    length = np.minimum(np.maximum(length, 0), _LONGEST)
    # As many words as the longest number has.
    words_needed = -(-int(length.max(initial=0)) // 8)
    before = _BEFORE[: max(1, words_needed)]
    # A word before the number is not looked at, so its place may be clipped to where eight bytes
    # are.
    words = load8(data, np.maximum(end - before, 8) - 8)
    parts, fine = _value(words, np.minimum(np.maximum(length - before, 0), 8))
    # The last word has the last eight digits; those of the words before count 10**8 times as much.
    value = parts[0]
    good &= fine[0]
    for step in range(1, len(before)):
        value = value + parts[step] * 10 ** (8 * step)
        good &= fine[step]
    # The sum of a number beyond 63 bits is negative.
    good &= value >= 0
    return value, good
