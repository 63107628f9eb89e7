"""Names of output files, as Slurm 22.05 has written them for such patterns."""

from __future__ import annotations

import pytest

from undaunted.services.slurm.patterns import expand, symbols

JOB = symbols(job_id="2", task_id="2", host="vm.example.org", user="root", name="my job")
TASK = symbols(job_id="9", task_id="3_17", host="n2", user="me", name="a/b")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (
            "/o/p-%x-%j-%A-%a-%N-%u-%%-%5j-%t-%n-%s-%J-%q-%3x-%12j-%.out",
            "/o/p-my job-2-2-4294967294-vm-root-%-00002-0-0-batch-2-%q-my job-0000000002-%.out",
        ),
        ("/o/\\q-%j.out", "/o/q-%j.out"),
        ("/o\\/r%%j-%j.out", "/o/r%%j-%j.out"),
        ("/o/plain", "/o/plain"),
        ("/o/100%", "/o/100%"),
        ("/o/%3%j", "/o/%j"),
    ],
)
def test_a_job(pattern: str, path: str) -> None:
    assert expand(pattern, JOB) == path


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/o/slurm-%A_%a.out", "/o/slurm-3_17.out"),
        ("/o/%A_%4a.%j.out", "/o/3_0017.9.out"),
        ("/o/%b-%x-%N", "/o/7-a/b-n2"),
    ],
)
def test_a_task_of_an_array(pattern: str, path: str) -> None:
    assert expand(pattern, TASK) == path


def test_what_stands_in_a_name_is_not_expanded_once_more() -> None:
    named = symbols(job_id="2", task_id="2", host="n", user="u", name="%j%u")
    assert expand("/o/%x", named) == "/o/%j%u"
