from __future__ import annotations

import pytest

from undaunted.inprocess.completion import Completion


def test_it_is_to_be_derived_from() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Completion()  # type: ignore[abstract]
