"""Administering JetStream from Python: streams, consumers, messages, and the account.

`JetStreamAdmin` is what to begin with; `models` has all configurations and replies.
"""

from __future__ import annotations

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.consumers import DeliveredMessage
from spark_jetstream.admin.descriptions import DEFAULT_CONSUMER, DEFAULT_STREAM, DEFAULT_WORK_QUEUE, template
from spark_jetstream.admin.event_parsing import parse_event, stored_event
from spark_jetstream.admin.event_text import cloud_event, event_json, event_line
from spark_jetstream.admin.kv import Bucket, KeyValue
from spark_jetstream.admin.lag import ConsumerLag, OriginLag
from spark_jetstream.admin.models.account import AccountInfo, AccountLimits, ApiStats, ServerInfo, Tier
from spark_jetstream.admin.models.base import Model, Page, Reply, complaint, readable, rendered
from spark_jetstream.admin.models.changes import (
    IMMUTABLE,
    LEFT_TO_SERVER,
    RISKS,
    Difference,
    differences,
    merged,
    update_body,
)
from spark_jetstream.admin.models.consumers import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    PauseReply,
    PriorityGroup,
    ResetReply,
    SequenceInfo,
)
from spark_jetstream.admin.models.events import Event, Gap, UnknownEvent
from spark_jetstream.admin.models.kv import BucketConfig, BucketInfo, Entry
from spark_jetstream.admin.models.messages import (
    DoneReply,
    MessageReply,
    PubAck,
    PurgeReply,
    PurgeRequest,
    SnapshotConfig,
    StoredMessage,
)
from spark_jetstream.admin.models.objects import ObjectBucketConfig, ObjectBucketInfo, ObjectInfo
from spark_jetstream.admin.models.streams import (
    ApiErrorBody,
    ClusterInfo,
    ConsumerLimits,
    DesiredCluster,
    DesiredOrigin,
    DesiredStatus,
    External,
    LostData,
    PeerInfo,
    Placement,
    Replica,
    RePublish,
    RestoreReply,
    SnapshotReply,
    SourceConsumer,
    StreamAlternate,
    StreamConfig,
    StreamInfo,
    StreamNamesPage,
    StreamPage,
    StreamSource,
    StreamSourceInfo,
    StreamState,
    SubjectTransform,
)
from spark_jetstream.admin.objects import ObjectBucket
from spark_jetstream.options.contexts import environment_options
from spark_jetstream.protocol.units import NEVER, Bytes, Nanoseconds, Timestamp

__all__ = [
    "DEFAULT_CONSUMER",
    "DEFAULT_STREAM",
    "DEFAULT_WORK_QUEUE",
    "IMMUTABLE",
    "LEFT_TO_SERVER",
    "NEVER",
    "RISKS",
    "AccountInfo",
    "AccountLimits",
    "ApiErrorBody",
    "ApiStats",
    "Bucket",
    "BucketConfig",
    "BucketInfo",
    "Bytes",
    "ClusterInfo",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLag",
    "ConsumerLimits",
    "ConsumerNamesPage",
    "ConsumerPage",
    "DeliveredMessage",
    "DesiredCluster",
    "DesiredOrigin",
    "DesiredStatus",
    "Difference",
    "DoneReply",
    "Entry",
    "Event",
    "External",
    "Gap",
    "JetStreamAdmin",
    "KeyValue",
    "LostData",
    "MessageReply",
    "Model",
    "Nanoseconds",
    "ObjectBucket",
    "ObjectBucketConfig",
    "ObjectBucketInfo",
    "ObjectInfo",
    "OriginLag",
    "Page",
    "PauseReply",
    "PeerInfo",
    "Placement",
    "PriorityGroup",
    "PubAck",
    "PurgeReply",
    "PurgeRequest",
    "RePublish",
    "Replica",
    "Reply",
    "ResetReply",
    "RestoreReply",
    "SequenceInfo",
    "ServerInfo",
    "SnapshotConfig",
    "SnapshotReply",
    "SourceConsumer",
    "StoredMessage",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamNamesPage",
    "StreamPage",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "Tier",
    "Timestamp",
    "UnknownEvent",
    "cloud_event",
    "complaint",
    "differences",
    "environment_options",
    "event_json",
    "event_line",
    "merged",
    "parse_event",
    "readable",
    "rendered",
    "stored_event",
    "template",
    "update_body",
]
