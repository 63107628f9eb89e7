from __future__ import annotations

import pytest

from undaunted.inprocess.utils import (
    VERBOSE_VARIABLE,
    format_exc,
    format_rank_set,
    format_rank_set_brief,
    format_rank_set_verbose,
)


def test_exceptions_with_what_they_come_from() -> None:
    caught = KeyError("second")
    caught.__cause__ = ValueError("first")
    assert format_exc(caught) == "KeyError('second') <- ValueError('first')"
    caught.__cause__ = None
    caught.__context__ = ValueError("hidden")
    caught.__suppress_context__ = True
    assert format_exc(caught) == "KeyError('second')"


def test_a_circle_of_exceptions_ends() -> None:
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    assert format_exc(first) == "ValueError(1) <- ValueError(2)"


@pytest.mark.parametrize(
    ("ranks", "brief", "verbose"),
    [
        ([], "{}", "{}"),
        ([2, 1, 2], "{1, 2}", "{1-2}"),
        (range(8), "{0, 1, 2, 3, 4, 5, 6, 7}", "{0-7}"),
        ([*range(9), 20], "{0, 1, 2, 3, ..., 6, 7, 8, 20} (10 ranks)", "{0-8, 20}"),
    ],
)
def test_rank_sets(
    ranks: list[int], brief: str, verbose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert format_rank_set_brief(ranks) == format_rank_set(ranks) == brief
    monkeypatch.setenv(VERBOSE_VARIABLE, "1")
    assert format_rank_set_verbose(ranks) == format_rank_set(ranks) == verbose


@pytest.mark.parametrize(
    ("max_show", "brief"),
    [
        (0, "{...}"),
        (1, "{...}"),
        (2, "{0, ..., 19}"),
        (3, "{0, ..., 19}"),
        (4, "{0, 1, ..., 18, 19}"),
    ],
)
def test_a_rank_set_shows_no_more_than_asked_for(max_show: int, brief: str) -> None:
    assert format_rank_set_brief(range(20), max_show) == f"{brief} (20 ranks)"


def test_an_exception_whose_repr_raises_or_is_long() -> None:
    class Nameless(Exception):  # noqa: N818 - any exception
        def __repr__(self) -> str:
            raise KeyError

    assert format_exc(Nameless()) == "Nameless(its repr raises KeyError)"
    assert len(format_exc(ValueError("x" * 1_000_000))) < 5000
