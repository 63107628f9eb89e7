from __future__ import annotations

import pytest

from undaunted.fault_tolerance.output.server.config import LogServerConfig
from undaunted.fault_tolerance.output.server.messages import WINDOW_BYTES, window


def test_paths_are_told_from_the_directory_on():
    config = LogServerConfig(root="/logs")
    assert config.relative("/logs/a/train.log") == "a/train.log"
    with pytest.raises(ValueError, match="/logs"):
        config.relative("/other/train.log")


def test_bounds():
    assert window(256 << 20, 4) == WINDOW_BYTES
    assert window(256 << 20, 1024) == 256 << 10
    assert window(256 << 20, 100_000) == 64 << 10
