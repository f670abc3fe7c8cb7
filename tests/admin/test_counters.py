"""Counters on a real server: read one, list many, add."""

from __future__ import annotations

import pytest

from spark_jetstream.admin import Counter, JetStreamAdmin
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    MessageNotFound,
    OptionError,
    ProtocolError,
)
from tests.admin.conftest import Make
from tests.support.fake_jetstream import FakeJetStream

COUNTS = {"allow_msg_counter": True}


def test_a_counter_is_added_to_and_read(admin: JetStreamAdmin, make_stream: Make) -> None:
    name = make_stream(COUNTS)
    subject = f"{name.lower()}.a"
    huge = "9" * 5000
    acks = [admin.counters.increment(subject, value) for value in (5, "-3", f"+{huge}", f"-{huge}")]
    assert [(ack.stream, ack.seq, ack.val) for ack in acks[:2]] == [(name, 1, "5"), (name, 2, "2")]
    assert admin.counters.increment(subject, stream=name).val == "3"
    time = admin.messages.get(name, 5).time
    assert admin.counters.get(subject) == Counter(name, subject, 5, time, "3", "1", {})
    assert admin.counters.get(subject, stream=name).value == "3"


def test_counters_are_listed_by_their_last_changes(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    name = make_stream(COUNTS)
    subject = name.lower()
    for suffix in ("a", "b.c", "a", "b.d", "b.c"):
        admin.counters.increment(f"{subject}.{suffix}", 2)
    found = [*admin.counters.list(stream=name)]
    assert [(each.subject, each.value, each.seq) for each in found] == [
        (f"{subject}.a", "4", 3),
        (f"{subject}.b.d", "2", 4),
        (f"{subject}.b.c", "4", 5),
    ]
    assert found[0] == admin.counters.get(f"{subject}.a")
    assert [each.subject for each in admin.counters.list(f"{subject}.b.>")] == [
        f"{subject}.b.d",
        f"{subject}.b.c",
    ]
    assert [*admin.counters.list(f"{subject}.a", f"{subject}.b.d", stream=name)] == found[:2]
    assert [*admin.counters.list(f"{subject}.none")] == []


def test_counters_of_several_streams_are_not_listed_in_part(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    names = sorted(make_stream(COUNTS) for _ in range(2))
    subjects = [f"{name.lower()}.a" for name in names]
    for subject in subjects:
        admin.counters.increment(subject)
    with pytest.raises(
        OptionError,
        match=f"name the stream, for {', '.join(names)} captures {', '.join(subjects)}$",
    ):
        next(admin.counters.list(*subjects))
    assert [each.subject for each in admin.counters.list(*subjects, stream=names[1])] == subjects[
        1:
    ]


def test_the_values_of_sources(admin: JetStreamAdmin, make_stream: Make) -> None:
    origin = make_stream(COUNTS)
    total = make_stream({**COUNTS, "subjects": [], "sources": [{"name": origin}]})
    subject = f"{origin.lower()}.a"
    admin.counters.increment(subject, 7)
    while not admin.streams.load(total).state.messages:
        pass
    found = admin.counters.get(subject, stream=total)
    assert (found.stream, found.value, found.sources) == (total, "7", {origin: {subject: "7"}})


def test_a_server_that_does_not_count_is_noticed() -> None:
    with FakeJetStream() as fake, JetStreamAdmin(servers=fake.url) as admin:
        said = (
            "stream S has stored it .sequence 1., and no value: it has no counters "
            ".allow_msg_counter.$"
        )
        with pytest.raises(JetStreamError, match=f"cannot add to the counter S.a: {said}"):
            admin.counters.increment("S.a")
    with FakeJetStream() as fake, JetStreamAdmin(servers=fake.url) as admin:
        fake.lies["INFO"] = lambda honest: [honest.changed(api__level=1)]
        with pytest.raises(
            JetStreamError, match=r"cannot add to the counter S.a: this needs nats-server 2\.12"
        ):
            admin.counters.increment("S.a")
        assert not fake.messages


@pytest.mark.parametrize("value", ["", "1.5", "five", " 1", True, 1.0, None])
def test_incrementing_by_a_value_that_is_no_integer_is_an_error(
    admin: JetStreamAdmin, value: int
) -> None:
    with pytest.raises(OptionError, match="value must be an integer, not "):
        admin.counters.increment("a", value)


def test_counter_errors_name_the_missing_subject_or_the_wrong_stream(
    admin: JetStreamAdmin, make_stream: Make
) -> None:
    name, plain = make_stream(COUNTS), make_stream({})
    subject = f"{name.lower()}.a"
    with pytest.raises(MessageNotFound, match=f"cannot get the last {subject} of stream {name}"):
        admin.counters.get(subject)
    with pytest.raises(
        OptionError, match=r"stream: name the stream, for no stream captures nowhere\.a"
    ):
        admin.counters.get("nowhere.a")
    with pytest.raises(OptionError, match=f"for .*{name}.* captures >"):
        next(admin.counters.list())
    with pytest.raises(ApiError, match="message counters is disabled"):
        admin.counters.increment(f"{plain.lower()}.a")
    with pytest.raises(
        JetStreamError, match=f"stream {name} has stored it .sequence 1., not {plain}"
    ):
        admin.counters.increment(subject, stream=plain)
    admin.publish(f"{plain.lower()}.a", "5")
    said = f"message 1 of stream {plain} is that of no counter: its payload is not a JSON object"
    with pytest.raises(ProtocolError, match=said):
        admin.counters.get(f"{plain.lower()}.a")
    with pytest.raises(ProtocolError, match=said):
        next(admin.counters.list(stream=plain))
