"""The models of the JetStream API, and what can be done with them; `spark_jetstream.admin` has all names. Pure.

Configurations are written by people and sent: `StreamConfig`, `ConsumerConfig` and their parts, and
the requests. Everything else is what a server says. `Model` tells how they are made, read, changed
and sent.
"""
