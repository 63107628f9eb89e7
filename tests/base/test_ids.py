import os
import re

from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.ids import file_name, new_run_id, node_name, node_of_rank


def test_run_ids_sort_by_time_and_differ():
    ids = {new_run_id() for _ in range(20)}
    assert len(ids) > 10
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", name) for name in ids)


def test_node_name():
    assert node_name({"SLURMD_NODENAME": "n 1"}) == "n_1"
    assert node_name({}) == file_name(os.uname().nodename.partition(".")[0])


def test_a_rank_is_on_the_node_that_its_launcher_names():
    assert node_of_rank({"UNDAUNTED_NODE": "a", "SLURMD_NODENAME": "b"}) == "a"
    assert node_of_rank({"SLURMD_NODENAME": "b"}) == "b"


@given(st.text())
def test_file_names_are_one_safe_component(text):
    name = file_name(text)
    assert re.fullmatch(r"[A-Za-z0-9._-]*", name)
    assert not name.startswith(".")
    assert len(name) <= 128
