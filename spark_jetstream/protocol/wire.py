r"""The client side of the NATS wire protocol, read in bulk: bytes in, runs of frames out.

No socket, no clock, no logging. The server sends a chain of lines and messages::

    MSG  <subject> <sid> [reply] <size>\r\n<payload>\r\n
    HMSG <subject> <sid> [reply] <header size> <total size>\r\n<header><payload>\r\n
    INFO {...}\r\n   PING\r\n   PONG\r\n   +OK\r\n   -ERR '...'\r\n

A payload may hold any bytes, text that resembles a frame included. So a line is a frame only where
the chain of lengths says so. "The tasks of nats-py" in docs/architecture.md says how `Scanner`
checks it.

Messages of the subscriptions that are collected come out as `Frames` (still undecoded, see
`columns.py`), `Status` and `ApiReply`; everything else comes out as the bytes it was, in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.errors import ProtocolError, brief
from spark_jetstream.protocol.arrow import IntArray, as_arrow, binary, gather, joined
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.vectors import load4, parse_unsigned, trailing_number

MAX_LINE = 1 << 20
"""Longest line that is neither MSG nor HMSG, and longest one whose end is waited for, in bytes."""
MAX_FRAME = 96 << 20
"""The size in bytes of the largest message that the scanner accepts, header and payload together.

