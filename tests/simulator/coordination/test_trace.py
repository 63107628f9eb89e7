from __future__ import annotations

import pytest

from simulator.coordination.cluster import RankEnded
from simulator.coordination.trace import line
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p
from undaunted.coordinator.policy import messages as m

END = m.End("n001", m.Outcome.FINISHED, "done")
SEAT = p.Seat(node="n001", incarnation="i", address="", group_rank=0, first_rank=0, slots=2)
LEDGER = p.Ledger(run_id="x", epoch=3, version=9, round=1, table=(SEAT,))


@pytest.mark.parametrize(
    ("name", "what", "text"),
    [
        ("n001", "it is gone", ". it is gone"),
        ("fault", "crash n001", "! crash n001"),
        ("n001", s.TimerFired("node grace"), "@ node grace"),
        ("n001", s.Closed(7, "reset"), "-7 reset"),
        ("n001", s.Connected("dial 2", 8), "+8 dial 2"),
        ("n001", s.ConnectFailed("dial 2", "refused"), "- dial 2: refused"),
        ("n001", s.Received(7, p.Beat(epoch=3)), "< Beat e3  (7)"),
        (
            "n001",
            s.Received(7, p.Claim(node="n001", incarnation="i", epoch=3, ledger=LEDGER)),
            "< Claim n001 e3 [e3 v9 r1: n001]  (7)",
        ),
        (
            "n001",
            s.Received(7, p.Order(number=4, epoch=3, command=END)),
            "< Order #4 e3 End n001 finished 'done' r-1  (7)",
        ),
        ("n001", s.Told(RankEnded(1, 0, -9, victim=False)), "* r1: rank 0 ends with -9"),
        ("n001", s.Started(), "* Started"),
    ],
)
def test_every_event_is_one_line(name: str, what: object, text: str) -> None:
    assert line(1_500_000_000, name, what) == f"    1.500000  {name:<11}  {text}"
