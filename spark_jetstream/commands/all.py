"""The groups of commands, in the order in which help lists them."""

from __future__ import annotations

import typer

from spark_jetstream.commands.account import account
from spark_jetstream.commands.bench import bench
from spark_jetstream.commands.consumers import consumer
from spark_jetstream.commands.doctor import doctor
from spark_jetstream.commands.events import events
from spark_jetstream.commands.kv import kv
from spark_jetstream.commands.lag import lag
from spark_jetstream.commands.objects import objects
from spark_jetstream.commands.streams import stream

GROUPS: tuple[typer.Typer, ...] = (account, stream, consumer, kv, objects, lag, events, doctor, bench)
