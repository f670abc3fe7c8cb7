"""``python -m spark_jetstream`` is the command line ``spark-jetstream``."""

from __future__ import annotations

from spark_jetstream.cli.main import main

if __name__ == "__main__":
    main()