A server lets `max_payload` be 64 MiB at most, and STREAM.MSG.GET answers with a message of that
size in base64.
"""

_LF, _CR, _SPACE, _DOT = 10, 13, 32, 46
_MSG = int.from_bytes(b"MSG ", "little")
_HMSG = int.from_bytes(b"HMSG", "little")
_SMALL = 4096  # bytes that are cheaper to walk, whatever the frames
_FEW = 4  # frames that are cheaper to read one by one
_SHORTEST_LINE = len(b"MSG a 1 0\r\n")
# Mean size of frames, in bytes, from which walking them is cheaper than looking at every byte.
_BULK_BELOW = 2048
_PLAIN = re.compile(rb"MSG ([^ ]+) ([0-9]{1,18}) [0-9]+\r")
_STATUS = re.compile(rb"NATS/1\.0 +(\d{3})(?: ([^\r\n]*))?\r\n((?:[^\r\n]+\r\n)*)\r\n")
_CONTROL = re.compile(rb"(?:PING|PONG|\+OK)[ \t]*\r?\n|-ERR|INFO")


@dataclass(frozen=True)
class Status:
    """A status message of a collected subscription (ADR-13): `NATS/1.0 <code>`, no payload.

    It has no reply subject. A stored message is never taken for one, whatever its own headers are
    called: it has a reply subject.
    """

    sid: int
    subject: bytes
    code: int
    description: str
    headers: dict[str, str]


@dataclass(frozen=True)
class ApiReply:
    """A message of a collected subscription without reply subject and headers.

    The JetStream API answers a request.
    """

    sid: int
    subject: bytes
    payload: bytes


@dataclass(frozen=True)
class Frames:
    """A run of complete messages of one subscription, n >= 1 of them, ascending in `data`.

    `lines` holds bytes (uint8); all other vectors are int64.

    - `begin`, `line_end` (length n): where the control line starts, and where the bytes after it
      start.
    - `head`, `size` (length n): how many of these bytes are header (0 without one), and how many
      there are in all.
    - `lines`: the n control lines, one after the other. `separators`: where their spaces and dots
      are.
    - `subject_start`, `subject_end` (length n): indices of `lines`.
    - `reply`, `reply_dots` (length n): the index in `separators` of the space before the reply
      subject, and how many dots that subject has (-1: the message has no reply).
    """

    sid: int
    data: bytes | bytearray
    begin: IntArray
    line_end: IntArray
    head: IntArray
    size: IntArray
    lines: npt.NDArray[np.uint8]
    separators: IntArray
    subject_start: IntArray
    subject_end: IntArray
    reply: IntArray
    reply_dots: IntArray

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, part: slice | IntArray) -> Frames:
        """The messages of a slice with step 1, or of ascending indices; shares the buffers."""
        # `data`, `lines` and `separators` are not cut: the vectors hold places in them.
        return replace(self, **{name: getattr(self, name)[part] for name in _PER_MESSAGE})

    def payloads(self) -> pa.BinaryArray:
        """The payloads, byte for byte."""
        return gather(self.data, self.line_end + self.head, self.line_end + self.size)

    def pull_bytes(self) -> int:
        """Bytes that the server takes off `max_bytes` of the pull requests.

        They are those of subject, reply subject and content.
        """
        subjects = self.subject_end.sum() - self.subject_start.sum()
        has_reply = self.reply_dots >= 0
        space = self.reply[has_reply]
        # The separator after the last dot is the space that ends the reply subject.
        next_space = space + self.reply_dots[has_reply] + 1
        replies = self.separators[next_space].sum() - (self.separators[space] + 1).sum()
        return int(subjects + replies + self.size.sum())

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """The header block and the payload of each message, byte for byte."""
        for start, head, size in zip(
            self.line_end.tolist(), self.head.tolist(), self.size.tolist(), strict=True
        ):
            yield (
                bytes(self.data[start : start + head]),
                bytes(self.data[start + head : start + size]),
            )

    def reply_subject(self, index: int) -> str:
        """The reply subject of one message, or an empty text.

        Bytes that are not UTF-8 become U+FFFD.
        """
        dots = int(self.reply_dots[index])
        if dots < 0:
            return ""
        space = int(self.reply[index])
        first, last = self.separators[space] + 1, self.separators[space + dots + 1]
        return self.lines[first:last].tobytes().decode("utf-8", "replace")


_PER_MESSAGE = (
    "begin",
    "line_end",
    "head",
    "size",
    "subject_start",
    "subject_end",
    "reply",
    "reply_dots",
)

Event = Frames | Status | ApiReply | bytes


class Scanner:
    """Cuts what the server sends into events, whatever the places where the network cut it.

    `collect` is the live set of subscription ids whose messages are wanted as `Frames`; the owner
    may change it between two calls of `read`. Those in `whole` as well have neither statuses nor
    replies: all their messages are `Frames`. Those in `responses` as well receive the answers of
    services: `ApiReply` without headers, and `Frames` with them.
    """

    def __init__(self) -> None:
        self.collect: set[int] = set()
        self.whole: set[int] = set()
        self.responses: set[int] = set()
        self._mean = (
            0  # bytes of a frame in the last run, which choose between walking and reading in bulk
        )

    def read(self, incoming: Incoming) -> list[Event]:
        """Use what is complete, in the order of the wire.

        Raises `ProtocolError`, and nothing else.
        """
        # The frame is still incomplete, so another look would find nothing.
        if not incoming.ready:
            return []
        data, begin, end = incoming.data, incoming.begin, incoming.end
        scan = (
            _scan_by_walk if self._mean >= _BULK_BELOW or end - begin <= _SMALL else _scan_in_bulk
        )
        pieces, used = scan(data, begin, end)
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                events.append(piece)
            else:
                self._mean = max(1, (int(piece.end) - int(piece.begin[0])) // len(piece.begin))
                events.extend(self._split(data, piece))
        # An incomplete frame stays in the memory. The next look waits until all of its bytes are
        # there.
        incoming.use(used, _needed(data, used, end))
        return events

    def _split(self, data: bytearray, run: _FrameRun) -> Iterator[Event]:
        """Split a run by subscription.

        Statuses and replies of collected subscriptions come one by one, messages of others as
        their bytes.
        """
        collect, whole = self.collect, self.whole
        # A reply of the API comes alone: vectors would cost more than its few bytes.
        replies = _replies(data, run) if len(run.begin) <= _FEW else None
        if replies is not None and whole.isdisjoint(reply.sid for _, reply in replies):
            yield from (reply if reply.sid in collect else frame for frame, reply in replies)
            return
        sid, frames = _tokenize(data, run)
        if not collect:
            yield bytes(data[int(run.begin[0]) : run.end])
            return
        yield from self._by_subscription(data, sid, frames)

    def _by_subscription(self, data: bytearray, sid: IntArray, frames: Frames) -> Iterator[Event]:
        """Split tokenized messages; `sid` has the subscription of each."""
        collect, whole = self.collect, self.whole
        wanted = _among(sid, collect)
        message = frames.reply_dots >= 0
        if whole:
            message |= _among(sid, whole)
        # The common run of a reader: one subscription, and messages alone.
        if wanted.all() and message.all() and (sid == sid[0]).all():
            yield replace(frames, sid=int(sid[0]))
            return
        if self.responses:
            message |= _among(sid, self.responses) & (frames.head > 0)
        # int64 (n,), one key for each message; -1 for those of subscriptions that are not collected.
        # Neighbours with the same key make one event, so events keep the order of the wire.
        key = np.where(wanted, sid * 2 + message, -1)
        cuts = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist(), len(key)]
        for first, last in pairwise(cuts):
            part = frames[first:last]
            if key[first] < 0:
                yield bytes(data[int(part.begin[0]) : int(part.line_end[-1] + part.size[-1] + 2)])
            elif message[first]:
                yield replace(part, sid=int(sid[first]))
            else:
                yield from _answers(part, int(sid[first]))


@dataclass(frozen=True)
class _FrameRun:
    """Contiguous messages of any subscription: line starts, line feeds, total sizes (int64)."""

    begin: IntArray
    feed: IntArray
    size: IntArray

    @property
    def end(self) -> int:
        return int(self.feed[-1] + self.size[-1] + 3)


def _scan_in_bulk(data: bytearray, begin: int, end: int) -> tuple[list[bytes | _FrameRun], int]:
    """Return all complete frames of data[begin:end], and where they end.

    Walks where the chain is not plain.
    """
    octets = np.frombuffer(data, np.uint8)
    # Each line feed ends a control line, or stands in a payload.
    feeds = np.flatnonzero(octets[begin:end] == _LF) + begin
    if not len(feeds):
        return [], begin
    # A line begins after the line feed of the one before.
    starts = np.empty_like(feeds)
    starts[0] = begin
    starts[1:] = feeds[:-1] + 1
    # A shorter line is no message's, and has too few bytes for the words that are read below.
    long_enough = feeds - starts >= _SHORTEST_LINE - 1
    starts, feeds = starts[long_enough], feeds[long_enough]
    # The first four bytes tell the control lines of messages, and payloads that look like one.
    word = load4(data, starts)
    candidates = (word == _MSG) | (word == _HMSG)
    starts, feeds = starts[candidates], feeds[candidates]
    begins_with_message = len(starts) > 0 and starts[0] == begin
    if not begins_with_message:
        return _scan_by_walk(data, begin, end)
    # The last number of a control line is the size of header and payload.
    size, plain = trailing_number(data, feeds - 1)
    plain &= octets[feeds - 1] == _CR
    # The next frame begins behind the line feed, the content and its CR LF. Where each line begins
    # where the frame before it ends, no line is part of a payload.
    follows = feeds + size + 3
    is_chain = plain.all() and np.array_equal(follows[:-1], starts[1:])
    if not is_chain:
        return _scan_by_walk(data, begin, end)
    all_complete = bool(end >= follows[-1])
    # Only the last frame can be incomplete, since each other one ends where the next begins.
    chained = len(starts) if all_complete else len(starts) - 1
    if not chained:
        return [], begin
    _check_line_ends(octets, follows[:chained])
    run = _FrameRun(starts[:chained], feeds[:chained], size[:chained])
    used = run.end
    # The rest is one frame whose end has not come; a frame may be cut anywhere.
    if used == end or not all_complete:
        return [run], used
    # A message that is not complete yet follows, or another kind of line.
    rest, more = _scan_by_walk(data, used, end)
    return [run, *rest], more


def _check_line_ends(octets: npt.NDArray[np.uint8], ends: IntArray) -> None:
    """Raise `ProtocolError` unless each frame ends with CR LF."""
    if not ((octets[ends - 1] == _LF) & (octets[ends - 2] == _CR)).all():
        raise _wrong_length()


def _wrong_length() -> ProtocolError:
    return ProtocolError("a message on the wire is not followed by a line end: its length is wrong")


def _scan_by_walk(data: bytearray, at: int, end: int) -> tuple[list[bytes | _FrameRun], int]:
    """The same as `_scan_in_bulk`, one frame after the other."""
    pieces: list[bytes | _FrameRun] = []
    # Of the messages since the last line of another kind:
    begin: list[int] = []
    feed: list[int] = []
    sizes: list[int] = []
    while at < end:
        line_feed = data.find(b"\n", at, end)
        if line_feed < 0:
            break
        if data.startswith((b"MSG ", b"HMSG "), at):
            size = _message_size(data, at, line_feed)
            after = line_feed + size + 3
            if after > end:
                break
            if data[after - 2 : after] != b"\r\n":
                raise _wrong_length()
            begin.append(at)
            feed.append(line_feed)
            sizes.append(size)
        else:
            after = line_feed + 1
            _check_control_line(data, at, line_feed, end)
            if begin:
                pieces.append(_frame_run(begin, feed, sizes))
                begin, feed, sizes = [], [], []
            pieces.append(bytes(data[at:after]))
        at = after
    if begin:
        pieces.append(_frame_run(begin, feed, sizes))
    return pieces, at


def _frame_run(begin: list[int], feed: list[int], sizes: list[int]) -> _FrameRun:
    return _FrameRun(np.array(begin, np.int64), np.array(feed, np.int64), np.array(sizes, np.int64))


def _check_control_line(data: bytearray, at: int, line_feed: int, end: int) -> None:
    """Raise `ProtocolError` unless data[at:line_feed] is a line of a server, without a message."""
    if _CONTROL.match(data, at) is None:
        shown = bytes(data[at : min(at + 40, end)])
        raise ProtocolError(f"the server sent a line of no known kind: {shown!r}")
    if line_feed - at > MAX_LINE:
        raise _endless()
    if data[line_feed - 1] != _CR:
        raise ProtocolError("a control line on the wire does not end with CR LF")


def _message_size(data: bytearray, at: int, line_feed: int) -> int:
    """Bytes of header and payload that the control line data[at:line_feed] announces."""
    digits = data[data.rfind(b" ", at, line_feed) + 1 : line_feed - 1]
    too_short = line_feed - at < _SHORTEST_LINE - 1
    if too_short or data[line_feed - 1] != _CR or not digits.isdigit():
        shown = bytes(data[at : min(at + 80, line_feed)])
        raise ProtocolError(f"a message's control line cannot be read: {shown!r}")
    # Python takes long for the value of thousands of digits.
    size = int(digits) if len(digits) < 12 else MAX_FRAME + 1
    if size > MAX_FRAME:
        raise ProtocolError(
            f"the server announced a message of {digits[:20].decode()} bytes, more than "
            f"{MAX_FRAME:,}"
        )
    return size


def _needed(data: bytearray, at: int, end: int) -> int:
    """How many bytes the incomplete frame at data[at:end] needs before looking again is of use."""
    line_feed = data.find(b"\n", at, end)
    if line_feed < 0:
        if end - at > MAX_LINE:
            raise _endless()
        return end - at + 1
    return line_feed - at + _message_size(data, at, line_feed) + 3


def _endless() -> ProtocolError:
    return ProtocolError(f"the server sent a line of more than {MAX_LINE} bytes")


def _replies(data: bytearray, run: _FrameRun) -> list[tuple[bytes, ApiReply]] | None:
    """Read plain messages, each with its frame; None if there are others.

    They have neither reply subject nor headers.
    """
    read = []
    for begin, feed, size in zip(
        run.begin.tolist(), run.feed.tolist(), run.size.tolist(), strict=True
    ):
        line = _PLAIN.fullmatch(data, begin, feed)
        if line is None:
            return None
        reply = ApiReply(int(line[2]), line[1], bytes(data[feed + 1 : feed + 1 + size]))
        read.append((bytes(data[begin : feed + size + 3]), reply))
    return read


def _among(sid: IntArray, some: set[int]) -> npt.NDArray[np.bool_]:
    return np.isin(sid, list(some)) if len(some) > 1 else sid == next(iter(some))


def _tokenize(data: bytearray, run: _FrameRun) -> tuple[IntArray, Frames]:
    """Find the tokens of all control lines of a run; read subscription ids and header sizes."""
    count = len(run.begin)
    line_end = run.feed + 1
    lines, bounds = _control_lines(data, run.begin, line_end)
    # Tokens end at spaces, and those of subjects at dots as well. A line's CR LF is part of its
    # last token.
    separators = np.flatnonzero((lines == _SPACE) | (lines == _DOT))
    spaces = np.flatnonzero(lines[separators] == _SPACE)
    space_at = separators[spaces]
    # The first and the last space of each line.
    # int64 (n + 1,): how many spaces are in front of each line.
    edges = np.searchsorted(space_at, bounds)
    first_space, last = edges[:-1], edges[1:] - 1
    # int64 (n,): 1 for HMSG, 0 for MSG, so that it can be added to places and counts.
    headed = (lines[bounds[:-1]] == ord("H")).astype(np.int64)
    # Three parts follow MSG, and four follow HMSG; a reply subject is one more.
    extra = last - first_space - headed - 2
    if not ((extra == 0) | (extra == 1)).all():
        raise ProtocolError("a message's control line has too many or too few parts")
    # The subject begins behind "MSG " or "HMSG ", and ends at the second space.
    subject_start = bounds[:-1] + 4 + headed
    subject_end = space_at[first_space + 1]
    sid_end = space_at[first_space + 2]
    sid, are_numbers = parse_unsigned(lines, subject_end + 1, sid_end)
    have_subjects = (subject_end > subject_start).all()
    first_space_fits = (space_at[first_space] == subject_start - 1).all()
    if not (are_numbers.all() and have_subjects and first_space_fits):
        raise ProtocolError(
            "a message's control line cannot be read: no subject or no subscription id"
        )
    head = np.zeros(count, np.int64)
    if headed.any():
        # The header size stands between the last two spaces.
        rows = np.flatnonzero(headed)
        size_start = space_at[last[rows] - 1] + 1
        head[rows], are_numbers = parse_unsigned(lines, size_start, space_at[last[rows]])
        if not (are_numbers.all() and (head[rows] <= run.size[rows]).all()):
            raise ProtocolError(
                "a message's header size cannot be read or is larger than the message"
            )
    # The reply subject, if any, stands between the third and the fourth space. Of a line without
    # one the numbers mean nothing, and must only be indices.
    before_reply = spaces[np.minimum(first_space + 2, len(spaces) - 1)]
    after_reply = spaces[np.minimum(first_space + 3, len(spaces) - 1)]
    dots = np.where(extra == 1, after_reply - before_reply - 1, -1)
    frames = Frames(
        -1,
        data,
        run.begin,
        line_end,
        head,
        run.size,
        lines,
        separators,
        subject_start,
        subject_end,
        before_reply,
        dots,
    )
    return sid, frames


def _control_lines(
    data: bytearray, begin: IntArray, line_end: IntArray
) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """Copy the lines data[begin[i]:line_end[i]] together; return them, and their n + 1 bounds."""
    count = len(begin)
    # Every second piece is a line, and those in between are the contents of the messages.
    # int32 is wide enough for places: the largest frame has 96 MiB (`MAX_FRAME`).
    around = np.empty(2 * count + 1, np.int32)
    around[0:-1:2] = begin
    around[1::2] = line_end
    around[-1] = len(data)
    # The first line is taken twice: reading numbers eight bytes at a time needs something in front.
    pick = np.arange(-2, 2 * count, 2, dtype=np.int64)
    pick[0] = 0
    lines, bounds = joined(binary(2 * count, around, data).take(as_arrow(pick)))
    # Without the bound of the first piece, which is the line that is taken twice.
    return lines, bounds[1:]


def _answers(frames: Frames, sid: int) -> Iterator[Status | ApiReply]:
    for index in range(len(frames)):
        yield _answer(frames[index : index + 1], sid)


def _answer(frame: Frames, sid: int) -> Status | ApiReply:
    """Read one message without a reply subject: a status if it has headers."""
    start = int(frame.line_end[0])
    head = int(frame.head[0])
    size = int(frame.size[0])
    subject = bytes(frame.lines[int(frame.subject_start[0]) : int(frame.subject_end[0])])
    if not head:
        return ApiReply(sid, subject, bytes(frame.data[start : start + size]))
    line = parse_status(frame.data[start : start + head])
    # A status has no payload (ADR-13).
    if size != head or line is None:
        raise ProtocolError(
            "the server answered a pull request with a message that has no reply subject and is "
            "not a status"
        )
    return Status(sid, subject, line.code, line.description, line.headers)


class StatusLine(NamedTuple):
    """The fields of a header block with a status (ADR-13 "Pull Subscribe internals")."""

    code: int
    description: str
    headers: dict[str, str]


def parse_status(block: bytes | bytearray) -> StatusLine | None:
    """Return the status of a header block; None for that of a message, or one that is cut off."""
    # Of the whole block: a stored block that only begins like a status is none.
    match = _STATUS.fullmatch(block)
    if match is None:
        return None
    description = (match[2] or b"").decode("utf-8", "replace").strip()
    headers = {}
    for line in match[3].decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return StatusLine(int(match[1]), brief(description), headers)
