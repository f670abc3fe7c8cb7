"""``python -m spark_jetstream.options > docs/options.md`` writes the reference of all options."""

from __future__ import annotations

import sys

from spark_jetstream.options.reference import options_markdown

if __name__ == "__main__":
    sys.stdout.write(options_markdown())
