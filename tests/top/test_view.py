"""What stands on the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.top.pages import row
from undaunted.base.console import plain
from undaunted.top.model import Job
from undaunted.top.notes import Note
from undaunted.top.view import SORTS, Choice, screen, snapshot


def make_job(ranks: int = 4, notes: int = 5, **fields: object) -> Job:
    return Job(
        run_id="demo", run_dir="/runs/demo", argv=["train.py", "--fast"], wall=1.0,
        state="round 1 is running", style="green", round=1, round_s=5.0, running_s=75.0,
        restarts=1, max_restarts=3, goodput=0.874, world_size=ranks, nodes=["n0"], iteration=10,
        ranks=[row(rank) for rank in range(ranks)],
        notes=[Note(wall=float(number), text=f"note {number}") for number in range(notes)],
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def shown(job: Job, width: int = 120, height: int = 30, choice: Choice | None = None) -> list[str]:
    lines, _ = screen(job, choice or Choice(), width, height)
    return plain(lines).splitlines()


def test_a_screen() -> None:
    lines = shown(make_job())
    assert lines[0].startswith("demo: round 1 is running   ")
    assert lines[1] == (
        "restarts 1 of 3   goodput 87 %   iteration 10   4 ranks   time 1 min 15 s   "
        "this round 5.0 s"
    )
    assert lines[2] == "train.py --fast"
    assert [line.split()[0] for line in lines[4:9]] == ["rank", "0", "1", "2", "3"]
    assert lines[10].endswith("note 0")
    assert lines[-1].startswith("q quit   p pause   s sort: automatic")
    assert len(lines) == 30


def test_the_ranks_to_look_at_come_first_where_not_all_fit() -> None:
    job = make_job(ranks=1000)
    job.ranks[700].suspect = True
    job.ranks[700].note = "suspect: oh"
    job.ranks[800].slow, job.ranks[800].note = 0.5, "slow: oh"
    job.ranks[900].step_s = 3.0
    lines = shown(job)
    assert [line.split()[0] for line in lines[5:9]] == ["700", "800", "900", "0"]
    (more,) = (line for line in lines if "not shown" in line)
    assert more == "983 of 1000 ranks are not shown"
    assert sum("note" in line for line in lines[-7:]) == 5


def test_scrolling_stops_at_the_end() -> None:
    job, choice = make_job(ranks=100), Choice(sort="rank", offset=10)
    lines = shown(job, choice=choice)
    assert lines[5].split()[0] == "10"
    assert "83 of 100 ranks are not shown, 10 of them above" in lines
    choice.offset = 1 << 40
    assert shown(job, choice=choice)[21].split()[0] == "99"
    assert choice.offset == 83


@pytest.mark.parametrize(
    ("sort", "first"), [("rank", "0"), ("iteration", "3"), ("step", "2"), ("silent", "1")]
)
def test_sorting(sort: str, first: str) -> None:
    job = make_job()
    job.ranks[3].iteration = 1
    job.ranks[2].step_s = 9.0
    job.ranks[1].silent_s = 9.0
    assert shown(job, choice=Choice(sort=sort))[5].split()[0] == first


def test_a_narrow_terminal_tells_notes_below_the_table() -> None:
    job = make_job()
    job.ranks[1].suspect, job.ranks[1].note = True, "suspect: still in 'data' for 9.0 s"
    lines = shown(job, width=50)
    assert "rank 1: suspect: still in 'data' for 9.0 s" in lines
    assert lines[1] == "restarts 1 of 3   goodput 87 %   iteration 10"


def test_a_note_that_is_cut_in_the_table_is_told_below_it() -> None:
    job = make_job()
    job.ranks[1].suspect, job.ranks[1].note = True, "suspect: " + "a long story " * 5
    for width in (95, 160):
        assert "\n".join(shown(job, width=width)).count("a long story " * 4 + "a long story") == 1


def test_a_tiny_terminal_has_room_for_the_suspect() -> None:
    job = make_job(ranks=4, notes=9)
    job.ranks[1].suspect, job.ranks[1].note = True, "suspect: oh"
    lines = shown(job, width=40, height=12)
    assert "rank 1: suspect: oh" in lines
    assert [line.split()[0] for line in lines[5:8]] == ["rank", "1", "0"]


def test_pause_and_loading_are_told() -> None:
    lines = shown(make_job(), choice=Choice(paused=True, loading=0.4))
    assert " paused at " in lines[0]
    assert lines[1].startswith("reading the journal: 40 %")
    assert "p go on" in lines[-1]


def test_problems_are_told() -> None:
    assert "no pages" in shown(make_job(problems=["no pages"]))


def test_several_nodes_are_told_apart() -> None:
    job = make_job()
    job.nodes.append("n1")
    job.world_size = 8
    job.notes = [Note(wall=1.0, node="n1", text="oh")]
    lines = shown(job)
    assert "4 of 8 ranks on 2 nodes" in lines[1]
    assert any(line.endswith(" n1: oh") for line in lines)


def test_a_snapshot_has_all_ranks_and_nothing_is_cut() -> None:
    job = make_job(ranks=300, problems=["x" * 300])
    text = plain(snapshot(job))
    assert "x" * 300 in text
    assert len(text.splitlines()) == 3 + 1 + 2 + 300 + 1 + 5
    assert "not shown" not in text


def test_nothing_known() -> None:
    lines = shown(Job(run_dir="/runs/demo", state="oh"))
    assert lines[0].startswith("/runs/demo: oh")
    assert plain(snapshot(Job(run_dir="/runs/demo", state="oh"))).startswith("/runs/demo: oh")


@given(
    st.integers(20, 160), st.integers(4, 50), st.integers(0, 80), st.integers(0, 40),
    st.sampled_from(list(SORTS)), st.integers(0, 90), st.booleans(),
)  # fmt: skip
def test_any_size(
    width: int, height: int, ranks: int, notes: int, sort: str, offset: int, several: bool
) -> None:
    job = make_job(ranks, notes, problems=["a problem " * 10] * 5)
    if several:
        job.nodes.append("n1")
    if ranks:
        job.ranks[-1].suspect, job.ranks[-1].note = True, "suspect: " + "oh" * 50
    lines = shown(job, width, height, Choice(sort=sort, offset=offset))
    assert len(lines) == height
    assert max(map(len, lines)) <= width
