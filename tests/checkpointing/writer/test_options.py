"""Settings of a writer process."""

from __future__ import annotations

import pytest

from undaunted.checkpointing.writer.options import WriterOptions


def test_the_defaults_make_sense() -> None:
    WriterOptions().check()
    WriterOptions(threads=1, bandwidth=1e6, nice=0, io_class="idle", stall_timeout_s=0.1).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 0}, "threads=0: give 1 or more"),
        ({"bandwidth": 0.0}, "bandwidth=0.0: give bytes per second"),
        ({"stall_timeout_s": float("nan")}, "stall_timeout_s=nan"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s=0.0"),
        ({"nice": 99}, "nice=99"),
        ({"io_class": "fast"}, "io_class='fast'"),
    ],
)
def test_each_is_checked(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WriterOptions(**settings).check()
