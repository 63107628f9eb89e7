"""Work that threads share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.files.sharing import share

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("threads", [1, 3, 9])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_everything_is_done_once(count: int, threads: int) -> None:
    done: list[int] = []
    share(count, threads, "test", done.extend)
    assert sorted(done) == list(range(count))


def test_an_error_ends_the_work_of_all() -> None:
    failed = threading.Event()
    done: list[int] = []

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            if number == 1:
                failed.set()
                raise ValueError("of the second")
            assert failed.wait(60)
            done.append(number)

    with pytest.raises(ValueError, match="of the second"):
        share(1000, 2, "test", work)
    assert len(done) < 999


def test_fewer_threads_do_it_where_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    done: list[int] = []
    share(20, 4, "test", done.extend)
    assert sorted(done) == list(range(20))
    assert not started[0].is_alive()
