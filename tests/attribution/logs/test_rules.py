from __future__ import annotations

import re
import time
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from undaunted.attribution.findings import CAUSES
from undaunted.attribution.logs.prefixes import read_prefix
from undaunted.attribution.logs.rules import (
    END,
    EXIT,
    FILE,
    Meaning,
    Rule,
    Rules,
    Step,
    _ranks,
    _Row,
    read_rules,
    rules,
    template,
)

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:
    import sre_parse as parser

TABLE: dict[str, Any] = msgspec.yaml.decode(FILE.read_text())
RULES = [Rule(msgspec.convert(row, _Row)) for row in TABLE["rules"]]
EXPRESSIONS = [
    TABLE["harmless"],
    TABLE["not_steps"],
    *(TABLE["ends"][key] for key in ("line", "unless") if key in TABLE["ends"]),
    *TABLE["steps"]["lines"],
    *(row[key] for row in TABLE["rules"] for key in ("line", "unless") if key in row),
]
PROGRESS: dict[str, Any] = msgspec.yaml.decode(
    Path(__file__).with_name("progress.yaml").read_text()
)
MESSAGES = {message["id"]: message for row in TABLE["rules"] for message in row.get("messages", ())}
MESSAGE_LINES: dict[str, list[str]] = msgspec.yaml.decode(
    Path(__file__).with_name("messages.yaml").read_text()
)
LINES: dict[str, list[str]] = msgspec.yaml.decode(
    Path(__file__).with_name("lines.yaml").read_text()
)


def meaning_of(line: str, *, ends_traceback: bool = False) -> Meaning | None:
    known: Rules = rules()
    numbers = known.search([template(line.encode())])
    if not numbers:
        return None
    return known.meaning(line, 0, *numbers.values(), ends_traceback=ends_traceback)


def cause_of(line: str) -> str:
    meaning = meaning_of(line)
    return meaning.cause if meaning else "harmless"


def message_in(line: str) -> str:
    meaning = meaning_of(line, ends_traceback=True)
    return meaning.message.id if meaning and meaning.message else ""


def step_of(line: str) -> Step | None:
    known = rules()
    for numbers in known.search([template(line.encode())]).values():
        fit = known.fit(line, read_prefix(line).begins, numbers)
        if fit is not None and fit.step >= 0:
            return known.step(line, fit.step)
    return None


def is_end(line: str) -> bool:
    known = rules()
    (numbers,) = known.search([template(line.encode())]).values() or [()]
    fit = known.fit(line, read_prefix(line).begins, numbers)
    return fit is not None and END in fit.numbers and known.is_end(line)


@pytest.mark.parametrize(("line", "step", "epoch"), PROGRESS["steps"])
def test_progress(line: str, step: float | None, epoch: float | None) -> None:
    found = step_of(line)
    assert found is not None
    assert (found.number, found.epoch) == (step, epoch)


@pytest.mark.parametrize("line", PROGRESS["no steps"])
def test_no_progress(line: str) -> None:
    assert step_of(line) is None


def test_ends() -> None:
    assert [line for line in PROGRESS["ends"] if not is_end(line)] == []
    assert [line for line in PROGRESS["no ends"] if is_end(line)] == []


@pytest.mark.parametrize("cause", LINES)
def test_what_lines_mean(cause: str) -> None:
    meant = {line: cause_of(line) for line in LINES[cause]}
    assert meant == dict.fromkeys(LINES[cause], cause)


def test_lines_name_ranks_and_nodes() -> None:
    line = "srun: error: node-12: tasks 3,8-10: Out Of Memory"
    (numbers,) = rules().search([template(line.encode())]).values()
    meaning = rules().meaning(line, 0, numbers, ends_traceback=False)
    assert meaning is not None
    assert (meaning.ranks, meaning.nodes) == ((3, 8, 9, 10), ("node-12",))


def test_no_rule_looks_at_every_line_of_a_step() -> None:
    line = (
        "[2026-11-22 10:00:00] iteration 100/ 500000 | elapsed time per iteration (ms): 811.1 | "
        "lm loss: 2.1E+00 | loss scale: 1.0 | grad norm: 0.4 | number of skipped iterations: 0 | "
        "number of nan iterations: 0 |"
    )
    (numbers,) = rules().search([template(line.encode())]).values()
    fit = rules().fit(line, 0, numbers, whole=True)
    assert fit is not None
    assert not fit.numbers


def test_all_causes_that_logs_can_show_have_a_rule() -> None:
    shown = {row["cause"] for row in TABLE["rules"]}
    of_others = {"device_lag", "no_dump", "unexplained"}
    of_others |= {"output_unread", "unequal_work", "missing_file"}
    assert shown - {EXIT} == set(CAUSES) - of_others


@pytest.mark.parametrize("number", range(len(TABLE["rules"])))
def test_each_rule_has_a_line(number: int) -> None:
    """Of `lines.yaml` or `messages.yaml`: one that rules before it leave to it."""
    row = TABLE["rules"][number]
    lines = [*LINES.get(row["cause"], ()), *chain.from_iterable(MESSAGE_LINES.values())]
    if row["cause"] == EXIT:
        lines += [*chain.from_iterable(LINES.values())]
    assert any(first_rule(line) == number for line in lines), row


def first_rule(line: str) -> int | None:
    """Return the number of the first rule that fits a line; an Xid has none, its number decides."""
    if re.search(r"\bXid\b", line):
        return None
    (numbers,) = rules().search([template(line.encode())]).values() or [()]
    return next((each for each in numbers if each >= 0 and RULES[each].meaning(line, 0)), None)


