"""What the ``nats`` tool calls our commands and options: other names that work, and hints where nothing is the same.

Tables by place: a group, or a group and a command. "" is the top level for commands, and every command for options; the
narrowest place counts. A hint has no effect where the name exists.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[str, Mapping[str, str]]


def _names(pairs: str) -> dict[str, str]:
    """Return names of the ``nats`` tool, each with the one here, from a text of ``theirs=ours``."""
    return dict(pair.split("=") for pair in pairs.split())


def _hints(table: Table) -> Table:
    """Return a table of hints by name; in ``table`` names with the same hint share a row."""
    return {
        place: {name: hint for names, hint in rows.items() for name in names.split()} for place, rows in table.items()
    }


_CHANGES = "create=add new=add update=edit delete=rm del=rm"
_LOOKS = "list=ls l=ls report=ls nfo=info i=info"

COMMANDS: Table = {
    "": _names(
        """ctr=counter s=stream st=stream str=stream ms=stream c=consumer con=consumer obs=consumer obj=object a=account
        event=events e=events ctx=context srv=server sys=server system=server publish=pub subscribe=sub req=request"""
    ),
    "account": _names("nfo=info snapshot=backup"),
    "context": _names("list=ls l=ls add=save create=save remove=rm delete=rm switch=select set=select info=show"),
    "check": _names("conn=connection raft=meta"),
    "server": _names("i=info list=ping ls=ping"),
    "stream": _names(f"{_CHANGES} {_LOOKS} cp=copy query=find subj=subjects rmm=delete-msg snapshot=backup"),
    "consumer": _names(f"{_CHANGES} {_LOOKS} cp=copy query=find state=info"),
    "counter": _names("list=ls l=ls increment=incr i=incr"),
    "schema": _names("search=ls find=ls info=show view=show check=validate"),
    "kv": _names("new=add list=ls status=info view=info"),
    "object": _names(f"{_CHANGES} {_LOOKS} show=info status=info"),
}

COMMAND_HINTS: Table = _hints(
    {
        "": {
            "top graph audit": "server ping --json shows what each server does, lag --watch what waits",
            "latency": "rtt measures round trips, bench the speed of source and sink",
            "auth": "this command makes no operators, accounts or users; context save stores a login",
            "errors err error governor gov plugins service micro trace": "this command is for what JetStream stores",
        },
        "account": {"report rep tls": "account info shows usage, doctor the login, server ping what each server does"},
        "context": {
            "copy cp edit vi": "context save NAME with its options, or those to change",
            "validate": "context ls shows which cannot be used, doctor --context NAME tries one",
            "previous - unselect": "context select NAME",
        },
        "server": {
            "check": "check, without server before it",
            "report rep request req watch graph": "server ping --json shows what each server does, lag what waits",
            "cluster r raft stream-check consumer-check": (
                "stream info, stream step-down, consumer step-down, cluster step-down"
            ),
            "account config generate gen mappings mapping passwd mkpasswd pass password": (
                "this command does not configure servers"
            ),
        },
        "counter": {
            "view v": "counter get SUBJECT --json",
            "decrement decr dec d": "counter incr SUBJECT -- -5",
        },
        "stream": {"graph": "lag STREAM --watch", "cluster c": "stream step-down, or stream peer-remove"},
        "consumer": {"sub": "consumer next", "graph": "lag STREAM --watch", "cluster c": "consumer step-down"},
    }
)

OPTIONS: Table = {
    "": _names(
        """-j=--json -r=--raw --domain=--js-domain --id=--from --msgs=--messages
        --http_port=--monitor --store_dir=--store-dir
        --replicas=--num-replicas --dupe-window=--duplicate-window --source=--sources --first-sequence=--first-seq
        --discard-per-subject=--discard-new-per-subject --allow-batch=--allow-atomic --allow-counter=--allow-msg-counter
        --allow-rollup=--allow-rollup-hdrs --allow-mirror-direct=--mirror-direct --allow-schedules=--allow-msg-schedules
        --subject-del-markers-ttl=--subject-delete-marker-ttl --seq=--sequence --last-for=--last -S=--last
        --max-bucket-size=--max-bytes --compress=--compression --display-value=--verbose
        --ack=--ack-policy --bps=--rate-limit-bps --deliver=--deliver-policy --filter=--filter-subjects
        --heartbeat=--idle-heartbeat --max-outstanding=--max-ack-pending --max-pending=--max-ack-pending
        --max-pull-batch=--max-batch --max-pull-expire=--max-expires --max-pull-bytes=--max-bytes --memory=--mem-storage
        --pinned-ttl=--priority-timeout --replay=--replay-policy --sample=--sample-freq --target=--deliver-subject
        --wait=--ack-wait --js-metric=--metrics --js-advisory=--advisories --cloudevent=--cloudevents"""
    ),
    "events": _names("-a=--all --subjects=--kind"),
}
"""An option is accepted where the command has the one on the right, and none of its own with the name on the left."""

OPTION_HINTS: Table = _hints(
    {
        "": {
            "--cluster --tag --tags": "--placement cluster=NAME,tags=TAG",
            "--republish-source --republish-destination --republish-headers": "--republish src=FROM,dest=TO",
            "--transform-source --transform-destination": "--subject-transform src=FROM,dest=TO",
            "--limit-consumer-inactive --limit-consumer-max-pending": "--consumer-limits",
            "--no-mirror --no-republish --no-transform": "--unset FIELD, such as --unset mirror",
            "--mirror-domain": "--mirror with JSON that has the domain",
            "--backoff-steps --backoff-min --backoff-max": "--backoff 1s,10s,1m",
            "--pull --ephemeral": "consumer add without --deliver-subject, or with --ephemeral",
            "--pinned-groups --overflow-groups": "--priority-groups GROUP and --priority-policy",
            "--pause": "--pause-until TIME, or consumer pause",
            "--nak --term": "--ack nak, or --ack term",
            "--defaults --no-select": "nothing is asked, and what is not given has its default",
            "--names -n --completion": "--json, or the command names",
            "--force -f": "this command does not ask",
            "--progress --no-progress": "only a terminal has a progress bar",
            "--interactive -i --output --validate": "info --json > FILE, --config FILE, stream apply FILE --check",
            "--pinned --api-level": "--json, and a pipe",
            "--translate": "--raw, and a pipe to the program",
            "--sort --reverse -R --compact --raw -r --consumers -o --messages -m --name --storage -t --dot": "--json",
            "--all -a": "all streams count, those of buckets too",
            "--leaders -l --state": "info shows the leader, stream state the state",
            "--connect": "doctor --context NAME",
            "--certstore --certstore-match --certstore-match-by --certstore-ca-match": "--tlscert, --tlskey, --tlsca",
            "--socks-proxy --nsc --trace --connection-name --chunk-size --window-size --colors": "it does without",
            "--js-event-prefix": "events --prefix PREFIX",
            "--no-context": "XDG_CONFIG_HOME=/none in front of the command hides all contexts",
        },
        "account backup": {"--check --consumers --no-consumers --critical-warnings -w": "stream backup, one by one"},
        "bench": {
            "ARGUMENT": "bench SUBJECT writes and reads, without another word before it",
            "--clients --csv --sleep --multisubject --multisubjectmax --progress --no-progress": "--subjects, --json",
        },
        "cheat": {"--sections": "cheat shows all", "--save": "cheat > FILE"},
        "consumer add": {"--name": "the name is the argument after the stream"},
        "events": {
            "--short --filter": "an event has one line without --details; --kind KIND, or a pipe to grep, filters",
            "--srv-advisory --no-srv-advisory --no-js-metric --no-js-advisory": "--advisories, --metrics, or neither",
        },
        "kv rm": {"ARGUMENT": "kv del BUCKET KEY deletes a key, kv rm BUCKET the bucket"},
        "pub": {
            "--reply": "the stream replies with its acknowledgement; request waits for other replies",
            "--sleep": "--count 1 in a loop of the shell",
            "--jetstream -J": "pub always waits for the stream",
            "--force-stdin": "- in place of DATA",
            "--quiet -q": "> /dev/null",
            "--atomic": "each message is published by itself",
            "--translate": "a pipe from the program to pub SUBJECT",
        },
        "reply": {"--command --sleep -q --header -H": "DATA with templates, or sub and a loop of the shell"},
        "request": {"--count --send-on --wait -w --replies-all --reply-timeout": "--replies NUMBER and --timeout"},
        "rtt": {"ARGUMENT": "--count NUMBER"},
        "server info": {"ARGUMENT": "server ping --json shows all servers"},
        "server ping": {"ARGUMENT": "the servers say how many they are", "--id --graph": "--json has ids and times"},
        "server run": {
            "ARGUMENT": "--store-dir DIR keeps its streams",
            "--clean --extend-demo-network --verbose --debug --websocket": "nats-server has more",
        },
        "stream ls": {"--cluster": "stream info STREAM shows the cluster"},
        "stream restore": {"--config": "the fields as options, such as --max-age 30d"},
        "sub": {
            "--all --new --last --since --last-per-subject --start-sequence --stream --durable --ack": "consumer next",
            "--direct --no-ack --match-replies --inbox -i --exclude-subjects --wait --dump": "--json, and a pipe",
            "--subjects-only --timestamp --delta-time --graph --report-subjects --report-top": "--json, and a pipe",
        },
    }
)
"""ARGUMENT: what to write instead of an argument too many."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "retention": {"work": "workqueue", "workq": "workqueue"},
    "storage": {"f": "file", "m": "memory"},
    "deliver_policy": {"subject": "last_per_subject"},
}
"""By field: values that the ``nats`` tool abbreviates."""
