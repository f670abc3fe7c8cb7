"""The client of nats-py, with a wire of ours. The only module that relies on its private names.

docs/architecture.md says why ("Private names of nats-py").
"""

from __future__ import annotations

from collections.abc import Sequence

from nats.aio.client import Client, __version__

from spark_jetstream.client.wire import Wire
from spark_jetstream.errors import JetStreamError

RELEASES = "nats-py>=2.15,<2.17"
"""The releases that were tested; pyproject.toml names the same."""
PARTS = ("_transport", "force_reconnect", "set_server_pool")
"""The names of nats-py's client that are private, or newer than other supported releases have.

docs/architecture.md says what each is for ("Private names of nats-py").
"""


def new_client(wire: Wire, parts: Sequence[str] = PARTS) -> Client:
    """Return a client that uses this wire. Raises `JetStreamError` if it lacks one of `parts`."""
    client = Client()
    for part in parts:
        if not hasattr(client, part):
            raise JetStreamError(
                f"nats-py {__version__} has no Client.{part}, which spark-jetstream needs: "
                f"pip install '{RELEASES}'"
            )
    # Set before the client makes its own, which it does where it has none.
    client._transport = wire
    return client
