"""Plans as YAML."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from undaunted.chaos.generator import Wanted, settle
from undaunted.chaos.kinds import KINDS
from undaunted.chaos.plan import Plan, PlanError, Planned
from undaunted.chaos.plan_file import parse_plan, read_plan, write_plan

if TYPE_CHECKING:
    from pathlib import Path


def with_a_way(fault: Planned) -> Planned:
    hows = KINDS[fault.kind].hows
    return replace(fault, how=hows[fault.iteration % len(hows)]) if hows else fault


FAULTS = st.builds(
    Planned,
    id=st.from_regex(r"[A-Za-z0-9._-]{1,24}", fullmatch=True),
    kind=st.sampled_from(sorted(KINDS)),
    rank=st.integers(0, 7),
    iteration=st.integers(0, 99),
    run=st.integers(1, 9),
    seconds=st.none() | st.floats(0.001, 1e6),
).map(with_a_way)


@given(st.lists(FAULTS, unique_by=lambda f: f.id, min_size=1, max_size=8), st.integers(0, 10**9))
def test_a_plan_is_read_as_it_was_written(faults: list[Planned], seed: int) -> None:
    ordered = sorted(faults, key=lambda fault: (fault.run, fault.iteration))
    plan = Plan(seed, tuple(ordered))

    draft = parse_plan(write_plan(plan))

    assert draft.seed == seed
    assert settle(draft.faults, seed=seed, world_size=8, first=0, last=99) == plan


def test_what_is_left_open_is_random_and_each_fault_has_a_run_of_its_own() -> None:
    draft = parse_plan("faults:\n- kind: hang\n- {kind: kill, rank: random, iteration: 5}\n")

    assert draft.seed is None
    assert draft.faults == (
        Wanted("hang-1", "hang", 1, where="the plan, fault 1: "),
        Wanted("kill-2", "kill", 2, iteration=5, where="the plan, fault 2: "),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p is empty; write `faults:`"),
        ("# nothing", "p is empty"),
        ("- kind: kill", "p: Expected `object`, got `array`"),
        ("seed: 1", "p: .* missing required field `faults`"),
        ("faults:", "p: .*null.* at `[$].faults`"),
        ("faults: 7", "p: .* at `[$].faults`"),
        ("faults: []", "p: .* at `[$].faults`"),
        ("faults: [7]", r"p: .* at `[$].faults\[0\]`|p: .* at `[$].faults\[...\]`"),
        ("faults: [{rank: 1}]", r"missing required field `kind` - at `[$].faults\[0\]`"),
        ("faults:\n- {kind: kil}", r"fault 1: 'kil' is not a kind of fault; .*did you mean 'kill'"),
        ("faults:\n- {kind: [kill]}", r"at `[$].faults\[0\].kind`"),
        ("faults:\n- {kind: kill, rnk: 1}", "unknown field `rnk`"),
        ("faults:\n- {kind: kill, rank: one}", r"at `[$].faults\[0\].rank`"),
        ("faults:\n- {kind: kill, rank: -1}", r"at `[$].faults\[0\].rank`"),
        ("faults:\n- {kind: kill, rank: true}", r"at `[$].faults\[0\].rank`"),
        ("faults:\n- {kind: kill, run: 0}", r">= 1 - at `[$].faults\[0\].run`"),
        ("faults:\n- {kind: slow, seconds: .inf}", r"at `[$].faults\[0\].seconds`"),
        ("faults:\n- {kind: slow, seconds: .nan}", r"at `[$].faults\[0\].seconds`"),
        ("faults:\n- {kind: slow, seconds: 0}", r"> 0.* - at `[$].faults\[0\].seconds`"),
        ("faults:\n- {kind: bad-checkpoint, how: x}", "fault 1: 'x' is no way .*; known: replica"),
        ("faults:\n- {kind: bad-checkpoint, how: 3}", r"at `[$].faults\[0\].how`"),
        ("faults:\n- {kind: kill, how: nan}", "'nan' is no way .* a kill has no choice"),
        ("faults:\n- {kind: kill, id: 'a b'}", r"at `[$].faults\[0\].id`"),
        ("faults:\n- {kind: kill, id: x}\n- {kind: kill, id: x}", "fault 2: two faults .* 'x'"),
        ("faults:\n- {kind: kill, run: 1}\n- {kind: kill}", "fault 2: it has no `run`"),
        ("seed: x\nfaults: [{kind: kill}]", "at `[$].seed`"),
        ("faults: [", "p is not YAML: "),
        ("a: 1\n---\nb: 2", "p is not YAML: "),
        ("faults: !!python/object:os.system [x]", "p is not YAML"),
        ("seed: 2001-99-99\nfaults: [{kind: kill}]", "month must be|at `[$].seed`"),
        ("[" * 20000, "p cannot be read|p is not YAML"),
        ("\x1b[2J: 1", "p is not YAML"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_place_and_what_is_allowed(
    text: str, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        parse_plan(text, "p")

    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    with pytest.raises(PlanError, match=r"plan\.yaml cannot be read: No such file"):
        read_plan(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match=r"plan\.yaml is not text in UTF-8"):
        read_plan(path)
    path.write_bytes(b" " * 2_000_000)
    with pytest.raises(PlanError, match="larger than 1 MiB"):
        read_plan(path)
    path.write_text("faults:\n- {kind: kil}\n")
    with pytest.raises(PlanError, match=r"plan\.yaml, fault 1: 'kil'"):
        read_plan(path)


@given(st.text(max_size=60))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    with contextlib.suppress(PlanError):
        parse_plan(text)
