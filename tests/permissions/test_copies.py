"""Mirrors and sources of other accounts and across leaf nodes: what they need is enough, and each
part of it is needed.

Each copy has more than 2 MiB to bring: the server waits before them for an answer to its flow
control.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import close_all
from spark_jetstream.permissions import needed, user_config
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.support.pages import ROOT, blocks
from tests.support.reading import wait_until

COUNT = 300
COPIES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "MIRROR": lambda origin: {"mirror": origin},
    "SOURCE": lambda origin: {"sources": [origin]},
    "FILTERED": lambda origin: {"sources": [{**origin, "filter_subject": "orders.a"}]},
}
#: A part of the subject that is missing -> the copies that are whole without it.
WHOLE_WITHOUT = {
    "CREATE.ORDERS": ("FILTERED",),
    "CREATE.ORDERS.>": ("MIRROR", "SOURCE"),
    "$JS.FC.ORDERS.>": (),
    "$JSC.R.*": (),
    "$JS.M.*": ("SOURCE", "FILTERED"),
    "$JS.S.*": ("MIRROR",),
    "OWNER.DELIVER.>": (),
}


def whole_without(subject: str) -> tuple[str, ...]:
    return next(whole for end, whole in WHOLE_WITHOUT.items() if subject.endswith(end))


def copy(origin: JetStreamAdmin, target: JetStreamAdmin, external: Mapping[str, str]) -> None:
    """Fill stream ORDERS, and begin to copy it."""
    origin.streams.create("ORDERS", subjects=["orders.>"], storage="memory")
    for _ in range(COUNT):
        origin.publish("orders.a", b"x" * 10_000)
    for name, config in COPIES.items():
        made = config({"name": "ORDERS", "external": dict(external)})
        target.streams.create(name, storage="memory", **made)


def whole(target: JetStreamAdmin) -> set[str]:
    """The copies that have all messages."""
    return {name for name in COPIES if target.streams.load(name).state.messages == COUNT}


def has(target: JetStreamAdmin, names: set[str]) -> bool:
    return whole(target) >= names


def check(targets: Mapping[str, JetStreamAdmin]) -> None:
    """Compare the copies of each account that lacks a subject, and of the one that lacks none ("")."""
    expected = {
        missing: whole_without(missing) if missing else tuple(COPIES) for missing in targets
    }
    for missing in sorted(
        targets, reverse=True
    ):  # the one that lacks none at the end: others had as much time
        enough, target = {*expected[missing]}, targets[missing]
        wait_until(partial(has, target, enough), f"{enough} without {missing}")
    assert {missing: whole(target) for missing, target in targets.items()} == {
        missing: {*names} for missing, names in expected.items()
    }


def admins(server: NatsServer, user: str, count: int, password: str = "pw") -> list[JetStreamAdmin]:
    return [
        JetStreamAdmin(servers=server.url, user=f"{user}{number}", password=password)
        for number in range(count)
    ]


@pytest.mark.parametrize("purpose", ["leaf-copy", "leaf-origin"])
def test_copies_across_a_leaf_node(purpose: str) -> None:
    """For each permission, an account whose leaf node lacks it."""
    domain = "hub" if purpose == "leaf-copy" else "leaf"
    lines = needed(purpose, stream="ORDERS", prefix=f"$JS.{domain}.API")
    missing = [*(line.subject for line in lines), ""]
    lease = PortLease()
    address = f"{LOOPBACK}:{lease.port}"
    hubs = leaves = remotes = ""
    for number, subject in enumerate(missing):
        remote = user_config(
            f"remote{number}", "pw", [line for line in lines if line.subject != subject]
        )
        account = (
            f"A{number} {{ jetstream: enabled, users: [ {{ user: admin{number}, password: pw }}"
        )
        hubs += f"{account}\n{remote} ] }}\n"
        leaves += f"{account} ] }}\n"
        remotes += f'{{ url: "nats://remote{number}:pw@{address}", account: A{number} }}\n'
    of_hub = f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "{address}", no_advertise: true }}'
    of_leaf = f"jetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {remotes} ] }}"
    with ExitStack() as stack:
        stack.callback(lease.release)
        hub = stack.enter_context(
            NatsServer(config=f"{of_hub}\naccounts {{ {hubs} }}", http_monitor=True)
        )
        leaf = stack.enter_context(NatsServer(config=f"{of_leaf}\naccounts {{ {leaves} }}"))
        stack.callback(close_all)
        wait_until(lambda: hub.monitor("/leafz")["leafnodes"] == len(missing), "all are linked")
        servers = (hub, leaf) if domain == "hub" else (leaf, hub)
        origins, targets = (admins(server, "admin", len(missing)) for server in servers)
        for origin, target in zip(origins, targets, strict=True):
            copy(origin, target, {"api": f"$JS.{domain}.API"})
        check(dict(zip(missing, targets, strict=True)))


def test_copies_of_another_account() -> None:
    """The accounts of the page; and for each subject a pair that lacks it."""
    page = ROOT / "docs" / "topologies.md"
    text = blocks(page, "conf")[-1].text
    external = json.loads(blocks(page, "json")[-1].text)["mirror"]["external"]
    missing = [*re.findall(r'^ *{ \w+: "([^"]+)" }$', text, re.MULTILINE), ""]
    assert len(missing) == 5
    pairs = ""
    for number, subject in enumerate(missing):
        pair = text
        if subject:
            pair = re.sub(rf'{{ \w+: "{re.escape(subject)}" }}', "", pair)
            imported = (
                rf'{{\s*\w+: {{ account: OWNER, subject: "{re.escape(subject)}" }}(\s*to: '
                rf'"[^"]*")?\s*}}'
            )
            pair, count = re.subn(imported, "", pair)
            assert count == 1
        pair = re.sub(r"\b(OWNER|GUEST|owner|guest)\b(?!\.)", rf"\g<1>{number}", pair)
        pairs += pair.strip().removeprefix("accounts {").removesuffix("}")
    with NatsServer(config=f"accounts {{ {pairs} }}") as server:
        try:
            targets = admins(server, "guest", len(missing), "change-me-too")
            for origin, target in zip(
                admins(server, "owner", len(missing), "change-me"), targets, strict=True
            ):
                copy(origin, target, external)
            check(dict(zip(missing, targets, strict=True)))
        finally:
            close_all()
