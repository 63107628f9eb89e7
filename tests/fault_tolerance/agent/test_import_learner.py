"""What the agent makes of what ranks have imported."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from undaunted.fault_tolerance.agent import import_learner as module
from undaunted.fault_tolerance.agent.import_learner import (
    ImportLearner,
    disagreement,
    rank_variables,
)
from undaunted.fault_tolerance.worker.import_notes import RankImports
from undaunted.fault_tolerance.worker.messages import Group, Learned, RankValue, Ready
from undaunted.fault_tolerance.worker.spawner import Spawned

TOLD = RankImports([Group({}, ["pone", "pone.part", "ptwo"])], {"pone": (1, 2), "ptwo": (3, 4)})
RANK_VALUES = [RankValue("pone", "X", "RANK", is_number=True)]


def test_variables_of_a_rank_have_different_numbers() -> None:
    shared = {"PATH": "/bin", "OMP": "1", "RANK": "9"}
    own = {**shared, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0", "MASTER_ADDR": "host"}
    own |= {"UNDAUNTED_PAGE": "v1:3", "GONE": "x"}
    found, of_first = rank_variables({**shared, "GONE": "y"}, own)
    assert (of_first["RANK"], of_first["LOCAL_RANK"], of_first["WORLD_SIZE"]) == ("0", "0", "2")
    assert found.keys() == of_first.keys()
    assert found.pop("MASTER_ADDR") == "host"
    assert found.pop("GONE") == "x"
    assert found.pop("RANK") == "1"
    assert sorted(found) == ["LOCAL_RANK", "WORLD_SIZE"]
    assert len({"1", *found.values()}) == 3
    blas = {"OPENBLAS_NUM_THREADS": "4"}
    assert rank_variables(blas, blas) == (blas, blas), "the template has another value"


def test_what_ranks_import_after_other_changes_of_variables() -> None:
    one = RankImports([Group({}, ["pone"]), Group({"A": "1", "B": "2"}, ["ptwo", "pthree.part"])])
    other = RankImports(
        [Group({}, ["pone", "pfour"]), Group({"A": "0", "B": "2"}, ["pthree.part"])]
    )
    assert disagreement(one, one) == {}
    left = disagreement(one, other)
    assert list(left) == ["pthree"], "the other one has not imported ptwo"
    assert "A" in left["pthree"]


class Job:
    """A learner among fakes. ``answers`` are the spawner's, one after the other."""

    def __init__(self, tmp_path: Any, answers: list[Ready | None], learn: str = "on") -> None:
        self.answers = answers
        self.has_learned = False
        self.asked: list[Learned] = []
        self.events: list[Any] = []
        self.told: dict[int, bytes | None] = {}
        self.iterations = [(0, 1), (0, 0)]
        config: Any = SimpleNamespace(
            run_dir=str(tmp_path), node="n0", learn_imports=learn, python=["python"]
        )
        workers: Any = SimpleNamespace(
            all=[SimpleNamespace(pid=70 + rank, local_rank=rank) for rank in range(2)]
        )
        area: Any = SimpleNamespace(snapshot=self._page)
        journal: Any = SimpleNamespace(record=self.events.append, write_text=self._write)
        own: Any = self
        self.learner = ImportLearner(config, {}, area, own, workers, own, journal)
        spec = SimpleNamespace(env={"RANK": "0"})
        self.round: Any = SimpleNamespace(specs=[spec], stopping=False)
        self.busy = 0  # times that somebody else asks

    def _page(self, rank: int) -> Any:
        first, now = self.iterations[rank]
        return SimpleNamespace(first_iteration=first, iteration=now)

    def _write(self, path: str, text: str) -> None:
        with open(path, "w") as file:  # noqa: PTH123
            file.write(text)

    async def ask_idly(self, pids: Any, what: bytes) -> dict[int, bytes | None]:
        assert what == module.IMPORTS
        if self.busy:
            self.busy -= 1
            return {}
        return {pid: self.told.get(pid) for pid in pids}

    async def learn(self, learned: Learned) -> Ready | None:
        self.asked.append(learned)
        ready = self.answers.pop(0)
        self.has_learned = ready is not None and ready.learned > 0
        return ready

    def tell(self, *told: RankImports | None) -> None:
        for pid, each in zip((70, 71), told, strict=True):
            packed = zlib.compress(msgspec.msgpack.encode(each)) if each is not None else None
            self.told[pid] = packed

    def run(self) -> None:
        async def play() -> None:
            self.learner.ranks_run(self.round, Spawned([], "warm"))
            if self.learner._task is not None:
                await asyncio.wait_for(self.learner._task, 20)
            self.learner.close()

        asyncio.run(play())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOKS_S", (0.0, 0.0, 0.0))


def ready(**about: Any) -> Ready:
    return Ready(modules=[], import_ns=5, **about)


