"""What is kept of a state machine, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from undaunted.base.recent import MOST, MOST_COMMANDS, Recent, all_lines, plain


@dataclass(frozen=True)
class Happened:
    who: str
    ranks: tuple[int, ...] = ()


class Answered(msgspec.Struct, tag=True):
    data: bytes


def read(recent: Recent) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in recent.lines("machine", 1 << 24)]


def test_events_and_commands_are_written_with_the_names_of_their_classes() -> None:
    recent = Recent({"size": 3, "judge": read})
    recent.note(5, Happened("a", (1,)), [Answered(b"x")])
    recent.note(6, Happened("b"), [])
    head, first, second = read(recent)
    assert head == {
        "machine": "machine",
        "seen": 2,
        "kept": 2,
        "made": {"size": 3, "judge": "read"},
    }
    assert first == {
        "machine": "machine",
        "t": 5,
        "event": {"type": "Happened", "who": "a", "ranks": [1]},
        "commands": [{"type": "Answered", "data": "eA=="}],
        "left_out": 0,
    }
    assert second["commands"] == []


def test_the_last_ones_are_kept() -> None:
    recent = Recent({})
    for number in range(MOST + 7):
        recent.note(number, Happened("a"), [])
    head, first, *_ = read(recent)
    assert (head["seen"], head["kept"], first["t"]) == (MOST + 7, MOST, 7)


def test_a_list_of_commands_that_changes_later_is_kept_as_it_was() -> None:
    recent, commands = Recent({}), [Happened("a")]
    recent.note(1, Happened("x"), commands)
    copy = recent.copy()
    commands.append(Happened("b"))
    recent.note(2, Happened("y"), commands)
    assert len(read(copy)) == 2
    assert len(read(copy)[1]["commands"]) == 1  # type: ignore[arg-type]


def test_a_message_without_fields() -> None:
    class Nothing(msgspec.Struct):
        pass

    assert plain(Nothing()) == {"type": "Nothing"}


def test_text_is_bounded() -> None:
    recent = Recent({})
    many = [Happened("x" * 1000)] * (2 * MOST_COMMANDS // 1000)
    recent.note(1, Happened("a"), [])
    recent.note(2, Happened("b"), many)
    _, _, second = read(recent)
    assert 0 < len(second["commands"]) < len(many)  # type: ignore[arg-type]
    assert second["left_out"] == len(many) - len(second["commands"])  # type: ignore[arg-type]
    room = len(recent.lines("machine", 1 << 24)[2]) + 10
    head, last = map(msgspec.json.decode, recent.lines("machine", room))
    assert (head["seen"], head["kept"], last["t"]) == (2, 1, 2)


def test_several_machines_are_one_list_and_share_what_it_may_have() -> None:
    machines = {"node": Recent({}), "policy": Recent({})}
    for one in machines.values():
        one.note(1, Happened("a"), [])
    lines = msgspec.json.decode(all_lines(machines, 10_000))
    assert [line["machine"] for line in lines] == ["node", "node", "policy", "policy"]
    assert len(msgspec.json.decode(all_lines(machines, 2))) == 2, "the events are left out"
