"""Marks of tests that need what older versions of Spark or nats-server cannot do (`tools.suites`).

A reason names the first version that can, and the test that runs on older ones in its place.
"""

from __future__ import annotations

import pytest

from tests.support.calls import ADMISSION_CONTROL
from tests.support.servers import version_of

BATCHES_OF_ONE_RUN = pytest.mark.skipif(
    not ADMISSION_CONTROL,
    reason="Trigger.AvailableNow makes several micro-batches since Spark 4.2; losses between those "
    "of several runs: test_subscribe_topic_by_pattern_with_topic_recreation_between_batches",
)
LAG = pytest.mark.skipif(
    not ADMISSION_CONTROL,
    reason="the progress has the end of a stream since Spark 4.2; that it is unknown before: "
    "test_input_row_metrics",
)
ATOMIC_BATCHES = pytest.mark.skipif(
    version_of() < (2, 12, 0),
    reason="nats-server has atomic batches since 2.12; other messages that are not there: "
    "test_read_kafka_transactional_messages_read_committed",
)
