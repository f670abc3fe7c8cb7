"""The command line `spark-jetstream`: one module for each group of commands."""
