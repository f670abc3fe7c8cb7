"""INFO lines of servers: as they are sent, with fields of wrong types, cut off, with bytes behind."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.server_info import checked_info, info_line, parsed_info

LEAST = {"version": "2.15.1", "max_payload": 1 << 20}
#: What nats-server 2.15.1 sends before and after CONNECT, with a blank behind the object.
HELLO = (
    b'INFO {"server_id":"NDUW5","server_name":"n1","version":"2.15.1","proto":1,'
    b'"git_commit":"b2fd3ef","go":"go1.27.2","host":"127.0.0.1","port":21170,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":5,"client_ip":"127.0.0.1","api_lvl":5,'
    b'"xkey":"XAUJ"} \r\n'
)
#: A line, and fields of it as they reach nats-py.
READ: dict[str, tuple[bytes, dict[str, Any]]] = {
    "2.15": (HELLO, {**LEAST, "client_id": 5, "api_lvl": 5, "xkey": "XAUJ", "proto": 1}),
    "unknown fields": (
        b'INFO {"version":"2.15.1","max_payload":1048576,"new":{"a":[null,1.5]},"":0}\r\n',
        {**LEAST, "new": {"a": [None, 1.5]}, "": 0},
    ),
    "no blank, tab, no line end": (
        b'INFO\t{"version":"2.9.0","max_payload":1}',
        {"max_payload": 1},
    ),
    "candidate": (b'INFO {"version":"2.12.0-RC.1","max_payload":9}\r\n', {"version": "2.12.0"}),
    "a field twice": (
        b'INFO {"version":"1.0.0","version":"2.0.0","max_payload":1}',
        {"version": "2.0.0"},
    ),
}


@pytest.mark.parametrize(("line", "fields"), READ.values(), ids=READ)
def test_a_whole_info_is_read_and_a_cut_or_longer_one_refused(
    line: bytes, fields: dict[str, Any]
) -> None:
    found = parsed_info(line, first=True)
    assert {name: found[name] for name in fields} == fields
    assert parsed_info(checked_info(line), first=True) == found
    for end in range(line.rindex(b"}") + 1):
        with pytest.raises(ProtocolError, match=r"^the server's INFO is not JSON$"):
            parsed_info(line[:end], first=True)
    for behind in (b"{}", b"PING\r\n", b"\x00", b"\xff", b","):
        with pytest.raises(ProtocolError, match=r"^the server's INFO is not JSON$"):
            parsed_info(line + behind, first=True)


#: A field, values that pass, and values that are refused, with how the error shows them.
FIELDS: dict[str, tuple[list[Any], dict[Any, str]]] = {
    "version": (
        ["0.0.0", "2.15.1", "999999999.0.0", "2.15.1+b-7"],
        {"2.15": "2.15", "v2.15.1": "v2.15.1", "02.1.0": "02.1.0", "2.15.1 ": "2.15.1"}
        | {"2.15.1\n": "2.15.1", "": "", "2.15.1000000000": "2.15.1000000000", "٢.1.1": "٢.1.1"},
    ),
    "max_payload": ([1, 2**31 - 1], {0: "0", 2**31: "2147483648", -1: "-1", 1.0: "1.0"}),
    "client_id": ([0, -1, 2**70], {2.0: "2.0", "5": "5", None: "None"}),
    "nonce": (["", "x" * 1024], {"x" * 1025: "x" * 80 + "...", 5: "5", None: "None"}),
    "client_ip": (["::1"], {0: "0"}),
    "headers": ([True, False], {1: "1", "true": "true", None: "None"}),
    "auth_required": ([True], {0: "0"}),
    "tls_required": ([False], {"": ""}),
    "ldm": ([True], {1.0: "1.0"}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_type_or_range_is_refused(name: str) -> None:
    good, bad = FIELDS[name]
    for value in good:
        assert name in parsed_info(info_line({**LEAST, name: value}), first=True)
    for value, shown in bad.items():
        error = rf'^the server\'s INFO has no usable {name}: "{re.escape(shown)}"$'
        with pytest.raises(ProtocolError, match=error):
            parsed_info(info_line({**LEAST, name: value}))
    if name in ("max_payload", "client_id"):  # to Python, true is 1
        with pytest.raises(ProtocolError, match=rf'no usable {name}: "True"$'):
            parsed_info(info_line({name: True}))


@pytest.mark.parametrize(
    ("urls", "usable"),
    [
        (None, True),
        ([], True),
        (["10.0.0.1:4222", "[::1]:4222", "n.example:65535"], True),
        (["10.0.0.1"], False),
        (["10.0.0.1:0"], False),
        (["10.0.0.1:65536"], False),
        (["10.0.0.1:-1"], False),
        (["[::1:4222"], False),
        (["a:1", 5], False),
        (["a:1", None], False),
        ("a:1", False),
        ({"a:1": 1}, False),
    ],
)
def test_urls_of_other_servers_need_a_host_and_a_port(urls: Any, usable: bool) -> None:
    line = info_line({"connect_urls": urls})
    if usable:
        assert parsed_info(line) == {"connect_urls": urls}
        return
    with pytest.raises(ProtocolError, match=r"^the server's INFO has no usable connect_urls: "):
        parsed_info(line)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'INFO {"max_payload":1}', "has no version"),
        (b'INFO {"version":"2.15.1"}', "has no max_payload"),
        (b"INFO []", "is not a JSON object"),
        (b"INFO null", "is not a JSON object"),
        (b"info {}", "is not JSON"),
        (b"INFO INFO {}", "is not JSON"),
        (b'INFO {"version":"\xff"}', "is not JSON"),
        (b"INFO " + b"[" * 101 + b"]" * 101, "is nested too deeply"),
    ],
)
def test_a_first_info_that_lacks_a_field_or_is_no_object_is_refused(
    line: bytes, fault: str
) -> None:
    with pytest.raises(ProtocolError, match=rf"^the server's INFO {fault}$"):
        parsed_info(line, first=True)
