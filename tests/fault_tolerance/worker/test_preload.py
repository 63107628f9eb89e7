from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.worker.preload import (
    parsed,
    preload_names,
    program_file,
    template_modules,
)


def names(tmp_path, source):
    path = tmp_path / "script.py"
    path.write_bytes(dedent(source).encode() if isinstance(source, str) else source)
    return preload_names(parsed(str(path)))


def test_only_what_is_known_to_be_harmless(tmp_path):
    source = """
        import os, torch.distributed as dist, mine
        import numpy as np
        from torch.nn.parallel import DistributedDataParallel
        from torch.distributed.fsdp import *
        from torchvision import models
        from .torch import x
        import torch.distributed
    """
    assert names(tmp_path, source) == [
        "torch.distributed",
        "numpy",
        "torch.nn.parallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp",
    ]


def test_our_checkpoints_are_harmless_and_other_parts_are_not(tmp_path):
    source = """
        import undaunted
        from undaunted import inprocess
        from undaunted.checkpointing import Checkpointer
        import undaunted.checkpointing_of_others
    """
    assert names(tmp_path, source) == [
        "undaunted.checkpointing",
        "undaunted.checkpointing.Checkpointer",
    ]


def test_only_what_runs_at_the_top_level(tmp_path):
    source = """
        from typing import TYPE_CHECKING
        import typing
        if TYPE_CHECKING:
            import torch.a
        if typing.TYPE_CHECKING:
            import torch.b
        try:
            import torch.c
        except ImportError:
            import torch.d
        else:
            import torch.e
        finally:
            import torch.f
        with open("x"):
            import torch.g
        def f():
            import torch.h
        class C:
            import torch.i
        if True:
            import torch.j
        else:
            import torch.k
    """
    assert [name[-1] for name in names(tmp_path, source)] == list("cefgjk")


@pytest.mark.parametrize("source", ["def f(:", "x = '\0'", b"\xff\xfe", "(" * 10_000])
def test_what_cannot_be_parsed_is_left_to_the_rank(tmp_path, source):
    path = tmp_path / "script.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    assert parsed(str(path)) is None


@given(st.binary(max_size=100))
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.py"
    path.write_bytes(data)
    assert isinstance(template_modules("script", str(path), "/", []), list)


def test_encodings(tmp_path):
    assert names(tmp_path, b"# coding: latin-1\nimport torch # \xe4\n") == ["torch"]
    assert names(tmp_path, b"\xef\xbb\xbfimport torch\n") == ["torch"]


def test_no_file(tmp_path):
    assert parsed(str(tmp_path / "nosuch")) is None
    assert parsed(str(tmp_path)) is None


def test_where_the_program_is(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").touch()
    (tmp_path / "pkg" / "tool.py").touch()
    cwd = str(tmp_path)
    assert program_file("module", "pkg.tool", cwd) == f"{cwd}/pkg/tool.py"
    assert program_file("module", "pkg", cwd) == f"{cwd}/pkg/__main__.py"
    assert program_file("script", "pkg", cwd) == f"{cwd}/pkg/__main__.py"
    assert program_file("script", "pkg/tool.py", cwd) == f"{cwd}/pkg/tool.py"
    assert program_file("run_path", f"{cwd}/pkg/tool.py", "/") == f"{cwd}/pkg/tool.py"
    assert program_file("module", "json.tool", cwd) is None
    assert program_file("program", "pkg/tool.py", cwd) is None


@pytest.mark.parametrize(
    "statement",
    [
        "os.environ['TORCHDYNAMO_DISABLE'] = '1'",
        "os.environ.update(TORCH_LOGS='dynamo')",
        "if os.getenv('X'):\n    os.environ.setdefault('TORCHINDUCTOR_CACHE_DIR', '/x')",
    ],
)
def test_what_a_program_sets_between_imports_of_torch(tmp_path, statement):
    (tmp_path / "a.py").write_text(
        f"import os, numpy\nimport torch.nn\n{statement}\nimport torch._dynamo, torch.nn"
    )
    assert template_modules("script", "a.py", str(tmp_path), []) == ["torch", "numpy", "torch.nn"]
    (tmp_path / "a.py").write_text(f"import os\n{statement}\nimport torch, torch._dynamo")
    assert "torch._dynamo" in template_modules("script", "a.py", str(tmp_path), [])


def test_template_modules(tmp_path):
    (tmp_path / "x.py").write_text("import torch.distributed, torch, other")
    found = template_modules("script", "x.py", str(tmp_path), ["mine", "torch"])
    assert found == ["torch", "torch.distributed", "mine"]
    assert template_modules("program", "x.py", str(tmp_path), []) == ["torch"]


@pytest.mark.parametrize(
    "source",
    ["", "import os, json.tool\nfrom concurrent import futures", "import undaunted, numpy.random"],
)
def test_a_program_that_cannot_bring_torch_does_not_wait_for_it(tmp_path, source):
    (tmp_path / "x.py").write_text(source)
    found = template_modules("script", "x.py", str(tmp_path), ["mine"])
    assert "torch" not in found
    assert found[-1] == "mine"
    assert "torch" in template_modules("script", "x.py", str(tmp_path), ["torch"])


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import torch",
        "import os, mine",
        "from . import mine",
        "from importlib import import_module",
        "import runpy",
        "from undaunted import inprocess",
        "def f(:",
        "import osx",
    ],
)
def test_a_program_that_may_bring_torch_finds_it(tmp_path, source):
    (tmp_path / "x.py").write_text(source)
    assert template_modules("script", "x.py", str(tmp_path), []) == ["torch"]


def test_a_module_runs_the_packages_around_it_too(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import torch")
    (tmp_path / "pkg" / "tool.py").touch()
    assert template_modules("module", "pkg.tool", str(tmp_path), []) == ["torch"]
