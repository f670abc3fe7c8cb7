"""``spark-jetstream stream``: the commands about streams, each group of them in its module."""

from __future__ import annotations

from spark_jetstream.commands.framework import group
from spark_jetstream.commands.stream_applying import applying
from spark_jetstream.commands.stream_changing import changing
from spark_jetstream.commands.stream_looking import looking
from spark_jetstream.commands.stream_messages import messages
from spark_jetstream.commands.stream_placing import placing
from spark_jetstream.commands.stream_removing import removing
from spark_jetstream.commands.stream_saving import saving

stream = group("stream", "Streams: list, create, change, look into, apply descriptions, save, remove.")

for part in (looking, changing, applying, messages, saving, removing, placing):
    stream.add_typer(part)
