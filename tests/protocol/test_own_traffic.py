"""Streams that store what the connector sends and receives."""

from __future__ import annotations

import pytest

from spark_jetstream.protocol.own_traffic import (
    AUDITS,
    in_other_account,
    stored_replies,
    stored_requests,
    stores_any_inbox,
)

API = "$JS.API.>"


@pytest.mark.parametrize(
    ("subjects", "replies", "any_inbox"),
    [
        (["orders.>", "_INBOX_OF.>"], (), False),
        (["orders.>", "_INBOX.>"], ("_INBOX.>",), False),
        (["_INBOX.*.*"], ("_INBOX.*.*",), False),
        ([">"], (">",), True),
        (["*.>", "a"], ("*.>",), True),
        (["*"], (), False),
    ],
)
def test_a_stream_stores_replies_where_its_subjects_match_inboxes(
    subjects: list[str], replies: tuple[str, ...], any_inbox: bool
) -> None:
    assert stored_replies(subjects, None, "_INBOX") == replies
    assert stores_any_inbox(subjects) is any_inbox


@pytest.mark.parametrize(
    ("subjects", "filters", "causes"),
    [
        (["orders.>"], [], ()),
        ([">"], [], (API, *AUDITS)),
        ([">"], ["orders.>"], ()),
        (["$JS.EVENT.ADVISORY.>"], [], AUDITS),
        (["$JS.EVENT.ADVISORY.>"], ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"], ()),
        (["$JS.EVENT.ADVISORY.>"], ["$JS.EVENT.ADVISORY.API"], AUDITS[:1]),
        (["$JS.EVENT.ADVISORY.CONSUMER.>"], [], AUDITS[1:]),
        (["$JS.API.STREAM.>"], [], (API,)),
    ],
)
def test_a_read_causes_what_it_gets_where_subjects_and_filters_match_it(
    subjects: list[str], filters: list[str], causes: tuple[str, ...]
) -> None:
    assert stored_requests(subjects, filters, "$JS.API") == causes


def test_the_requests_to_a_domain_count_as_well() -> None:
    assert stored_requests(["$JS.hub.>"], [], "$JS.hub.API") == ("$JS.hub.API.>",)


def test_an_api_prefix_is_that_of_another_account() -> None:
    assert [in_other_account(prefix) for prefix in (None, "$JS.API", "JSA.API")] == [
        False,
        False,
        True,
    ]
