"""What the ``nats`` tool calls our commands and options: other names that work, and hints where nothing is the same.

Tables by group; "" is the top level for commands, and every command for options. An option is accepted where the
command has the one on the right, and none of its own with the name on the left.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[str, Mapping[str, str]]

_CHANGES = {"create": "add", "new": "add", "update": "edit", "delete": "rm", "del": "rm"}
_LOOKS = {"list": "ls", "l": "ls", "report": "ls", "nfo": "info", "i": "info"}

COMMANDS: Table = {
    "": {
        **dict.fromkeys(("s", "st", "str", "ms"), "stream"),
        **dict.fromkeys(("c", "con", "obs"), "consumer"),
        "obj": "object",
        "a": "account",
        "event": "events",
        "ctx": "context",
    },
    "account": {"nfo": "info", "report": "info"},
    "context": {"list": "ls"},
    "check": {"conn": "connection", "raft": "meta"},
    "stream": {**_CHANGES, **_LOOKS, "cp": "copy", "subj": "subjects", "rmm": "delete-msg", "snapshot": "backup"},
    "consumer": {**_CHANGES, **_LOOKS, "cp": "copy", "state": "info"},
    "kv": {"new": "add", "list": "ls", "status": "info", "view": "info"},
    "object": {**_CHANGES, **_LOOKS, "show": "info", "status": "info"},
}

COMMAND_HINTS: Table = {
    "": {
        "sub": "stream get and consumer next print messages, kv watch and object watch changes",
        "top": "lag --watch shows what waits",
    },
    "context": dict.fromkeys(
        ("add", "create", "new", "save", "edit", "rm", "delete", "select", "set", "copy", "validate"),
        "the nats tool writes contexts; --context NAME chooses one for a command",
    )
    | dict.fromkeys(("info", "show"), "context ls shows them; doctor --context NAME tries one"),
    "stream": {
        "view": "stream get STREAM --from 1 --count 10",
        "find": "stream ls --subject SUBJECT, or stream ls --json for programs",
        "query": "stream ls --subject SUBJECT, or stream ls --json for programs",
        "graph": "stream info STREAM, or lag STREAM --watch",
        "cluster": "stream step-down, or stream peer-remove",
    },
    "consumer": {
        "sub": "consumer next STREAM CONSUMER --count N",
        "find": "consumer ls STREAM, with --json for programs",
        "query": "consumer ls STREAM, with --json for programs",
        "graph": "lag STREAM --consumer CONSUMER --watch",
        "cluster": "consumer step-down",
    },
}

_PLACEMENT = "--placement cluster=NAME,tags=TAG"
_REPUBLISH = "--republish src=SUBJECT,dest=SUBJECT,headers_only=true"
_BUCKET = {"--max-bucket-size": "--max-bytes", "--compress": "--compression"}

OPTIONS: Table = {
    "": {"-j": "--json"},
    "stream": {
        "--replicas": "--num-replicas",
        "--dupe-window": "--duplicate-window",
        "--source": "--sources",
        "--first-sequence": "--first-seq",
        "--discard-per-subject": "--discard-new-per-subject",
        "--allow-batch": "--allow-atomic",
        "--allow-counter": "--allow-msg-counter",
        "--allow-rollup": "--allow-rollup-hdrs",
        "--allow-mirror-direct": "--mirror-direct",
        "--allow-schedules": "--allow-msg-schedules",
        "--subject-del-markers-ttl": "--subject-delete-marker-ttl",
        "--seq": "--sequence",
        "--last-for": "--last",
        "-S": "--last",
    },
    "consumer": {
        "--ack": "--ack-policy",
        "--bps": "--rate-limit-bps",
        "--deliver": "--deliver-policy",
        "--filter": "--filter-subjects",
        "--heartbeat": "--idle-heartbeat",
        "--max-outstanding": "--max-ack-pending",
        "--max-pending": "--max-ack-pending",
        "--max-pull-batch": "--max-batch",
        "--max-pull-expire": "--max-expires",
        "--max-pull-bytes": "--max-bytes",
        "--memory": "--mem-storage",
        "--pinned-ttl": "--priority-timeout",
        "--replay": "--replay-policy",
        "--replicas": "--num-replicas",
        "--sample": "--sample-freq",
        "--target": "--deliver-subject",
        "--wait": "--ack-wait",
    },
    "kv": {**_BUCKET, "--source": "--sources"},
    "object": _BUCKET,
}

OPTION_HINTS: Table = {
    "": {
        "--cluster": _PLACEMENT,
        "--tag": _PLACEMENT,
        "--tags": _PLACEMENT,
        "--republish-source": _REPUBLISH,
        "--republish-destination": _REPUBLISH,
        "--republish-headers": _REPUBLISH,
        "--defaults": "nothing is asked, and what is not given has its default",
        "--names": "the command names prints them",
        "-n": "the command names prints them",
    },
    "stream": {
        **dict.fromkeys(
            ("--transform-source", "--transform-destination"), "--subject-transform src=SUBJECT,dest=SUBJECT"
        ),
        **dict.fromkeys(("--no-mirror", "--no-republish", "--no-transform"), "--unset FIELD, such as --unset mirror"),
        "--limit-consumer-inactive": "--consumer-limits inactive_threshold=DURATION",
        "--limit-consumer-max-pending": "--consumer-limits max_ack_pending=NUMBER",
    },
    "consumer": {
        "--pull": "a consumer without --deliver-subject is one",
        "--pinned-groups": "--priority-policy pinned_client --priority-groups GROUP",
        "--overflow-groups": "--priority-policy overflow --priority-groups GROUP",
        "--pause": "--pause-until TIME, or consumer pause",
        "--nak": "--ack nak",
        "--term": "--ack term",
    },
}

VALUES: Mapping[str, Mapping[str, str]] = {
    "retention": {"work": "workqueue", "workq": "workqueue"},
    "storage": {"f": "file", "m": "memory"},
    "deliver_policy": {"subject": "last_per_subject"},
}
"""By field: values that the ``nats`` tool abbreviates."""