def test_packages_are_left_until_the_template_can_fork(tmp_path: Any) -> None:
    left = {"ptwo": "it starts a thread"}
    job = Job(tmp_path, [ready(left=left), ready(learned=2, rank_values=RANK_VALUES)])
    job.tell(TOLD, TOLD)
    job.run()
    assert [each.left for each in job.asked] == [[], ["ptwo"]]
    assert [each.checked for each in job.asked] == [False, False]
    assert job.asked[0].environments == ({"RANK": "1"}, {"RANK": "0"})
    (event,) = job.events
    assert (event.modules, event.packages, event.problem) == (2, ["pone"], "")
    assert event.left == left
    job.run()
    assert len(job.asked) == 2, "it has learned"
    job.has_learned = False
    job.answers = [ready(learned=2, rank_values=RANK_VALUES)]
    job.run()
    assert job.asked[2].checked, "the template was lost"

    # The next launch knows, as long as modules and versions are the same.
    again = Job(tmp_path, [ready(learned=2, rank_values=RANK_VALUES)])
    again.tell(TOLD, TOLD)
    again.run()
    (learned,) = again.asked
    assert (learned.left, learned.checked, learned.rank_values) == (["ptwo"], True, RANK_VALUES)
    for change in (
        {"packages": {**TOLD.packages, "pone": (9, 2)}},
        {"python": "3.99"},
        {"base": [(9, 2)]},
    ):
        newer = Job(tmp_path, [ready(learned=3)])
        other = msgspec.structs.replace(TOLD, **change)
        newer.tell(other, other)
        newer.run()
        assert (newer.asked[0].left, newer.asked[0].checked) == ([], False)


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([None], 1),
        ([ready(problem="not compared")], 1),
        ([ready(left={f"p{n}": "no"}) for n in range(20)], module._MOST_TEMPLATES),
    ],
)
def test_it_comes_to_nothing(tmp_path: Any, answers: list[Ready | None], times: int) -> None:
    job = Job(tmp_path, answers)
    job.tell(TOLD, TOLD)
    job.run()
    job.run()
    assert len(job.asked) == times
    assert (job.events[0].modules, bool(job.events[0].problem)) == (0, True)
    assert not list(tmp_path.iterdir())


def test_ranks_that_do_not_answer_are_asked_in_the_next_round(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3)])
    job.tell(TOLD, None)
    job.run()
    assert job.asked == []
    job.tell(TOLD, TOLD)
    job.run()
    assert len(job.asked) == 1


def test_somebody_else_asks_at_that_moment(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3)])
    job.tell(TOLD, TOLD)
    job.busy = 2
    job.run()
    assert len(job.asked) == 1


def test_a_round_that_is_over_is_not_asked(tmp_path: Any) -> None:
    for about in ("stopping", "workers"):
        job = Job(tmp_path, [])
        job.tell(TOLD, TOLD)
        if about == "stopping":
            job.round.stopping = True
        else:
            job.learner._workers.all.clear()
        job.run()
        assert job.asked == []


def test_there_is_nothing_to_learn(tmp_path: Any) -> None:
    job = Job(tmp_path, [])
    job.tell(RankImports([]), RankImports([]))
    job.run()
    other = RankImports([Group({"A": "1"}, TOLD.groups[0].modules)], TOLD.packages)
    job.tell(TOLD, other)
    job.run()
    assert (job.asked, job.events) == ([], [])


def test_only_values_of_what_was_told_are_set(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3, rank_values=RANK_VALUES)])
    job.tell(TOLD, TOLD)
    job.run()
    path = tmp_path / "learned-imports-n0.json"
    path.write_text(path.read_text().replace('"pone","name":"X"', '"os","name":"X"'))
    again = Job(tmp_path, [ready(learned=3)])
    again.tell(TOLD, TOLD)
    again.run()
    assert (again.asked[0].checked, again.asked[0].rank_values) == (True, [])


@pytest.mark.parametrize(("used_s", "times"), [(9.0, 0), (0.0, 1)])
def test_imports_are_left_to_the_ranks_where_no_cpu_time_is_left(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, used_s: float, times: int
) -> None:
    """Ranks of a pod with a limit have the same CPU time as we: a priority does not help them."""
    seconds = itertools.count(step=used_s)
    monkeypatch.setattr(module, "cpu_use", lambda: [(4, next(seconds))])
    job = Job(tmp_path, [ready(learned=1)])
    job.tell(TOLD, TOLD)
    job.run()
    assert len(job.asked) == times


def test_it_is_turned_off(tmp_path: Any) -> None:
    job = Job(tmp_path, [], learn="off")
    job.tell(TOLD, TOLD)
    job.run()
    assert (job.asked, job.events) == ([], [])


def test_ranks_are_asked_when_one_is_in_its_second_step(tmp_path: Any) -> None:
    job = Job(tmp_path, [])
    for iterations, stepping in ((((0, 0), (0, 0)), False), (((3, 4), (3, 3)), True)):
        job.iterations = list(iterations)
        assert job.learner._step() is stepping


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 5}', json.dumps({"key": "other"})])
def test_a_file_that_is_of_no_use(tmp_path: Any, content: str) -> None:
    (tmp_path / "learned-imports-n0.json").write_text(content)
    job = Job(tmp_path, [ready(learned=3)])
    job.tell(TOLD, TOLD)
    job.run()
    assert (job.asked[0].checked, job.asked[0].left) == (False, [])
