import pytest

from undaunted.cli.variables import unknown_variables


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "PET_MAX_RESTART",
            "the variable PET_MAX_RESTART sets no option; did you mean PET_MAX_RESTARTS?",
        ),
        (
            "PET_FT_PARAM_RANK_HEARTBEAT_TIMEOUT",
            (
                "the variable PET_FT_PARAM_RANK_HEARTBEAT_TIMEOUT sets no option; "
                "did you mean PET_FT_RANK_HEARTBEAT_TIMEOUT?"
            ),
        ),
        ("PET_QQQQQQQQ", "the variable PET_QQQQQQQQ sets no option"),
        ("PET_MAX_RESTARTS", ""),
        ("PET_FT_STORAGE_HEALTH_CHECK_PATH", ""),  # of an alias
        ("MAX_RESTART", ""),
    ],
)
def test_a_slip_of_the_pen_is_said(name, said):
    assert unknown_variables({name: "3", "PET_EMPTY": ""}) == said
