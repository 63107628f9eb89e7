from __future__ import annotations

import asyncio

import pytest

from undaunted.fault_tolerance.output.server.root import Attendance


@pytest.mark.parametrize("come", [0, 1])
def test_nobody_is_expected_after_a_while(come):
    async def work():
        here = Attendance(settle_s=0.01, expected=2)
        for _ in range(come):
            here.come()
            here.leave()
        assert await here.over(30.0)

    asyncio.run(work())


def test_when_all_have_come_and_left_it_is_over():
    async def work():
        here = Attendance(settle_s=1000.0, expected=2)
        here.come()
        here.come()
        here.leave()
        waiting = asyncio.ensure_future(here.over(30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        here.leave()
        assert await waiting

    asyncio.run(work())


def test_who_stays_is_not_waited_for_longer_than_told():
    async def work():
        here = Attendance(settle_s=0.0, expected=1)
        here.come()
        assert not await here.over(0.01)

    asyncio.run(work())
