"""The table of ranks."""

from __future__ import annotations

from tests.top.pages import row
from undaunted.base.console import plain
from undaunted.top.table import room_for_notes, style_of, table

RANKS = [
    row(0, 0.5, limit_s=60.0, mean_s=0.1),
    row(1, 12.0, section="data", section_s=3.0, note="suspect: oh", suspect=True, failures=2),
]


def test_all_columns() -> None:
    titles, first, second = plain(table(RANKS, None, several_nodes=True)).splitlines()
    assert titles.split() == [
        "rank", "node", "phase", "section", "iteration", "step", "mean", "silent", "failed",
        "note",
    ]  # fmt: skip
    assert first.split("  ")[-1].strip() == "-"
    assert "500 ms of 1 min" in first
    assert "data 3.0 s" in second
    assert second.endswith("suspect: oh")


def test_columns_give_way_to_notes_and_then_to_each_other() -> None:
    def titles(width: int) -> list[str]:
        return plain(table(RANKS, width, several_nodes=False)).split("\n")[0].split()

    assert titles(200)[-1] == "note"
    assert "mean" not in titles(100)
    assert titles(100)[-1] == "note"
    assert "section" in titles(70)
    assert titles(30) == ["rank", "phase", "iteration"]
    assert titles(10) == ["rank", "ite~"]
    assert room_for_notes(RANKS, 50, several_nodes=False) == 0
    line = plain(table(RANKS, 200, several_nodes=False)[:1])
    assert room_for_notes(RANKS, 200, several_nodes=False) == 200 - line.index("note")


def test_limits_are_short() -> None:
    limits = [8.0, 2700.0, 90.0, 36_000.0, 1.25]
    lines = plain(
        table([row(0, 0.5, limit_s=limit) for limit in limits], None, several_nodes=False)
    )
    for text in ("of 8 s", "of 45 min", "of 1.5 min", "of 10 h", "of 1.25 s"):
        assert text in lines


def test_no_line_is_too_wide() -> None:
    for width in range(5, 200):
        lines = plain(table(RANKS, width, several_nodes=True)).splitlines()
        assert max(map(len, lines)) <= width


def test_styles() -> None:
    assert style_of(RANKS[1]) == "red"
    assert style_of(row(0, slow=0.5)) == "yellow"
    assert style_of(row(0)) == ""
    assert style_of(row(0, live=False)) == style_of(row(0, state="Z")) == "dim"


def test_names_of_the_program_cannot_act_on_the_terminal() -> None:
    lines = table([row(0, section="a\x1b[2J\nb", node="n\x07", note="\x1b]0;x")], None,
                  several_nodes=True)  # fmt: skip
    assert "\x1b" not in plain(lines)
    assert "\x07" not in plain(lines)