@pytest.mark.parametrize("key", MESSAGE_LINES)
def test_known_messages(key: str) -> None:
    lines = MESSAGE_LINES[key]
    assert {line: message_in(line) for line in lines} == dict.fromkeys(lines, key)


XIDS = [(xid, key) for key, message in MESSAGES.items() for xid in message.get("xids", ())]


@pytest.mark.parametrize(("xid", "key"), XIDS)
def test_events_of_the_driver(xid: int, key: str) -> None:
    line = f"[ 12.3] NVRM: Xid (PCI:0000:05:00): {xid}, pid=1234, name=python3, Ch 00000008"
    assert message_in(line) == key


@pytest.mark.parametrize("xid", [9, 43, 44, 45, 92, 121, 154, 156, 12345])
def test_events_that_are_no_causes(xid: int) -> None:
    assert meaning_of(f"NVRM: Xid (PCI:0000:05:00): {xid}, pid=1234, name=python3") is None


def test_each_text_of_a_message_has_a_line() -> None:
    texts = {(key, text) for key in MESSAGES for text in MESSAGES[key].get("texts", ())}
    there = {
        (key, text)
        for key, text in texts
        if any(text.lower() in line.lower() for line in MESSAGE_LINES[key])
    }
    assert there == texts
    assert len(dict(XIDS)) == len(XIDS)
    assert all(re.fullmatch(r"[MX]\d\d", key) for key in MESSAGES)


def test_lines_without_a_known_message() -> None:
    assert message_in("ValueError: bad batch 17") == ""
    assert message_in("torch.OutOfMemoryError: HIP out of memory") == ""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_expression_can_take_exponential_time(expression: str) -> None:
    assert not nested(parser.parse(expression, re.IGNORECASE), repeated=False)


def nested(parsed: Any, *, repeated: bool) -> bool:
    """Whether what has no fixed length is repeated inside of what is repeated without a bound."""
    for kind, value in parsed:
        name = str(kind)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            _, most, inside = value
            if repeated and most > 1:
                return True
            if nested(inside, repeated=repeated or most > 20):
                return True
        elif (
            (name == "SUBPATTERN" and nested(value[-1], repeated=repeated))
            or (name == "BRANCH" and any(nested(one, repeated=repeated) for one in value[1]))
            or (name in {"ASSERT", "ASSERT_NOT"} and nested(value[1], repeated=repeated))
        ):
            return True
    return False


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_expression_looks_through_words_of_any_length(expression: str) -> None:
    """From each place where one begins: of a line that repeats a word, that is its square."""
    assert not unbounded(parser.parse(expression, re.IGNORECASE))


def unbounded(parsed: Any) -> bool:
    """Whether anything but digits, spaces and what stands in brackets is repeated without a bound.

    A run of digits or spaces begins at one place, behind something else.
    """
    for kind, value in parsed:
        name = str(kind)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            _, most, inside = value
            if most == parser.MAXREPEAT and not set(map(str, members(inside))) <= DIGITS_AND_SPACES:
                return True
            if unbounded(inside):
                return True
        elif (
            (name == "SUBPATTERN" and unbounded(value[-1]))
            or (name == "BRANCH" and any(map(unbounded, value[1])))
            or (name in {"ASSERT", "ASSERT_NOT"} and unbounded(value[1]))
        ):
            return True
    return False


DIGITS_AND_SPACES = {"CATEGORY_DIGIT", "32", "44"}


def members(parsed: Any) -> list[Any]:
    """What a repeated character may be."""
    found = []
    for kind, value in parsed:
        found += [one for _, one in value] if str(kind) == "IN" else [value]
    return found


@pytest.mark.parametrize("row", TABLE["rules"], ids=lambda row: f"{row['cause']}: {row['any'][0]}")
def test_no_line_takes_long(row: dict[str, Any]) -> None:
    """Lines of 8 KiB that say nothing but a word of a rule: 50 ms of the CPU."""
    rule = Rule(msgspec.convert(row, _Row))
    texts = [*row["any"], *WORDS.findall(row.get("line", "") + row.get("unless", ""))]
    for text in dict.fromkeys(texts):
        for line in (text * 8192, f"{row['any'][0]} " + f"{text} " * 8192):
            took = []
            for _ in range(5):  # whatever else the machine does
                began = time.thread_time()
                rule.meaning(line[:8192], 0)
                took.append(time.thread_time() - began)
                if took[-1] < LONG_S:
                    break
            assert min(took) < LONG_S, text


WORDS = re.compile(r"(?<![\\(?<])\b[a-z]{4,}\b")
LONG_S = 0.05


@pytest.mark.parametrize("expression", ["(a+)+", "(a|b*)*c", "(?:x{1,30}y?){1,50}"])
def test_the_check_knows_such_expressions(expression: str) -> None:
    assert nested(parser.parse(expression), repeated=False)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cause: gpu_lost", "cause: gpu_stolen", "gpu_stolen"),
        ('"fallen off the bus"', '"79"', "79"),
        ("confidence: 0.95", "confidense: 0.95", "confidense"),
        ("harmless: '", "harmless: '(", "rules.yaml"),
    ],
)
def test_a_bad_table_is_refused_with_the_reason(old: str, new: str, told: str) -> None:
    text = FILE.read_text().replace(old, new, 1)
    with pytest.raises(ValueError, match=told):
        read_rules(text)


def test_numbers_that_are_too_long_mean_nothing() -> None:
    assert _ranks(f"3,{'9' * 5000},5-{'9' * 30}") == [3]
    kinds = range(len(rules()._steps))
    steps = [rules().step(f"step {'9' * 400} loss=1.0", kind) for kind in kinds]
    assert any(steps)
    assert {step.number for step in steps if step is not None} == {None}
