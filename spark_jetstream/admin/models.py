"""All models of the JetStream API, and what can be done with them. Pure.

Configurations are written by people and sent: `StreamConfig`, `ConsumerConfig` and their parts, and the requests.
Everything else is what a server says. `Model` tells how they are made, read, changed and sent.
"""

from __future__ import annotations

from spark_jetstream.admin.account_models import AccountInfo, AccountLimits, ApiStats, Tier
from spark_jetstream.admin.consumer_models import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    PauseReply,
    PriorityGroup,
    ResetReply,
    SequenceInfo,
)
from spark_jetstream.admin.differences import Difference, differences, merged, update_body
from spark_jetstream.admin.messages import (
    DoneReply,
    MessageReply,
    PubAck,
    PurgeReply,
    PurgeRequest,
    SnapshotConfig,
    StoredMessage,
)
from spark_jetstream.admin.model import Model, Page, Reply, complaint
from spark_jetstream.admin.rendering import readable, rendered
from spark_jetstream.admin.rules import IMMUTABLE, LEFT_TO_SERVER, RISKS
from spark_jetstream.admin.stream_models import (
    ConsumerLimits,
    External,
    Placement,
    RePublish,
    SourceConsumer,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from spark_jetstream.admin.stream_replies import (
    ApiErrorBody,
    ClusterInfo,
    DesiredCluster,
    DesiredOrigin,
    DesiredStatus,
    LostData,
    PeerInfo,
    RestoreReply,
    SnapshotReply,
    StreamAlternate,
    StreamInfo,
    StreamNamesPage,
    StreamPage,
    StreamSourceInfo,
    StreamState,
)
from spark_jetstream.units import NEVER, Bytes, Nanoseconds, Timestamp

__all__ = [
    "IMMUTABLE",
    "LEFT_TO_SERVER",
    "NEVER",
    "RISKS",
    "AccountInfo",
    "AccountLimits",
    "ApiErrorBody",
    "ApiStats",
    "Bytes",
    "ClusterInfo",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerNamesPage",
    "ConsumerPage",
    "DesiredCluster",
    "DesiredOrigin",
    "DesiredStatus",
    "Difference",
    "DoneReply",
    "External",
    "LostData",
    "MessageReply",
    "Model",
    "Nanoseconds",
    "Page",
    "PauseReply",
    "PeerInfo",
    "Placement",
    "PriorityGroup",
    "PubAck",
    "PurgeReply",
    "PurgeRequest",
    "RePublish",
    "Reply",
    "ResetReply",
    "RestoreReply",
    "SequenceInfo",
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
    "complaint",
    "differences",
    "merged",
    "readable",
    "rendered",
    "update_body",
]
