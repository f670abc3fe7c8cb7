"""The prose of pages, docstrings and texts keeps the rules of CONTRIBUTING.md, "Writing" (tools/prose.py)."""

from __future__ import annotations

import pytest

from tools.prose import LONGEST, docstring_faults, faults, text_faults

LONG = " ".join(["word"] * LONGEST)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The sink publishes each row.", []),
        (f"{LONG}.", []),
        (f"{LONG} more.", [f"{LONG} more."]),
        (f"{LONG} `code of three words`.", [f"{LONG} CODE."]),
        (f"- {LONG}\n- {LONG}", []),
        (f"{LONG}\n{LONG}", [f"{LONG} {LONG}"]),
        (f"| {LONG} | {LONG} |", []),
        (f"Arguments\n    one: {LONG[:-5]}\n    two: {LONG[:-5]}", []),
        (f"a tree\n├── {LONG}\n└── {LONG}", []),
        ("It ends. nats-py came.", ["nats-py came."]),
        (f"```\nWhat came\n{LONG} more\n```\n", []),
        ("<!-- What came. -->", []),
        ("See [the page](what-came.md#such).", []),
        ("## What is logged\n\nEach row.", ["What is logged"]),
        ("## What is logged?\n", []),
        ("### The log of `x` that came #\n", ["The log of CODE that came"]),
        ("```sh\n# What came\n```\n", []),
        ("#such a word", []),
        ("What is stored stays.", ["What is stored stays."]),
        ("What is stored?", []),
        ("It ends. Who reads it waits.", ["Who reads it waits."]),
        ("Of a group only a row is read.", ["Of a group only a row is read."]),
        ("Of course it is read.", []),
        ("Wait so many seconds.", ["Wait so many seconds."]),
        ("Return the indices of those.", ["Return the indices of those."]),
        ("Such a stream is refused.", ["Such a stream is refused."]),
        ("A source, such as Kafka.", []),
        ("The reply came late.", ["The reply came late."]),
        ("Each row is there once, and stays there.", []),
        ("Each row is there.", ["Each row is there."]),
        ("A later look fails.", ["A later look fails."]),
    ],
)
def test_a_sentence_breaks_a_rule_or_none(text: str, found: list[str]) -> None:
    assert [fault.sentence for fault in faults(text)] == found


def test_a_fault_has_the_line_of_its_paragraph() -> None:
    text = "# Title\n\n## What came?\n```\n1\n```\n\nGood.\nStill good.\n\n* A\n  reply came.\n"
    assert [fault.line for fault in faults(text)] == [3, 11]


def test_a_fault_of_a_docstring_has_the_line_of_the_module() -> None:
    source = '"""First.\n\nWhat came.\n"""\n\n\ndef f():\n    """Return it.\n\n    Raises:\n        What: such.\n    """\n'
    assert [(fault.line, fault.sentence) for fault in docstring_faults(source)] == [
        (3, "What came."),
        (3, "What came."),
        (11, "What: such."),
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise ValueError('the answer came too late')", ["the answer came too late"]),
        ("raise ValueError('no answer came')", []),
        ("log.info('while %s came late: %s', a, b)", ["while %s came late: %s"]),
        ("Option(help='What the command is to do.')", ["What the command is to do."]),
        ("why = 'there is no ' 'such stream here'", ["there is no such stream here"]),
        ("why = f'stream {name} has {most} such subjects'", ["stream X has X such subjects"]),
        ("why = f'{f(\"there is no such stream\")} now'", ["there is no such stream"]),
        (f"why = '{LONG}; {LONG}'", []),
        (f"why = '{LONG}; it is {LONG}'", [f"it is {LONG}"]),
        ("script = 'what came is there\\nand so many more'", []),
        ("class A:\n    name: int\n    'It came as many such did.'", []),
        ("def f():\n    'Return what came from so many.'", []),
        ("a = 12345", []),
    ],
)
def test_a_text_of_the_code_breaks_a_rule_or_none(code: str, found: list[str]) -> None:
    assert [fault.sentence for fault in text_faults(code)] == found


def test_a_fault_of_a_text_has_the_line_of_the_module() -> None:
    source = "a = 1\nraise ValueError(\n    'no such stream; set option stream to another'\n)\n"
    assert [(fault.line, fault.sentence) for fault in text_faults(source)] == [
        (3, "no such stream")
    ]
