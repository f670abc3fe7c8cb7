"""Every command and flag of the ``nats`` tool, by the names in its source
(github.com/nats-io/natscli, folder cli).
"""

from __future__ import annotations

from collections.abc import Iterator

GLOBAL = (
    "--server -s --user --password --connection-name --creds --nkey --tlscert --tlskey --tlsca "
    "--tlsfirst --no-tlsfirst"
    " --certstore --certstore-match --certstore-match-by --certstore-ca-match --timeout "
    "--socks-proxy --js-api-prefix"
    " --js-event-prefix --js-domain --domain --inbox-prefix --colors --context --trace "
    "--no-context --help"
)
"""The flags of every command."""

_PARTS = {
    "@stream": "--subjects --description --storage --compression --replicas --tag --tags --cluster "
    "--ack --no-ack"
    " --retention --discard --discard-per-subject --first-sequence --max-age --max-bytes "
    "--max-consumers --max-msg-size"
    " --max-msgs --max-msgs-per-subject --dupe-window --mirror --source --allow-batch "
    "--allow-counter --allow-rollup"
    " --no-allow-rollup --deny-delete --no-deny-delete --deny-purge --allow-direct "
    "--no-allow-direct"
    " --allow-mirror-direct --allow-msg-ttl --allow-schedules --subject-del-markers-ttl "
    "--transform-source"
    " --transform-destination --metadata --republish-source --republish-destination "
    "--republish-headers --json -j",
    "@newstream": "--limit-consumer-inactive --limit-consumer-max-pending --persist-mode",
    "@consumer": "--backoff --backoff-steps --backoff-min --backoff-max --description --filter "
    "--headers-only"
    " --no-headers-only --max-deliver --max-outstanding --max-pending --max-pull-batch "
    "--max-pull-expire"
    " --max-pull-bytes --sample --target --wait --inactive-threshold --replicas --metadata",
    "@newconsumer": "--ack --bps --deliver --deliver-group --ephemeral --flow-control --heartbeat "
    "--max-waiting --pull"
    " --replay --memory --pause --pinned-groups --pinned-ttl --overflow-groups",
    "@find": "--server-name --cluster --empty --idle --created --consumers --subject --replicas "
    "--sourced --mirrored"
    " --leader --invert --expression",
    "@bench": "--clients --msgs --progress --no-progress --csv --size",
    "@send": "--header -H --count --send-on --templates --no-templates",
}
# A line for each command: its names at each level, and its flags. Groups whose commands all have
# one answer have one.
_COMMANDS = """
account|a info|nfo
account|a report|rep
account|a tls
account|a backup|snapshot --check --consumers --no-consumers --force -f --critical-warnings -w
account|a restore --cluster --tag
audit
auth
bench
bench pub @bench --sleep --multisubject --multisubjectmax
bench sub @bench --multisubject
bench service
bench js
bench kv
bench oldjs
cheat --sections --save
consumer|con|obs|c --all -a
consumer add|create|new @consumer @newconsumer --config --validate --output --defaults
consumer edit|update @consumer --config --force -f --interactive -i --dry-run
consumer ls|list --json -j --names -n --no-select
consumer find|query --pull --push --bound --waiting --ack-pending --pending --idle --created --replicas --leader \
  --pinned --invert --expression
consumer info|nfo --json -j --no-select
consumer state --json -j --no-select
consumer rm|delete|del --force -f
consumer copy|cp @consumer @newconsumer
consumer next --ack --no-ack --nak --term --raw -r --wait --count
consumer sub --ack --no-ack --raw -r --deliver-group
consumer graph
consumer pause --force -f
consumer unpin --force -f
consumer resume --force -f
consumer report --raw -r --leaders -l
consumer cluster|c step-down|elect|down|d --force -f
consumer cluster evacuate --force -f
context|ctx save|add|create --description --select --nsc
context copy|cp --description --select --nsc
context edit|vi
context ls|list|l --completion --json -j --names
context rm|remove --force -f
context select|switch|set
context unselect
context info|show --json -j --connect
context validate --connect
context previous|-
counter|ctr get --stream
counter view|v --stream
counter increment|incr|i --stream
counter decrement|decr|dec|d --stream
counter list|ls|l --stream --json
errors|err|error
events|event|e --all -a --json -j --cloudevent --short --filter --js-metric --no-js-metric --js-advisory \
  --no-js-advisory --srv-advisory --no-srv-advisory --subjects
governor|gov
graph
kv add|new --history --ttl --replicas --max-value-size --max-bucket-size --description --storage --compress \
  --no-compress --tags --cluster --republish-source --republish-destination --republish-headers --mirror \
  --mirror-domain --source
kv put
kv get --revision --raw
kv create
kv update
kv del --force -f
kv rm --force -f
kv purge --force -f
kv history
kv revert --force -f
kv info|view|status
kv watch
kv ls|list --names -n --verbose -v --display-value
kv compact --force -f
latency
object|obj add --ttl --replicas --max-bucket-size --description --storage --tags --cluster --metadata --compress \
  --no-compress
object put --name --description --header -H --progress --no-progress --force -f
object del|rm --force -f
object get --output -O --progress --no-progress --force -f
object info|show|i
object ls --names -n
object seal --force -f
object watch
plugins
publish|pub @send --reply --sleep --force-stdin --jetstream -J --quiet -q --atomic --translate
reply --echo --command --queue -q --sleep --header -H --count
request|req @send --wait -w --raw -r --replies --replies-all --reply-timeout --translate
rtt --json -j
schema
server|srv|sys|system account
server check
server check connection|conn
server cluster|r|raft
server config
server consumer-check
server generate
server graph
server info|i
server list|ls --json -j --sort --reverse -R --compact
server mappings
server passwd|mkpasswd|pass|password
server ping --graph --id
server report|rep
server request|req
server run --extend-demo-network --jetstream --port --clean --verbose --debug --monitor --websocket
server stream-check
server watch
service|micro
stream|str|st|ms|s --all -a
stream add|create|new @stream @newstream --config --validate --output --defaults
stream ls|list|l --subject --names -n --json -j
stream report --subject --cluster --consumers -o --messages -m --name -n --storage -t --raw -r --dot --leaders -l
stream find|query @find --names -n --api-level
stream info|nfo|i --json -j --state --no-select
stream state --json -j --no-select
stream subjects|subj --json -j --sort --reverse -R --names
stream edit|update @stream --config --force -f --interactive -i --dry-run --no-mirror --no-transform --no-republish
stream rm|delete|del --force -f
stream purge --json -j --force -f --subject --seq --keep
stream copy|cp @stream @newstream
stream rmm --force -f
stream view --id --since --raw --translate --subject
stream get --last-for -S --json -j --translate
stream backup|snapshot --progress --no-progress --check --consumers --no-consumers --chunk-size --window-size
stream restore --progress --no-progress --config --cluster --tag --replicas
stream seal --force -f
stream gaps --force -f --progress --no-progress --json
stream graph
stream cluster|c step-down|stepdown|sd|elect|down|d --preferred --force -f
stream cluster balance @find
stream cluster peer-remove|pr --force -f
stream cluster evacuate --force -f
stream cluster cancel-move --force -f
subscribe|sub --queue --durable --raw -r --translate --ack --match-replies --inbox -i --count --dump --headers-only \
  --subjects-only --start-sequence --all --new --last --since --last-per-subject --stream --exclude-subjects \
  --timestamp --delta-time --wait --report-subjects --report-top --graph --direct
top --conns -n --interval -d --sort --lookup --output -o --delimiter --raw -b --max-refresh -r --subs
trace --deliver --timestamp -T --header -H
"""


def lines() -> Iterator[tuple[tuple[tuple[str, ...], ...], list[str]]]:
    """Each command, as its names at each level, and its flags."""
    for line in _COMMANDS.strip().splitlines():
        words = " ".join(_PARTS.get(word, word) for word in line.split()).split()
        flags = [word for word in words if word.startswith("-")]
        yield tuple(tuple(word.split("|")) for word in words if not word.startswith("-")), flags
