from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.worker import numerics


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("env", "threads"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1", "GOTO_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "1", "GOTO_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "100"}, 8),
        ({"OPENBLAS_NUM_THREADS": "0", "OMP_NUM_THREADS": "4,2"}, 8),
        ({"OPENBLAS_NUM_THREADS": "many"}, 8),
    ],
)
def test_blas_threads_as_openblas_chooses_them(cores, env, threads):
    assert numerics._blas_threads(env) == threads


@given(st.dictionaries(st.sampled_from(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]), st.text()))
def test_any_environment(env):
    assert 1 <= numerics._blas_threads(env) <= len(os.sched_getaffinity(0))


class Generator:
    seeds = 0

    def seed(self):
        self.seeds += 1


@pytest.mark.parametrize(("seed", "times"), [(numerics._TORCH_FIXED_SEED, 0), (5, 1)])
def test_torchs_seed_is_renewed_where_torch_chose_it(monkeypatch, seed, times):
    class Torch:
        default_generator = Generator()

        @staticmethod
        def initial_seed():
            return seed

    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setitem(sys.modules, "numpy.random", None)
    monkeypatch.setitem(sys.modules, "multiprocessing.process", None)
    numerics._reseed()
    assert Torch.default_generator.seeds == times


def test_nothing_loaded_nothing_done(monkeypatch, cores):
    for name in ("torch", "numpy.random", "multiprocessing.process"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(numerics, "_loaded_openblas", set)
    numerics.renew({})


@pytest.mark.parametrize(("threads", "set_to"), [(16, [8]), (8, []), (1, [])])
def test_torch_computes_with_no_more_threads_than_cpus(monkeypatch, cores, threads, set_to):
    calls = []
    torch = SimpleNamespace(get_num_threads=lambda: threads, set_num_threads=calls.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    numerics.limit_torch_threads()
    assert calls == set_to
    monkeypatch.setitem(sys.modules, "torch", None)
    numerics.limit_torch_threads()
