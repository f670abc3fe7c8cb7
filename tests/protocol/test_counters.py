"""Messages of counters: values, increments and sources, as servers store them and damaged."""

from __future__ import annotations

import re

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.counters import counter_batch, counter_sources, counter_value
from tests.support.wire import Made

#: Payloads that hold a value.
VALUES: dict[bytes, str] = {
    b'{"val":"5"}': "5",
    b'{"val":"-2"}': "-2",
    b'{"val":"0"}': "0",
    b'{"val":"%s"}' % (b"9" * 99): "9" * 99,
    b' { "val" : "3" } \r\n': "3",
    b'{"val":"3"}\n': "3",
    b'{"new":[1],"val":"4"}': "4",
    b'{"val":"1","val":"2"}': "2",
    b'{"val":"\\u0035"}': "5",
}
#: Payloads that hold none, and the fault that the error names.
NO_VALUES: dict[bytes, str] = {
    b"": "is not JSON",
    b"5": "is not a JSON object",
    b"{}": "holds no value of a counter",
    b'{"val":5}': "holds no value of a counter",
    b'{"val":null}': "holds no value of a counter",
    b'{"val":""}': "holds no value of a counter",
    b'{"val":"-"}': "holds no value of a counter",
    b'{"val":"+5"}': "holds no value of a counter",
    b'{"val":" 5"}': "holds no value of a counter",
    b'{"val":"5\\n"}': "holds no value of a counter",
    b'{"val":"1.5"}': "holds no value of a counter",
    '{"val":"٣"}'.encode(): "holds no value of a counter",
    b'{"Val":"5"}': "holds no value of a counter",
    b'{"val":"5"}\xff': "is not JSON",
    b'{"val":"5"}{"val":"5"}': "is not JSON",
}


def values(*payloads: bytes) -> list[str]:
    rows = [("c.a", payload, None) for payload in payloads]
    found: list[str] = counter_batch(Made(rows), stream="C", columns=["value"])[0].to_pylist()
    return found


@pytest.mark.parametrize("payload", VALUES)
def test_a_value_is_read_alone_and_among_others_and_a_cut_one_refused(payload: bytes) -> None:
    value = VALUES[payload]
    assert counter_value("C", 1, payload) == value
    assert values(payload) == [value]
    assert values(b'{"val":"7"}', payload, b'{"val" : "8"}') == ["7", value, "8"]
    for end in range(payload.rindex(b"}") + 1):
        with pytest.raises(ProtocolError):
            values(payload[:end])


@pytest.mark.parametrize("payload", NO_VALUES)
def test_a_payload_without_a_value_is_an_error_that_names_the_message(payload: bytes) -> None:
    error = "message 2 of stream C is that of no counter: its payload " + NO_VALUES[payload]
    with pytest.raises(ProtocolError, match=f"^{re.escape(error)}$"):
        counter_value("C", 2, payload)
    with pytest.raises(ProtocolError, match=f"^{re.escape(error)}$"):
        values(b'{"val":"7"}', payload, b'{"val":"8"}')


SOURCES: dict[str, dict[str, dict[str, str]] | None] = {
    "{}": {},
    '{"S":{}}': {"S": {}},
    '{"ORDERS": {"orders.eu":"3","orders.us":"-4"},"T":{"größe":"1"}}': {
        "ORDERS": {"orders.eu": "3", "orders.us": "-4"},
        "T": {"größe": "1"},
    },
    "": None,
    "[]": None,
    '{"S":[]}': None,
    '{"S":null}': None,
    '{"S":{"a":3}}': None,
    '{"S":{"a":"3"},"T":{"a":null}}': None,
    '{"S":{"a":"3"}} x': None,
    '{"S":{"a":"3"}': None,
}


@pytest.mark.parametrize("text", SOURCES)
def test_sources_are_maps_of_texts_and_anything_else_is_null(text: str) -> None:
    assert counter_sources(text) == SOURCES[text]
    headers = {"Nats-Incr": ["+1", "2"], "Nats-Counter-Sources": [text, '{"X":{"x":"9"}}']}
    rows = [("a", b"", None), ("b", b"", headers), ("c", b"", {"nats-incr": ["5"]})]
    batch = counter_batch(Made(rows), stream="C", columns=["incr", "sources", "sequence"])
    assert batch.column("incr").to_pylist() == [None, "+1", None]
    assert batch.column("sequence").to_pylist() == [1, 2, 3]
    read = [
        None if row is None else {stream: dict(subjects) for stream, subjects in row}
        for row in batch.column("sources").to_pylist()
    ]
    assert read == [None, SOURCES[text], None]
