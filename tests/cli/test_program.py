import sys

import pytest

from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.cli.program import check_program, program_kind


def check(kind, target, cwd, **environ):
    check_program(kind, target, str(cwd), sys.executable, environ)


def problem(kind, target, cwd, **environ):
    with pytest.raises(UsageError) as caught:
        check(kind, target, cwd, **environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ([], "script"),
        (["-m"], "module"),
        (["--no-python"], "program"),
        (["--run-path"], "run_path"),
        (["--run-path", "--no-python"], "run_path"),
    ],
)
def test_kinds(flags, kind):
    assert program_kind(RUN.parse([*flags, "x"], {}), RUN) == kind


@pytest.mark.parametrize("kind", ["script", "run_path"])
def test_scripts(tmp_path, kind):
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    check(kind, "train.py", tmp_path)
    check(kind, str(tmp_path / "train.py"), "/")
    check(kind, "app", tmp_path)
    assert problem(kind, "trian.py", tmp_path) == (
        f"script 'trian.py' not found in {tmp_path}; did you mean 'train.py'?"
    )
    assert problem(kind, "sub/x.py", tmp_path) == f"script 'sub/x.py' not found in {tmp_path}"
    assert "for a module use -m" in problem(kind, "pytorch_lightning", tmp_path)
    assert "without a __main__.py" in problem(kind, "folder", tmp_path)


def test_modules(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "package").mkdir()
    check("module", "mine", tmp_path)
    check("module", "package.part", tmp_path)
    check("module", "json.tool", tmp_path)
    assert "did you mean 'mine'?" in problem("module", "mien", tmp_path)
    assert "'mine.py' is not the name" not in problem("module", "no_such_module_at_all", tmp_path)
    assert "leave out -m for a file" in problem("module", "./mine.py", tmp_path)


def test_module_of_another_interpreter_is_not_looked_for(tmp_path):
    other = tmp_path / "python"
    other.touch(0o700)
    check_program("module", "anything", str(tmp_path), str(other), {})
    check_program("module", "anything", "/", "python", {"PATH": f"/nope:{tmp_path}"})


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", "/etc/passwd", "/"])
def test_interpreter_that_cannot_be_run(tmp_path, python):
    with pytest.raises(UsageError, match=f"PYTHON_EXEC: '{python}' is no executable here; name"):
        check_program("module", "anything", str(tmp_path), python, {"PATH": "/usr/bin"})


def test_executables(tmp_path):
    tool = tmp_path / "tool"
    tool.touch(mode=0o644)
    assert "is not executable; chmod +x" in problem("program", "./tool", tmp_path)
    assert "is not executable" in problem("program", "tool", "/", PATH=str(tmp_path))
    tool.chmod(0o755)
    check("program", "./tool", tmp_path)
    check("program", "tool", "/", PATH=f"/nonexistent:{tmp_path}")
    assert problem("program", "tool", tmp_path, PATH="/nonexistent") == (
        "executable 'tool' not found on the PATH (for the current directory write ./NAME)"
    )
    assert problem("program", "./other", tmp_path) == "executable './other' not found"
