"""The choices of numeric libraries at their import in the template, made anew for a worker.

Nothing is imported here. Libraries that the template has not loaded will decide by themselves.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# A template starts with one OpenBLAS thread, and none of pyarrow's jemalloc: with threads it could
# not fork.
TEMPLATE_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# Where torch starts every process with the same seed, workers have it as well.
_TORCH_FIXED_SEED = 67280421310721

_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_BLAS_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_", "_64")  # not "_64_", which is Fortran's and takes a pointer
)


def renew(env: Mapping[str, str]) -> None:
    """Give a forked worker with environment ``env`` its own random numbers and BLAS threads."""
    _reseed()
    _set_blas_threads(_blas_threads(env))


def limit_torch_threads() -> None:
    """Have torch compute with no more threads than this process may use CPUs."""
    torch: Any = sys.modules.get("torch")
    cores = len(os.sched_getaffinity(0))
    if torch is not None and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def _reseed() -> None:
    """Separate what was random in the template; the random module and ssl do so by themselves."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.initial_seed() != _TORCH_FIXED_SEED:
        torch.default_generator.seed()
    random: Any = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)


def _blas_threads(env: Mapping[str, str]) -> int:
    """Return how many threads OpenBLAS would start with in this environment."""
    cores = len(os.sched_getaffinity(0))
    values = (env.get(name, "") for name in _BLAS_VARIABLES)
    numbers = (int(value) for value in values if value.isascii() and value.isdigit())
    asked = next((number for number in numbers if number > 0), cores)
    return min(asked, cores)


def _set_blas_threads(count: int) -> None:
    if count == 1:
        return
    for path in _loaded_openblas():
        library = ctypes.CDLL(path)
        for name in _BLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))


def _loaded_openblas() -> set[str]:
    """Return the OpenBLAS libraries in this process; every package may bring another one."""
    lines = Path("/proc/self/maps").read_text("utf-8", errors="surrogateescape").splitlines()
    paths = (line.split(maxsplit=5)[5] for line in lines if "openblas" in line)
    return {path for path in paths if path.startswith("/")}
