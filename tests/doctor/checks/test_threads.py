from __future__ import annotations

from tests.doctor.checks.saying import said, wanting
from undaunted.doctor.checks import threads
from undaunted.doctor.facts import Cgroup, Limit


def test_processes_and_threads() -> None:
    few = {"nproc": Limit(1024, 1024)}
    assert said(threads, limits=few) == [("L04", "warn", "ulimit -u is 1024")]
    tight = Cgroup(pids_max=1000, pids_now=900)
    found = said(threads, limits={"nproc": Limit(None, None)}, cgroup=tight)
    assert found == [("L04", "warn", "pids.max of the container is 1000, of which 900 are in use")]
    many = wanting(nproc_per_node=8)
    enough = {"nproc": Limit(8192, 8192)}
    assert said(threads, many, limits=enough) == []
    assert said(threads, many, limits=enough, environ={"OMP_NUM_THREADS": "32"})[0][0] == "L04"


def test_more_threads_than_cpus() -> None:
    asked = wanting(nproc_per_node=4)
    found = said(threads, asked, cpus=16, environ={"OMP_NUM_THREADS": "8"})
    assert found == [("E23", "warn", "OMP_NUM_THREADS=8 with 4 ranks on 16 CPUs")]
    assert said(threads, asked, cpus=32, environ={"OMP_NUM_THREADS": "8"}) == []
    assert said(threads, asked, cpus=2, environ={"OMP_NUM_THREADS": "lots"}) == []
