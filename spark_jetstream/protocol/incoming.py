"""The memory into which a connection receives, and in which messages stay until they are decoded.

Pure.
"""

from __future__ import annotations

import sys

_SIZE = 4 << 20  # bytes
_FIRST = 64 << 10  # bytes, enough for a login and for replies to requests
_SHARE = 16  # less than this part of the memory is no room to receive into
_MOST = 4  # pieces of memory that are kept: one receives while the others are decoded
_LIST = [bytearray()]
# The count of references that Python says of an object to which only a list refers.
_ALONE = sys.getrefcount(_LIST[0])


class Incoming:
    """Bytes of one connection that are not used yet: ``data[begin:end]``, from a frame or line on.

    The receiver writes into `room` and calls `filled`. The reader moves `begin` on and says how
    many bytes it needs. Bytes are copied only where the memory ends: the received part of a frame
    moves to other memory, so that each frame lies in one piece. Used bytes stay unchanged as long
    as anything refers to `data`.

    The memory has `first` bytes until a read fills it, and `size` bytes from then on: a connection
    that only asks, and an attempt to connect, need little.
    """

    def __init__(self, size: int = _SIZE, first: int = _FIRST) -> None:
        self._largest = size
        self._size = min(first, size)
        self.data = bytearray(self._size)
        self.begin = 0
        self.end = 0
        self.need = 1
        """The number of bytes from which on another attempt to read is of use."""
        # Of `_size` bytes each, used again when nothing else refers to it.
        self._memory = [self.data]

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def ready(self) -> bool:
        """Whether the bytes that are needed have come."""
        return len(self) >= self.need

    def room(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        # A frame that is larger than the memory gets more as it comes: Python fills what it
        # allocates.
        first = min(self.need, self._size)
        frame_fits = self.begin + first <= len(self.data)
        has_share = self.end + self._size // _SHARE < len(self.data)
        if not frame_fits or not has_share:
            self._move()
        return memoryview(self.data)[self.end :]

    def filled(self, count: int) -> None:
        """Note that the first bytes of the last `room` have come."""
        self.end += count
        # The receiver probably had more.
        if self.end == len(self.data) and self._size < self._largest:
            self._size = self._largest
            self._memory = []

    def add(self, data: bytes) -> None:
        """Copy bytes that the receiver got without `room`."""
        # The message lies in one piece, in memory that is large enough for all of it.
        self.need = max(self.need, len(self) + len(data))
        left = memoryview(data)
        while left:
            room = self.room()[: len(left)]
            room[:] = left[: len(room)]
            self.filled(len(room))
            left = left[len(room) :]

    def use(self, end: int, need: int = 1) -> None:
        """Note that all before `data[end]` is used, and how many bytes from there on are needed."""
        self.begin, self.need = end, need

    def line(self) -> bytes | None:
        """Use a line, and return it with its line feed; None while its end has not come."""
        end = self.data.find(b"\n", self.begin, self.end) + 1
        if not end:
            self.need = len(self) + 1
            return None
        return self._taken(end)

    def rest(self) -> bytes:
        """Use and return all that has come."""
        return self._taken(self.end)

    def _taken(self, end: int) -> bytes:
        taken = bytes(self.data[self.begin : end])
        self.use(end)
        return taken

    def _move(self) -> None:
        """Go on in other memory, with what is not used yet."""
        unused = memoryview(self.data)[self.begin : self.end]
        # At most twice what has come, and `_size` more: a larger frame gets more as it comes.
        wanted = min(max(self.need, len(unused)), 2 * len(unused) + self._size)
        least = wanted + self._size // _SHARE
        self.data = self._free() if least < self._size else bytearray(least + 1)
        memoryview(self.data)[: len(unused)] = unused
        self.begin, self.end = 0, len(unused)

    def _free(self) -> bytearray:
        """Return memory to which no frame refers; new memory takes the place of the oldest."""
        for number in range(len(self._memory)):
            if sys.getrefcount(self._memory[number]) == _ALONE:
                return self._memory[number]
        self._memory = [*self._memory[1 - _MOST :], bytearray(self._size)]
        return self._memory[-1]
