"""Arguments, options and steps that several commands have."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, F, Run, connection_options
from spark_jetstream.errors import (
    ConsumerNotFound,
    JetStreamError,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.protocol.units import Bytes, Nanoseconds, counted, minutes_or_months, shown

if TYPE_CHECKING:
    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.admin.consumers import Consumers
    from spark_jetstream.admin.models.buckets import AnyBucketInfo
    from spark_jetstream.admin.models.changes import Difference
    from spark_jetstream.admin.models.consumers import ConsumerInfo
    from spark_jetstream.admin.models.streams import StreamInfo
    from spark_jetstream.admin.streams import Streams

A = TypeVar("A", bound="StreamInfo | ConsumerInfo | AnyBucketInfo")

# An account may have thousands of streams.
_MAX_COMPLETIONS = 100
_TIMEOUT = "2s"  # a user waits for the completion
_LONGEST = Nanoseconds.of("100y")  # Python cannot wait for more than 292 years


def completion(
    names: Callable[[JetStreamAdmin, dict[str, Any]], Iterator[str]],
) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion of the names that ``names`` yields.

    It gets a `JetStreamAdmin` and the parameters that are on the line already. Without an answer of
    the server there are no completions.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from pydantic import SecretStr

        # Connection options may stand before the command.
        given = dict(ctx.find_root().params or {})
        given |= {name: value for name, value in ctx.params.items() if value is not None}
        # Options on the line win over these two.
        quick = SecretStr(_TIMEOUT)
        # A server that does not answer must not hold the shell up.
        options = {"requestTimeout": quick, "connectTimeout": quick}
        # An error in the middle of a line would destroy it.
        with contextlib.suppress(JetStreamError, BadParameter):
            options |= connection_options(given)
            admin = Run(options, as_json=False).admin
            # Names come in pages: those after the last completion are never asked for.
            matching = (name for name in names(admin, given) if name.startswith(incomplete))
            return list(islice(matching, _MAX_COMPLETIONS))
        return []

    return complete


def _stream_names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    return admin.streams.names()


def _consumer_names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    return admin.consumers.names(given.get("stream", ""))


complete_stream = completion(_stream_names)
complete_consumer = completion(_consumer_names)

stream_option = partial(Option, autocompletion=complete_stream)
stream_argument = partial(Argument, autocompletion=complete_stream)
consumer_option = partial(Option, autocompletion=complete_consumer)


StreamName = Annotated[str, stream_argument(help="Name of the stream.")]
ConsumerName = Annotated[
    str,
    Argument(help="Name of the consumer.", autocompletion=complete_consumer),
]


def _parser(of: Callable[[Any], Any], noun: str) -> Callable[[Any], Any]:
    """Return a parser for typer of a value that ``of`` reads; it leaves a parsed value as it is."""

    def parse(value: Any) -> Any:
        try:
            return of(value)
        except ValueError:
            hint = minutes_or_months(value)
            raise BadParameter(f"{shown(value)} is not a {noun}{hint}") from None

    return parse


def _duration(value: object) -> Nanoseconds:
    duration = Nanoseconds.of(value)
    if duration > _LONGEST:
        raise ValueError("too long to wait for")
    return duration


_A_DURATION = _parser(_duration, "duration such as 10s or 1h30m, up to 100y")
duration_option = partial(Option, parser=_A_DURATION, metavar="DURATION")
"""An option that is a duration: ``Annotated[Nanoseconds, duration_option(help=...)]``."""

size_option = partial(
    Option,
    parser=_parser(Bytes.of, "size such as 64k or 131072"),
    metavar="SIZE",
)
"""An option that is a size: ``Annotated[Bytes, size_option(help=...)]``."""

Raw = Annotated[bool, Option("--raw", help="Only the content, as it is.")]

Preferred = Annotated[str | None, Option(help="The server that should lead (server 2.11).")]

AnyFilter = Annotated[
    bool,
    Option("--any-filter", help="Allow filters that match no subject of the stream."),
]

Force = Annotated[bool, Option("--force", "-f", help="Do not ask.")]

DryRun = Annotated[
    bool,
    Option("--dry-run", help="Show what would be changed, and change nothing."),
]

Pedantic = Annotated[
    bool,
    Option("--pedantic", help="Refuse what the server would adjust (server 2.11)."),
]

ConfigFile = Annotated[
    str | None,
    Option(metavar="FILE", help="Fields from a JSON or YAML file; options win over it."),
]


def with_fields(kind: str, common: Sequence[str], **how: Any) -> Callable[[F], F]:
    """Return a decorator (below `command`) that adds the options of `field_options.add_options`.

    It makes them when the parameters are needed, since that takes long.
    """

    def wrap(function: F) -> F:
        @functools.cache
        def finished() -> Callable[..., None]:
            from spark_jetstream.cli.field_options import add_options

            return add_options(function, kind, common, **how)

        function.finished = finished  # type: ignore[attr-defined]  # `command` reads it
        return function

    return wrap


def whole_data(data: str) -> bytes:
    """Return the data of a command line; for ``-``, all of standard input."""
    # Bytes, because data need not be text.
    return sys.stdin.buffer.read() if data == "-" else command_octets(data)


def command_octets(text: str) -> bytes:
    """Return an argument as the shell gave it, also where its bytes are no UTF-8."""
    # Python decodes arguments so (PEP 383): each byte that is no UTF-8 is half of a surrogate pair.
    return text.encode(errors="surrogateescape")


def file_fields(config: str | None) -> dict[str, Any]:
    """Return the fields of a `ConfigFile`."""
    from spark_jetstream.admin.descriptions import template

    if config is None:
        return {}
    return template(config, "configuration")


CREATED = "was created"
UNCHANGED = "already exists, unchanged"


def create(load: Callable[[], A | None], make: Callable[[], A]) -> tuple[A, str]:
    """Create an asset, and return it with `CREATED`, `UNCHANGED`, or "exists" for either."""
    before = None
    outcome = CREATED
    try:
        # A server replies alike when it creates an asset, and when one exists with the same
        # configuration.
        before = load()
    except (StreamNotFound, ConsumerNotFound):
        # There is none yet.
        pass
    except PermissionDenied:
        # The account may create and not look: test_stream.py,
        # test_a_stream_that_may_not_be_looked_at_counts_as_there.
        outcome = "exists"
    info = make()
    # Another client may have deleted it and made it again in between.
    if before is not None and before.created == info.created:
        outcome = UNCHANGED
    return info, outcome


def created(
    run: Run,
    noun: Callable[[A], str],
    load: Callable[[], A | None],
    make: Callable[[], A],
) -> A:
    """Create an asset, and say so. ``noun`` returns its kind and name.

    That it existed already is a note on standard error.
    """
    info, outcome = create(load, make)
    say = run.out.text if outcome == CREATED else run.out.note
    say(f"{noun(info)} {outcome}")
    return info


def change(
    run: Run,
    asset: dict[str, str],
    differences: Sequence[Difference],
    carry_out: Callable[[], Sequence[Difference]],
    *,
    force: bool,
    dry_run: bool,
) -> None:
    """Show the differences, ask, and change an asset.

    ``asset`` has its name by its kind, and the stream of a consumer first. JSON has it beside
    ``changed`` and ``differences``. ``carry_out`` returns the differences that it has made. If a
    single one is refused, the command changes nothing and ends with 1.
    """
    from spark_jetstream.admin.plan import difference_data, difference_words

    noun = _named(asset)

    def report(sentence: str, shown: Sequence[Difference], *, changed: bool) -> None:
        run.out.done(
            sentence,
            **asset,
            changed=changed,
            differences=list(map(difference_data, shown)),
        )

    for difference in differences:
        run.out.text(f"    {difference_words(difference)}", style=_style(difference))
    # An update of the other fields alone would leave an asset that the user did not ask for.
    if any(difference.refused for difference in differences):
        report(f"{noun} cannot be changed so, and stays as it is", differences, changed=False)
        raise Exit(FAILED)
    if not differences:
        report(f"{noun}: nothing to change", differences, changed=False)
    elif dry_run:
        report(f"{noun} would be changed", differences, changed=False)
    else:
        run.out.confirm(f"Change {noun}?", force=force)
        report(f"{noun} was changed", carry_out(), changed=True)


def _style(difference: Difference) -> str | None:
    if difference.refused:
        return "red"
    return "yellow" if difference.risk else None


@contextlib.contextmanager
def handling(
    handler: Callable[[int, FrameType | None], None],
    *signals: signal.Signals,
) -> Iterator[None]:
    """Handle signals of this process with ``handler`` inside of the block."""
    before = [signal.signal(number, handler) for number in signals]
    try:
        yield
    finally:
        for number, former in zip(signals, before, strict=True):
            signal.signal(number, former)


def step_down(
    run: Run,
    admin: Streams | Consumers,
    asset: dict[str, str],
    preferred: str | None,
) -> None:
    """Let the leader of an asset give way; ``asset`` as in `change`."""
    names: Any = asset.values()
    # The answer to the request does not name the leader that gives way.
    leaders = [replica.server for replica in admin.replicas(*names) if replica.leader]
    leader = leaders[0] if leaders else None
    admin.step_down(*names, preferred=preferred)
    sentence = f"{leader or 'the leader'} steps down from {_named(asset)}"
    run.out.done(sentence, **asset, leader_before=leader, preferred=preferred)


def balance(run: Run, admin: Streams | Consumers, *stream: str, force: bool) -> None:
    """Show which leaders give way, ask, and let them."""
    if moves := admin.balance(*stream, dry_run=True):
        for move in moves:
            run.out.text(f"    {' '.join(move.names)}: {move.leader} -> {move.preferred}")
        run.out.confirm("Let these leaders give way?", force=force)
        moves = admin.balance(*stream)
    run.out.done(f"{counted(len(moves), 'leader')} moved", moves=[move._asdict() for move in moves])


def _named(asset: dict[str, str]) -> str:
    # The stream of a consumer comes first in the mapping, and last in the sentence.
    return " of ".join(f"{kind} {name}" for kind, name in reversed(asset.items()))
