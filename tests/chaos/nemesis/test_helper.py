"""Helper processes of the nemesis."""

from __future__ import annotations

import os

import pytest

from undaunted.chaos.nemesis import helper
from undaunted.chaos.nemesis.helper import NotPossibleError


def test_a_helper_that_dies() -> None:
    with pytest.raises(NotPossibleError, match="died"), helper.running("no.such.module", []):
        pass


def test_namespaces_that_are_ours_are_not_opened() -> None:
    assert helper.open_namespaces(os.getpid(), ("user", "net", "mnt")) == ()
