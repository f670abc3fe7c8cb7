"""The page docs/logins.md, made from the cases that the tests of logins try.

``python -m tools.logins`` writes it. The cases are in `tests/client/logins.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.client.logins import CHANGES, RIGHT, SILENT, WAYS, WRONG_CASES, Case, Change
from tests.support.project import ROOT

PAGE = ROOT / "docs" / "logins.md"
_HEAD = """# Logins

<!-- Made by `make generate`; do not edit. -->

Every way to log in, the error that each mistake gives, and the end of a query whose login changes while it runs. The
tests try each row with real servers. `…` stands for a name, an address or a time.
[runbook.md](runbook.md#refused-credentials) says what to do after a refusal.

## Ways

A [context](options.md#contexts) of the `nats` command can give all of these [options](options.md) as well.
"""
_REFUSED = f"""
## Refused logins

A batch, and a query that starts, fail at the first refusal, before `connectTimeout` or `retryTimeout` are over.
With several servers, each that is up must refuse. A streaming query that writes fails after 5 seconds of refusals,
because its servers may be restarting.

A login may take the whole `connectTimeout` where an authorization callout decides. So does one without
`tlsHandshakeFirst` at a server with TLS first: its error ends with
`{SILENT.removeprefix("; ")}`.
"""
_DURING = """
## Changes during a run

If the server ends a login, or refuses it when the connector connects again, the connector tries again for 5 seconds.
Each attempt reads the files anew that options name: credentials, seeds, authorities and certificates. So a renewed file
needs no restart. Secrets in the options or in a context themselves (`password`, `token`, `...Secret`, `...Pem`) stay as
they were when the query started. With several servers, each must refuse: a server that is down may accept the login, so
the connector waits for it up to `retryTimeout`.
"""
_SECRETS = """
## Where secrets do not show

The tests search these places for passwords, tokens, seeds, JWTs and keys, and find none:

- errors, and logs of Python and of the JVM at level DEBUG
- Spark's event log, the progress of queries, and checkpoints
- `explain` and `repr`
- the command lines of all processes
- the output of `spark-jetstream --json`

One exception: Spark prints the option `servers`, with the login in its URLs, in the plan of a streaming frame that is
not started. Give the login in its own options, or add `servers` to `spark.sql.redaction.options.regex`.
"""


def page() -> str:
    """Return the text of docs/logins.md."""
    ways = [
        (name, f"`{way.scheme}://`", ", ".join(f"`{option}`" for option in way.options))
        for name, way in WAYS.items()
    ]
    right = _merged((case.what, "", case.ways) for case in RIGHT[1:])
    wrong = _merged((case.what, _error(case), case.ways) for case in WRONG_CASES)
    changes = _merged(
        (change.what, _error(change) or "it goes on", (change.way,)) for change in CHANGES
    )
    return "\n".join(
        [
            _HEAD,
            *_table(("way", "URL", "options"), ways),
            "",
            *_table(("what also does", "ways"), [(what, ways) for what, ways, _ in right]),
            _REFUSED,
            *_table(("what is wrong", "ways", "error"), wrong),
            _DURING,
            *_table(("what changes", "ways", "how the query ends"), changes),
            _SECRETS.rstrip(),
            "",
        ]
    )


def _error(case: Case | Change) -> str:
    return "" if case.error is None else f"`{case.error.__name__}`: `{case.says}`"


def _merged(rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> list[tuple[str, str, str]]:
    """Return rows of a table: what, ways, error.

    Each pair of what and error has one row, with all of its ways.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for what, error, ways in rows:
        found.setdefault((what, error), {}).update(dict.fromkeys(ways))
    return [(what, ", ".join(ways), error) for (what, error), ways in found.items()]


def _table(names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"| {' | '.join(cells)} |" for cells in (names, ("---",) * len(names), *rows))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
