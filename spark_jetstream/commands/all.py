"""The groups of commands, in the order in which help lists them."""

from __future__ import annotations

import typer

from spark_jetstream.commands.account import account

GROUPS: tuple[typer.Typer, ...] = (account,)
