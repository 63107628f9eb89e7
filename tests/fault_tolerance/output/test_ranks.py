import pytest

from undaunted.fault_tolerance.output.ranks import format_interrupted_ranks, rank_prefix


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "none"),
        ([3], "3"),
        ([5, 1, 5, 0], "0, 1, 5"),
        (range(16), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15"),
        (range(17), "0, 1, 2, ..., 14, 15, 16"),
        (range(100, 132), "100, 101, 102, ..., 129, 130, 131"),
        (range(33), "0, 1, 2, 3, 4, ..., 28, 29, 30, 31, 32 (33 ranks)"),
    ],
)
def test_many_ranks_in_few_words(ranks, text):
    assert format_interrupted_ranks(ranks) == text


@pytest.mark.parametrize(
    ("rank", "world_size", "prefix"),
    [(0, 1, "0: "), (9, 10, "9: "), (9, 11, " 9: "), (10, 11, "10: ")],
)
def test_prefixes_of_a_job_have_one_width(rank, world_size, prefix):
    assert rank_prefix(rank, world_size) == prefix
