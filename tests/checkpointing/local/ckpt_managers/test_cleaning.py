"""One deletion at a time."""

from __future__ import annotations

import threading

from undaunted.checkpointing.local.ckpt_managers.cleaning import Cleaner


def test_in_the_background_and_one_after_the_other() -> None:
    cleaner, may, done = Cleaner(20), threading.Event(), []

    def delete() -> None:
        may.wait(20)
        done.append(threading.current_thread())

    cleaner.run(delete, in_background=True)
    assert not done
    may.set()
    cleaner.run(lambda: done.append(threading.current_thread()), in_background=False)
    assert len(done) == 2
    assert done[0] is not done[1] is threading.current_thread()
    cleaner.join()
