"""The commands of ``spark-jetstream``, a module for each group; `spark_jetstream.cli` puts them together."""
