from __future__ import annotations

from typing import Any

import pytest

from undaunted.checkpointing.arguments import ATTEMPTS, check_settings, step_number

SETTINGS: dict[str, Any] = {
    "keep": 3,
    "keep_every": None,
    "on_failure": "raise",
    "differing": "refuse",
    "slots": 1,
    "timeout": 600.0,
    "threads": 4,
}


@pytest.mark.parametrize(
    "given",
    [
        *({"keep": None}, {"keep": 1}, {"keep_every": 1}, {"slots": 2}, {"timeout": 1}),
        *({"threads": 64}, {"differing": "warn"}, *({"on_failure": one} for one in ATTEMPTS)),
    ],
    ids=str,
)
def test_settings_within_their_range(given: dict[str, Any]) -> None:
    check_settings(**{**SETTINGS, **given})


@pytest.mark.parametrize(
    "given",
    [
        *({"keep": 0}, {"keep_every": 0}, {"on_failure": "ignore"}, {"slots": 3}),
        *({"timeout": 0}, {"threads": 0}, {"threads": 10**6}, {"differing": "ignore"}),
    ],
    ids=str,
)
def test_settings_out_of_range_are_named(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"^{name}={value!r}: "):
        check_settings(**{**SETTINGS, **given})


def test_a_wait_without_an_end_is_refused() -> None:
    with pytest.raises(TypeError, match=r"timeout=None: .* every wait has an end"):
        check_settings(**{**SETTINGS, "timeout": None})


@pytest.mark.parametrize("step", [1.0, True, "1", None], ids=repr)
def test_a_step_that_is_no_integer_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="the number of a step is an integer"):
        step_number(step)


@pytest.mark.parametrize("step", [-1, 1 << 63])
def test_a_step_out_of_range_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        step_number(step)


def test_a_step_is_any_integer() -> None:
    class OfAnotherPackage:
        def __index__(self) -> int:
            return 7

    assert [step_number(one) for one in (0, (1 << 63) - 1, OfAnotherPackage())] == [  # type: ignore[arg-type]
        0,
        (1 << 63) - 1,
        7,
    ]
