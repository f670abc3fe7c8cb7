"""The least permissions of a NATS account for each thing that is done here, and a server's configuration of them.

`needed` has them as data, one line each: `docs/permissions.md` shows them, `spark-jetstream doctor` probes them, and
tests run everything with them, and with each line left out. Pure.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spark_jetstream import jsapi, permission_admin, permission_sets
from spark_jetstream.permission_lines import Kind, Lines, Names, Permission

PURPOSES: Mapping[str, str] = {
    "read": "read a stream",
    "read-direct": "read a stream by direct gets (readWith=direct), which makes no consumer",
    "durable": "keep a query's position on a stream with limits or interest retention (durable), beside reading it",
    "durable-old": "the same on a server before 2.14, which cannot move a consumer",
    "durable-queue": "keep a query's position on a work queue (durable), beside reading it by direct gets",
    "kv-read": "read a Key-Value bucket: its table, all revisions, its changes",
    "kv-read-direct": "read a Key-Value bucket by direct gets",
    "kv-write": "write to a Key-Value bucket",
    "object-read": "read an Object Store bucket",
    "object-read-direct": "read an Object Store bucket by direct gets",
    "object-write": "write to an Object Store bucket",
    "write": "write to a stream, at-least-once or deduplicated",
    "write-exactly-once": "write to a stream, exactly-once",
    "ensure-stream": "create a stream on demand (ensureStream)",
    "ensure-stream-update": "the same with ensureStreamOnConflict=update",
    "admin-account": "look at the account",
    "admin-look": "look at streams and consumers, and at the lag of consumers",
    "admin-streams": "create, change, purge and delete streams, besides looking at them",
    "admin-consumers": "create, change, use and delete consumers, besides looking at them",
    "admin-messages": "read and remove single messages",
    "admin-backup": "back up a stream",
    "admin-restore": "restore a stream",
    "admin-kv": "make, read, write and remove a Key-Value bucket",
    "admin-objects": "make, read, write and remove an Object Store bucket",
    "admin-events": "hear events",
}
"""What an account can be allowed to do -> in words, as an infinitive without "to"."""


def needed(
    purpose: str,
    *,
    stream: str = "*",
    bucket: str = "",
    subjects: Sequence[str] | None = None,
    durable: str = "*",
    dead_letter: str = "",
    inbox_prefix: str = "_INBOX",
    prefix: str = jsapi.DEFAULT_PREFIX,
) -> tuple[Permission, ...]:
    """The least permissions for one of `PURPOSES`: all lines that it needs, none twice.

    ``stream`` is what is read, written or administered, ``*`` for any. ``bucket`` is that of the purposes with
    a bucket. ``subjects`` are the filters of a read (option subjects; empty for none, None for whatever
    filters there may be), or the subjects of a write's rows (wildcards allowed), or the keys of a bucket (or filters of
    them; None and empty for all). ``durable`` is that option, ``*`` for any name, ``dead_letter`` option
    deadLetterSubject. ``inbox_prefix`` is option inboxPrefix, and ``prefix`` what options apiPrefix or domain make of
    ``$JS.API``. `ValueError` for another purpose, without a needed bucket, and for a write without subjects.

    The purposes durable and durable-queue hold only what they need beside read, read-direct and the like; `merged` puts
    several together.
    """
    if purpose not in _BUILDERS:
        raise ValueError(f"purpose {purpose!r} is none of {', '.join(PURPOSES)}")
    if purpose.removeprefix("admin-").startswith(("kv", "object")) and not bucket:
        raise ValueError(f"purpose {purpose} needs a bucket")
    if purpose.startswith("write") and not subjects:
        raise ValueError(f"purpose {purpose} needs the subjects of the rows: any would be those of the API as well")
    names = Names(stream, bucket, None if subjects is None else tuple(subjects), durable, dead_letter, prefix)
    inbox = Permission(f"{inbox_prefix}.>", "answers", kind="subscribe")
    return merged([inbox] if purpose != "admin-events" else [], _BUILDERS[purpose](names))


def merged(*sets: Iterable[Permission]) -> tuple[Permission, ...]:
    """The lines of several sets, in order, without those that another line covers.

    The line that stays is needed as much as those that it covers: always if one of them is, and not to be done without
    if one of them is not.
    """
    lines = list(dict.fromkeys(itertools.chain.from_iterable(sets)))
    found: dict[tuple[Kind, str], Permission] = {}
    for line in lines:
        if any(other.covers(line) and not line.covers(other) for other in lines):
            continue
        covered = [other for other in lines if line.covers(other)]
        most = min(covered, key=lambda other: (bool(other.when), bool(other.without)))
        found.setdefault((line.kind, line.subject), replace(line, when=most.when, without=most.without))
    return tuple(found.values())


# Configuration of a server


def user_config(
    user: str, password: str, permissions: Iterable[Permission], *, notes: bool = False, indent: str = ""
) -> str:
    """A user with these permissions and no others, in the language of nats-server's configuration.

    ``notes`` adds to each line what it is for. ``indent`` stands in front of each line of the text.
    """
    lines = list(permissions)
    text = [
        "{",
        f"  user: {json.dumps(user)}, password: {json.dumps(password)}",
        "  permissions {",
        *_rights("publish", lines, notes),
        *_rights("subscribe", lines, notes),
        "  }",
        "}",
    ]
    return "\n".join(f"{indent}{each}" for each in text)


def _rights(kind: Kind, lines: Sequence[Permission], notes: bool) -> Iterator[str]:
    subjects = [(json.dumps(line.subject), line) for line in lines if line.kind == kind]
    if not subjects:
        yield f'    {kind} {{ deny: [">"] }}'
        return
    yield f"    {kind} {{"
    yield "      allow: ["
    for subject, line in subjects:
        note = ("optional: " if line.without else "") + line.why + (f" ({line.when})" if line.when else "")
        yield f"        {subject}  # {note}" if notes else f"        {subject}"
    yield "      ]"
    yield "    }"


_BUILDERS: Mapping[str, Callable[[Names], Lines]] = {
    "read": permission_sets.read,
    "read-direct": permission_sets.read_direct,
    "durable": permission_sets.durable,
    "durable-old": permission_sets.durable_old,
    "durable-queue": permission_sets.durable_queue,
    "kv-read": permission_sets.kv_read,
    "kv-read-direct": permission_sets.kv_read_direct,
    "kv-write": permission_sets.kv_write,
    "object-read": permission_sets.object_read,
    "object-read-direct": permission_sets.object_read_direct,
    "object-write": permission_sets.object_write,
    "write": permission_sets.write,
    "write-exactly-once": permission_sets.write_exactly_once,
    "ensure-stream": permission_sets.ensure_stream,
    "ensure-stream-update": permission_sets.ensure_stream_update,
    "admin-account": permission_admin.account,
    "admin-look": permission_admin.look,
    "admin-streams": permission_admin.streams,
    "admin-consumers": permission_admin.consumers,
    "admin-messages": permission_admin.messages,
    "admin-backup": permission_admin.backup,
    "admin-restore": permission_admin.restore,
    "admin-kv": permission_admin.kv,
    "admin-objects": permission_admin.object_store,
    "admin-events": permission_admin.events,
}


__all__ = ["PURPOSES", "Permission", "merged", "needed", "user_config"]
