"""The names of the ``nats`` tool for commands and options: those that work, and hints for others.

A hint says what to use where nothing is the same.

Tables by place: a group, or a group and a command. "" is the top level for commands, and every
command for options; the narrowest place counts. A hint has no effect where the name exists.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[str, Mapping[str, str]]


def _names(pairs: str) -> dict[str, str]:
    """Return names of the ``nats`` tool, each with the one here, from a text of ``theirs=ours``."""
    return dict(pair.split("=") for pair in pairs.split())


def _hints(table: Table) -> Table:
    """Return a table of hints by name; in ``table`` names with the same hint share a row."""
    hints: dict[str, dict[str, str]] = {}
    for place, rows in table.items():
        hints[place] = {}
        for names, hint in rows.items():
            hints[place] |= dict.fromkeys(names.split(), hint)
    return hints


_CHANGES = "create=add new=add update=edit delete=rm del=rm"
_LOOKS = "list=ls l=ls report=ls nfo=info i=info"

COMMANDS: Table = {
    "": _names(
        """ctr=counter s=stream st=stream str=stream ms=stream c=consumer con=consumer
        obs=consumer obj=object a=account event=events e=events ctx=context srv=server sys=server
        system=server publish=pub subscribe=sub req=request"""
    ),
    "account": _names("nfo=info snapshot=backup"),
    "context": _names(
        "list=ls l=ls add=save create=save remove=rm delete=rm switch=select set=select info=show",
    ),
    "check": _names("conn=connection raft=meta"),
    "server": _names("i=info list=ping ls=ping"),
    "stream": _names(
        f"{_CHANGES} {_LOOKS} cp=copy query=find subj=subjects rmm=delete-msg snapshot=backup",
    ),
    "consumer": _names(f"{_CHANGES} {_LOOKS} cp=copy query=find state=info"),
    "counter": _names("list=ls l=ls increment=incr i=incr"),
    "schedule": _names("list=ls l=ls delete=rm del=rm remove=rm cancel=rm"),
    "schema": _names("search=ls find=ls info=show view=show check=validate"),
    "kv": _names("new=add list=ls status=info view=info"),
    "object": _names(f"{_CHANGES} {_LOOKS} show=info status=info"),
}

COMMAND_HINTS: Table = _hints(
    {
        "": {
            "graph audit": (
                "use `server ping --json` to see what each server does, or `lag --watch` to see "
                "which messages wait"
            ),
            "latency": "use `rtt` to measure round trips, or `bench` to measure the speed of "
            "source and sink",
            "auth": "this tool makes no operators, accounts or users; use `context save` to store "
            "a login",
            "errors err error governor gov plugins service micro": (
                "this tool works with JetStream alone; use the tool nats for it"
            ),
        },
        "account": {
            "report rep tls": (
                "use `account info` to see the usage, `doctor` to check the login, or `server "
                "ping` to see what each server does"
            )
        },
        "context": {
            "copy cp edit vi": "use `context save` with the options to change",
            "validate": (
                "use `context ls` to see which contexts cannot be used, or `doctor` with --context "
                "NAME to try one"
            ),
            "previous - unselect": "use `context select` with the name of a context",
        },
        "server": {
            "check": "use `check` without the word server before it, such as `check connection`",
            "report rep request req watch graph": (
                "use `server ping --json` to see what each server does, or `lag` to see which "
                "messages wait"
            ),
            "cluster r raft stream-check consumer-check": (
                "use `stream info` to see the cluster of a stream, or `stream step-down`, "
                "`consumer step-down` or `cluster step-down` to move a leader, and `cluster evacuate` or "
                "`cluster remove` to take a server away"
            ),
            "account config generate gen mappings mapping passwd mkpasswd pass password": (
                "this tool does not configure servers; use the tool nats for it"
            ),
        },
        "counter": {
            "view v": "use `counter get` with a subject and --json",
            "decrement decr dec d": "use `counter incr` with a negative number, such as `counter "
            "incr SUBJECT -- -5`",
        },
        "stream": {
            "graph": "use `lag` with the name of the stream and --watch",
            "cluster c": "use `stream step-down` to move the leader, `stream peer-remove` to remove "
            "a server, with --evacuate once another one has a copy, or `stream cancel-move`",
        },
        "consumer": {
            "sub": "use `consumer next` to receive the messages of a consumer",
            "graph": "use `lag` with the name of the stream and --watch",
            "cluster c": "use `consumer step-down` to move the leader, or `consumer peer-remove` to "
            "remove a server",
        },
    }
)
"""Each hint is a clause that says what to use: commands stand in backticks."""

OPTIONS: Table = {
    "": _names(
        """-j=--json -r=--raw --domain=--js-domain --id=--from --msgs=--messages
        --http_port=--monitor --store_dir=--store-dir --replicas=--num-replicas
        --dupe-window=--duplicate-window --source=--sources --first-sequence=--first-seq
        --discard-per-subject=--discard-new-per-subject --allow-batch=--allow-atomic
        --allow-counter=--allow-msg-counter --allow-rollup=--allow-rollup-hdrs
        --allow-mirror-direct=--mirror-direct --allow-schedules=--allow-msg-schedules
        --subject-del-markers-ttl=--subject-delete-marker-ttl --seq=--sequence --last-for=--last
        -S=--last --max-bucket-size=--max-bytes --compress=--compression
        --display-value=--verbose --ack=--ack-policy --bps=--rate-limit-bps
        --deliver=--deliver-policy --filter=--filter-subjects --heartbeat=--idle-heartbeat
        --max-outstanding=--max-ack-pending --max-pending=--max-ack-pending
        --max-pull-batch=--max-batch --max-pull-expire=--max-expires --max-pull-bytes=--max-bytes
        --memory=--mem-storage --pinned-ttl=--priority-timeout --replay=--replay-policy
        --sample=--sample-freq --target=--deliver-subject --wait=--ack-wait --js-metric=--metrics
        --js-advisory=--advisories --cloudevent=--cloudevents"""
    ),
    "events": _names("-a=--all --subjects=--kind"),
    "top": _names("-d=--interval"),
}
"""An option is accepted where the command has the one on the right, and none of its own with the name on the left."""

OPTION_HINTS: Table = _hints(
    {
        "": {
            "--cluster --tag --tags": "use --placement cluster=NAME,tags=TAG",
            "--republish-source --republish-destination --republish-headers": "use --republish "
            "src=FROM,dest=TO",
            "--transform-source --transform-destination": "use --subject-transform "
            "src=FROM,dest=TO",
            "--limit-consumer-inactive --limit-consumer-max-pending": "use --consumer-limits",
            "--no-mirror --no-republish --no-transform": "use --unset with the field, such as "
            "--unset mirror",
            "--mirror-domain": "use --mirror with JSON that has the domain",
            "--backoff-steps --backoff-min --backoff-max": "use --backoff with the times, such as "
            "--backoff 1s,10s,1m",
            "--pull": "leave it out; `consumer add` makes a pull consumer unless --deliver-subject "
            "is given",
            "--ephemeral": "use `consumer add` with --ephemeral",
            "--pinned-groups --overflow-groups": "use --priority-groups GROUP and "
            "--priority-policy",
            "--pause": "use --pause-until TIME, or `consumer pause` for a consumer that exists",
            "--nak --term": "use --ack nak, or --ack term",
            "--defaults --no-select": "leave it out; this tool asks nothing, and what is not given "
            "has its default",
            "--names -n --completion": "use --json, or `stream names` for streams",
            "--force -f": "leave it out; this command does not ask",
            "--progress --no-progress": "leave it out; only a terminal has a progress bar",
            "--interactive -i --output --validate": (
                "use `stream info --json` to write a file, --config FILE to read one, or `stream "
                "apply --check` to compare"
            ),
            "--pinned --api-level": "use --json, and filter its output",
            "--translate": "use --raw, and pipe the output to the program",
            "--sort --reverse -R --compact --raw -r --consumers -o --messages -m --name --storage "
            "-t --dot": ("use --json, and filter or sort its output"),
            "--all -a": "leave it out; all streams count, those of buckets too",
            "--leaders -l --state": "use `stream info` to see the leader, or `stream state` to see "
            "the state",
            "--connect": "use `doctor` with --context NAME",
            "--certstore --certstore-match --certstore-match-by --certstore-ca-match": (
                "use --tlscert, --tlskey and --tlsca"
            ),
            "--socks-proxy --nsc --trace --connection-name --chunk-size --window-size --colors": (
                "this tool has nothing like it"
            ),
            "--js-event-prefix": "use `events` with --prefix PREFIX",
            "--no-context": "set the variable XDG_CONFIG_HOME=/none for the command, which hides "
            "all contexts",
        },
        "account backup": {
            "--check --consumers --no-consumers --critical-warnings -w": "use `stream backup` for "
            "one stream at a time"
        },
        "bench": {
            "ARGUMENT": "use `bench SUBJECT`, which writes and reads, without another word before "
            "the subject",
            "--clients --csv --sleep --multisubject --multisubjectmax --progress --no-progress": (
                "use --subjects for several subjects, or --json for a program"
            ),
        },
        "cheat": {
            "--sections": "use `cheat`, which prints all sections",
            "--save": "redirect the output to a file: `cheat > FILE`",
        },
        "consumer add": {
            "--name": "give the name as the argument after the stream: `consumer add STREAM NAME`",
        },
        "events": {
            "--short --filter": (
                "leave out --details for one line for each event, and use --kind KIND or grep to "
                "filter them"
            ),
            "--srv-advisory --no-srv-advisory --no-js-metric --no-js-advisory": (
                "use --advisories, --metrics, or neither"
            ),
        },
        "kv rm": {
            "ARGUMENT": "use `kv del BUCKET KEY` to delete a key; `kv rm BUCKET` removes the "
            "bucket",
        },
        "pub": {
            "--reply": "use `request` to wait for replies; `pub` waits for the acknowledgement of "
            "the stream",
            "--sleep": "use --count 1 in a loop of the shell",
            "--jetstream -J": "leave it out; `pub` always waits for the stream",
            "--force-stdin": "write - in place of DATA",
            "--quiet -q": "redirect the output to /dev/null",
            "--atomic": "leave it out; `pub` publishes each message by itself",
            "--translate": "pipe the output of the program to `pub SUBJECT`",
        },
        "reply": {
            "--command --sleep -q --header -H": "use DATA with templates, or `sub` in a loop of "
            "the shell",
        },
        "request": {
            "--count --send-on --wait -w --replies-all --reply-timeout": "use --replies NUMBER and "
            "--timeout",
        },
        "rtt": {"ARGUMENT": "use --count NUMBER for the number of round trips"},
        "server info": {"ARGUMENT": "use `server ping --json` to see all servers"},
        "server ping": {
            "ARGUMENT": "leave it out; the servers say how many they are",
            "--id --graph": "use --json, which has ids and times",
        },
        "server run": {
            "ARGUMENT": "use --store-dir DIR to keep the streams",
            "--clean --extend-demo-network --verbose --debug --websocket": (
                "use the program nats-server, which has more options"
            ),
        },
        "stream add": {
            "ARGUMENT": "use --subjects to name the subjects of the stream, such as --subjects "
            "'orders.>'",
        },
        "stream ls": {"--cluster": "use `stream info STREAM` to see the cluster"},
        "stream restore": {"--config": "use the options of the fields, such as --max-age 30d"},
        "top": {
            "--conns -n --lookup --output -o --delimiter --raw -b --max-refresh -r --subs": (
                "this tool shows streams and consumers; use the tool nats for the connections of "
                "a server"
            ),
        },
        "trace": {
            "--deliver": "use `pub` to store a message, and `trace` to see its way before",
            "--timestamp -T": "use --json, which has the time of each event",
        },
        "sub": {
            "--all --new --last --since --last-per-subject --start-sequence --stream --durable "
            "--ack": (
                "`sub` receives what is published from now on; use `stream view STREAM` to see the "
                "stored messages of a stream, or `consumer next STREAM CONSUMER` to receive those "
                "of a consumer"
            ),
            "--direct --no-ack --match-replies --inbox -i --exclude-subjects --wait --dump": (
                "use --json, and filter its output"
            ),
            "--subjects-only --timestamp --delta-time --graph --report-subjects --report-top": (
                "use --json, and filter its output"
            ),
        },
    }
)
"""ARGUMENT: what to write instead of an argument too many.

Each hint is a clause that says what to use.
"""

VALUES: Mapping[str, Mapping[str, str]] = {
    "retention": {"work": "workqueue", "workq": "workqueue"},
    "storage": {"f": "file", "m": "memory"},
    "deliver_policy": {"subject": "last_per_subject"},
}
"""By field: values that the ``nats`` tool abbreviates."""
