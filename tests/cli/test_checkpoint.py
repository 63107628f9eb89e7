"""``undaunted checkpoint`` on checkpoints that real ranks have saved."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.buckets import bucket
from undaunted.checkpointing import inspection
from undaunted.checkpointing.files.living import Living
from undaunted.checkpointing.files.places import refuse_one_checkpoint
from undaunted.checkpointing.format import ledger, names
from undaunted.cli import checkpoint
from undaunted.cli.checkpoint import main

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("checkpoint_program.py")
needs_torch = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 10, 20 and 30 of two ranks; what the last one has is in ``saved.pt`` beside."""
    pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("ranks") / "saved"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(directory)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for one in ranks:
        _, err = one.communicate(timeout=110)
        assert one.returncode == 0, err
    return directory


@pytest.fixture
def place(saved: Path, tmp_path: Path) -> str:
    """A copy that a test may spoil."""
    shutil.copytree(saved, tmp_path / "checkpoints")
    return str(tmp_path / "checkpoints")


class Said:
    """What a command has printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Said:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


def refused(said: Said) -> str:
    """The error of a command that could not be done: a line, and perhaps one with the remedy."""
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("undaunted checkpoint")
    assert said.err.count("\n") <= 2
    return said.err


def file_of(place: str, step: int, name: str) -> Path:
    return Path(place, f"step-{step:08d}", name)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def tensor_bytes_of(place: str, step: int, name: str) -> tuple[str, int]:
    """In which file a tensor lies, and where."""
    from undaunted.checkpointing.dcp import metadata

    path = file_of(place, step, ".metadata")
    found = metadata.decode(path.read_bytes(), str(path)).storage_data
    info = next(info for index, info in found.items() if index.fqn == name)
    return info.relative_path, info.offset + 64


# --- list -----------------------------------------------------------------------------------------


@needs_torch
def test_list(place: str, run: Any) -> None:
    found = run("list", "--json", place).json
    assert found["kind"] == "checkpoints"
    assert [one["step"] for one in found["checkpoints"]] == [30, 20, 10]
    for one in found["checkpoints"]:
        files = list(Path(one["path"]).iterdir())
        assert one["complete"]
        assert one["ranks"] == 2
        sizes = [file.stat().st_size for file in files if file.name != "undaunted.json"]
        assert one["size"] == sum(sizes)
    assert (found["strays"], found["unfinished"], found["jobs"]) == ([], [], [])
    lines = run("list", place).out.splitlines()
    assert [line.split()[0] for line in lines] == ["STEP", "30", "20", "10"]


@needs_torch
def test_list_names_what_is_not_a_whole_checkpoint(place: str, run: Any) -> None:
    file_of(place, 30, "__1_0.distcp").unlink()
    flip(file_of(place, 20, "undaunted.json"), 30)
    Path(place, "step-00000005").mkdir()
    unfinished = Path(place, ".step-00000040.abc-0")
    unfinished.mkdir()
    (unfinished / "__0_0.distcp").write_bytes(b"x" * 100)
    Path(place, ".step-00000001.deleted-abc").mkdir()
    before = sorted(Path(place).iterdir())

    found = run("list", "--json", place).json
    assert sorted(Path(place).iterdir()) == before, "nothing was changed"
    problems = {one["step"]: one["problem"] for one in found["checkpoints"]}
    assert "__1_0.distcp is missing" in problems[30]
    assert "damaged" in problems[20]
    assert problems[10] == ""
    assert [Path(one).name for one in found["strays"]] == ["step-00000005"]
    left = {one["name"]: (one["kind"], one["size"], one["alive"]) for one in found["unfinished"]}
    assert left[unfinished.name] == ("unfinished", 100, False)
    assert left[".step-00000001.deleted-abc"][0] == "deleted"
    out = run("list", place).out
    assert "step-00000005" in out
    assert unfinished.name in out


@needs_torch
def test_list_knows_a_job_that_runs(place: str, run: Any) -> None:
    living = Living(place)
    living.begin("abc", "my-run")
    Path(place, ".step-00000040.abc-0").mkdir()
    try:
        found = run("list", "--json", place).json
        assert found["jobs"] == [{"session": "abc", "run": "my-run", "alive": True}]
        assert found["unfinished"][0]["alive"] is True
        assert "my-run" in run("list", place).out
    finally:
        living.end()
    assert run("list", "--json", place).json["jobs"] == []


@needs_torch
def test_list_says_which_one_jobs_pass_over(place: str, run: Any) -> None:
    storage = inspection.open_place(place).storage
    assert storage is not None
    manifest = storage.manifest(30)
    name = f"30-{manifest.session}-{manifest.attempt}"
    load = ledger.Loaded(at=1.0, name=name, step=30, session="s", run="r", round=0)
    failure = ledger.Failure(round=0, cause="not_finite", error="loss is nan", steps=2)
    storage.write_ledger(ledger.encode([load, ledger.Failed(at=2.0, name=name, failure=failure)]))

    newest, *older = run("list", "--json", place).json["checkpoints"]
    assert (newest["loads"], "loss is nan" in newest["doubt"]) == (1, True)
    assert [(one["loads"], one["doubt"]) for one in older] == [(0, ""), (0, "")]
    # It stays, and so does the newest that is not passed over.
    assert run("prune", "--json", "--keep", "1", place).json["keep"] == [20, 30]


@needs_torch
def test_list_shows_what_was_kept_aside(place: str, tmp_path: Path, run: Any) -> None:
    aside = Path(place, names.doubted(names.attempt(30, "abc", 4)))
    Path(place, "step-00000030").rename(aside)
    found = run("list", "--json", place).json
    (kept,) = found["kept_aside"]
    assert (kept["name"], kept["step"], kept["size"] > 1000) == (aside.name, 30, True)
    assert (found["strays"], found["unfinished"]) == ([], [])
    assert aside.name in run("list", place).out
    assert run("verify", aside).code == 0, "it can be looked at"

    shard = tmp_path / "local" / "0" / "doubted-iter_0000060_0_local.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"x" * 50)
    shutil.copy(shard, shard.with_name("iter_0000080_0_local.pt"))
    (local,) = run("list", "--json", tmp_path / "local").json["kept_aside"]
    assert (Path(local["name"]).name, local["step"], local["size"]) == (shard.name, 60, 50)


@needs_torch
def test_a_link_to_a_checkpoint_is_called_one(place: str, tmp_path: Path, run: Any) -> None:
    link = tmp_path / "elsewhere" / "step-00000030"
    link.parent.mkdir()
    link.symlink_to(Path(place, "step-00000030"))
    (link.parent / ".epoch").touch()
    found = run("list", "--json", link.parent).json
    assert [Path(one).name for one in found["strays"]] == [link.name]
    (why,) = found["stray_problems"]
    assert "link" in why
    for said in run("list", link.parent).out, run("show", link.parent, "30").err:
        assert why in said
    assert run("verify", link).code == 0, "it can be named itself"
    with pytest.raises(ValueError, match=place):
        refuse_one_checkpoint(str(link))


# --- verify ---------------------------------------------------------------------------------------


@needs_torch
def test_verify(place: str, run: Any) -> None:
    said = run("verify", place)
    assert (said.code, said.err) == (0, "")
    assert "step 30: whole" in said.out
    found = run("verify", "--json", place, "all")
    assert found.code == 0
    assert [(one["step"], one["whole"]) for one in found.json["checkpoints"]] == [
        *((30, True), (20, True), (10, True))
    ]
    assert [one["step"] for one in run("verify", "--json", place, "20").json["checkpoints"]] == [20]


@needs_torch
def test_a_flipped_bit(place: str, run: Any) -> None:
    file, offset = tensor_bytes_of(place, 20, "model.1.weight")
    flip(file_of(place, 20, file), offset)
    said = run("verify", place, "20")
    assert said.code == 1
    assert file in said.out
    assert "model.1.weight" in said.out
    (checkpoint_,) = run("verify", "--json", place, "20").json["checkpoints"]
    (damage,) = checkpoint_["damage"]
    assert (damage["file"], damage["block"]) == (file, 0)
    assert "model.1.weight" in damage["names"]
    assert run("verify", place).code == 0, "the newest one is whole"
    assert run("verify", place, "all").code == 1


@needs_torch
@pytest.mark.parametrize("harm", ["cut", "missing", "longer", "metadata", "manifest"])
def test_other_damage(place: str, run: Any, harm: str) -> None:
    path = file_of(place, 30, "__0_0.distcp")
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif harm == "missing":
        path.unlink()
    elif harm == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    elif harm == "metadata":
        path = file_of(place, 30, ".metadata")
        flip(path, 100)
    else:
        path = file_of(place, 30, "undaunted.json")
        flip(path, 100)
    said = run("verify", place, "30")
    assert said.code == 1
    assert path.name in said.out
    assert said.err == ""


@needs_torch
def test_blocks_of_large_files_are_told_apart(tmp_path: Path, run: Any) -> None:
    from tests.checkpointing.dcp.saved import manifest_of, save

    torch = pytest.importorskip("torch")
    from undaunted.checkpointing.format.manifest import encode

    folder = tmp_path / "one"
    save(folder, {f"t{at}": torch.full((1024,), float(at)) for at in range(9)})  # 4 KiB each
    (folder / "undaunted.json").write_bytes(encode(manifest_of(folder)))
    (path,) = folder.glob("*.distcp")
    for block in (1, 4):
        flip(path, block * 4096 + 2000)
    (found,) = run("verify", "--json", folder).json["checkpoints"]
    assert [one["block"] for one in found["damage"]] == [1, 4]
    named = [set(one["names"]) for one in found["damage"]]
    assert all(named)
    assert named[0].isdisjoint(named[1])


# --- show -----------------------------------------------------------------------------------------


@needs_torch
def test_show(place: str, run: Any) -> None:
    found = run("show", "--json", place).json
    tensors = {one["name"]: one for one in found["tensors"]}
    weight = tensors["model.0.weight"]
    assert (weight["shape"], weight["dtype"], weight["size"]) == ([17, 33], "float32", 17 * 33 * 4)
    assert weight["parts"] == 2
    assert tensors["columns"]["parts"] == 2
    assert (tensors["model.short"]["dtype"], tensors["model.short"]["size"]) == ("bfloat16", 18)
    assert tensors["model.steps"]["shape"] == []
    assert {one["name"] for one in found["objects"]} == {"lr", "note"}
    out = run("show", place, "10").out
    assert "step-00000010" in out
    assert "17x33" in out


@needs_torch
def test_nothing_in_a_file_is_executed(place: str, run: Any, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    import pickle

    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    for words in (["show", folder], ["export", folder, "--safetensors", tmp_path / "out"]):
        assert "does not belong into the metadata" in refused(run(*words))
    assert not (tmp_path / "executed").exists()


# --- diff -----------------------------------------------------------------------------------------


@needs_torch
def test_diff(place: str, run: Any) -> None:
    said = run("diff", "--json", place, "10", "30")
    assert said.code == 1
    found = {one["name"]: one for one in said.json["differences"]}
    assert set(found) == {"model.0.bias", "model.steps", "lr"}
    assert found["model.0.bias"]["largest"] == pytest.approx(0.5)
    assert found["model.steps"]["largest"] == 20
    assert (found["lr"]["first"], found["lr"]["second"]) == (repr(1.0 / 10), repr(1.0 / 30))
    assert all(one["what"] == "values" for one in found.values())
    assert "model.0.bias" in run("diff", place, "10", "30").out

    same = run("diff", place, "20", "20")
    assert same.code == 0
    first, second = (str(file_of(place, step, "").parent) for step in (10, 10))
    assert run("diff", f"{place}/step-00000010", f"{place}/step-00000010").code == 0
    assert first == second


@needs_torch
def test_diff_of_what_two_programs_have_saved(tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    nan = float("nan")
    ours = {
        "a": torch.ones(3),
        "b": torch.ones(2),
        "c": torch.ones(2),
        "d": 1,
        "nan": torch.ones(2),
        "same": {"x": torch.tensor([1.0, nan, float("inf")]), "y": [1, "two"]},
    }
    theirs = {
        "a": torch.ones(4),
        "b": torch.ones(2).double(),
        "d": torch.ones(1),
        "e": 5,
        "nan": torch.tensor([1.0, nan]),
        "same": {"x": torch.tensor([1.0, nan, float("inf")]), "y": [1, "two"]},
    }
    dcp.save(ours, checkpoint_id=tmp_path / "ours")
    dcp.save(theirs, checkpoint_id=tmp_path / "theirs")
    said = run("diff", "--json", tmp_path / "ours", tmp_path / "theirs")
    assert said.code == 1
    found = {one["name"]: (one["what"], one["largest"]) for one in said.json["differences"]}
    assert found == {
        "a": ("shape", None),
        "b": ("dtype", None),
        "c": ("missing", None),
        "d": ("kind", None),
        "e": ("missing", None),
        "nan": ("values", None),
    }
    assert run("diff", tmp_path / "ours", tmp_path / "theirs").code == 1
    assert "diff DIR STEP STEP" in refused(run("diff", tmp_path / "ours"))


# --- prune ----------------------------------------------------------------------------------------


@needs_torch
def test_prune(place: str, run: Any) -> None:
    planned = run("prune", "--json", "--keep", "1", "--dry-run", place).json
    assert (planned["delete"], planned["deleted"], planned["keep"]) == ([10, 20], [], [30])
    assert len(list(Path(place).glob("step-*"))) == 3
    assert "20" in run("prune", "--keep", "2", "--keep-every", "20", place, "--dry-run").out

    done = run("prune", "--json", "--keep", "1", "--keep-every", "20", place)
    assert done.json["deleted"] == [10]
    assert sorted(path.name for path in Path(place).glob("step-*")) == [
        *("step-00000020", "step-00000030")
    ]
    assert run("verify", place, "all").code == 0


@needs_torch
def test_the_newest_whole_one_stays(place: str, run: Any) -> None:
    file, offset = tensor_bytes_of(place, 30, "model.1.weight")
    flip(file_of(place, 30, file), offset)
    file_of(place, 20, ".metadata").unlink()
    done = run("prune", "--json", "--keep", "1", place).json
    assert (done["whole"], done["damaged"]) == (10, [30, 20])
    assert (done["keep"], done["deleted"]) == ([10, 30], [20])

    file_of(place, 10, ".metadata").unlink()
    assert "none of 2 checkpoints is whole" in refused(run("prune", "--keep", "1", place))
    assert len(list(Path(place).glob("step-*"))) == 2


@needs_torch
def test_a_job_that_may_be_loading_keeps_them_all(place: str, run: Any) -> None:
    living = Living(place)
    living.begin("abc", "my-run")
    try:
        assert "my-run" in refused(run("prune", "--keep", "1", place))
        assert len(list(Path(place).glob("step-*"))) == 3
        assert run("prune", "--keep", "1", "--dry-run", place).code == 0
        assert run("prune", "--json", "--keep", "2", "--force", place).json["deleted"] == [10]
    finally:
        living.end()


@needs_torch
def test_a_job_that_has_saved_the_newest_does_not_load_older_ones(place: str, run: Any) -> None:
    newest = run("list", "--json", place).json["checkpoints"][0]
    living = Living(place)
    living.begin(newest["session"], "my-run")
    try:
        assert run("prune", "--json", "--keep", "1", place).json["deleted"] == [10, 20]
    finally:
        living.end()


# --- export ---------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> dict[str, Any]:
    """By the definition of the format, without the package."""
    torch = pytest.importorskip("torch")
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    data = content[8 + length :]
    places = sorted(one["data_offsets"] for one in header.values())
    assert [start for start, _ in places] == [0, *(end for _, end in places[:-1])], "no gaps"
    assert places[-1][1] == len(data)
    found = {}
    for name, one in header.items():
        start, end = one["data_offsets"]
        dtype = dtypes[one["dtype"]]
        assert (8 + length + start) % dtype.itemsize == 0
        values = bytearray(data[start:end])
        flat = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
        found[name] = flat.reshape(one["shape"])
    return found


@needs_torch
@pytest.mark.parametrize("sharded", [False, True])
def test_export(saved: Path, tmp_path: Path, run: Any, sharded: bool, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch")
    if sharded:
        monkeypatch.setattr("undaunted.checkpointing.export.SHARD_BYTES", 1000)
    out = tmp_path / "new" / "out"
    said = run("export", saved, "--safetensors", out)
    assert (said.code, said.err) == (0, "")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert (len(files) > 1) is sharded
    assert {path.name for path in out.iterdir()} == files | {"model.safetensors.index.json"}
    found = {}
    for file in files:
        in_file = read_safetensors(out / file)
        assert all(index["weight_map"][name] == file for name in in_file)
        found |= in_file
    expected = torch.load(f"{saved}.pt", weights_only=True)
    assert set(found) == set(expected) == set(index["weight_map"])
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in expected.values())
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@needs_torch
def test_export_of_a_part_that_lies_in_columns(saved: Path, tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    said = run("export", saved, "10", "--prefix", "", "--safetensors", tmp_path / "out", "--json")
    assert said.json["left_out"] == ["lr", "note"]
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["columns"], torch.arange(60.0).reshape(5, 12))
    assert int(found["model.steps"]) == 10


@needs_torch
def test_export_of_a_folder_of_torch(tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {"net": {"w": torch.randn(3, 4), "t": torch.randn(4, 3).t()}, "step": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp")
    assert "net." in refused(run("export", tmp_path / "dcp", "--safetensors", tmp_path / "x"))
    words = ["--safetensors", tmp_path / "out", "--prefix", "net."]
    assert run("export", tmp_path / "dcp", *words).code == 0
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["w"], state["net"]["w"])
    assert torch.equal(found["t"], state["net"]["t"])
    assert run("list", tmp_path / "dcp").code == 0
    assert "no checksums" in refused(run("verify", tmp_path / "dcp"))


@needs_torch
def test_a_damaged_checkpoint_is_not_exported(place: str, tmp_path: Path, run: Any) -> None:
    file, offset = tensor_bytes_of(place, 30, "model.1.weight")
    flip(file_of(place, 30, file), offset)
    out = tmp_path / "out"
    assert "model.1.weight" in refused(run("export", place, "--safetensors", out))
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert run("export", place, "20", "--safetensors", out).code == 0


@needs_torch
def test_an_export_overwrites_nothing(saved: Path, tmp_path: Path, run: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert run("export", saved, "--safetensors", out).code == 0, "an empty folder is as good"
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert "files in it" in refused(run("export", saved, "10", "--safetensors", out))
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "file").touch()
    refused(run("export", saved, "--safetensors", tmp_path / "file"))
    refused(run("export", saved, "--safetensors", "s3://bucket/x"))


@needs_torch
def test_a_full_disk(saved: Path, tmp_path: Path, run: Any, monkeypatch: Any) -> None:
    real = os.write

    def write(fd: int, content: Any) -> int:
        if len(content) > 1000:
            raise OSError(28, "No space left on device")
        return real(fd, content)

    monkeypatch.setattr("undaunted.checkpointing.export.os.write", write)
    assert "No space left on device" in refused(
        run("export", saved, "--safetensors", tmp_path / "o")
    )
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.slow
def test_two_exports_at_once(saved: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "undaunted", "checkpoint", "export", str(saved)]
    both = [
        subprocess.Popen(
            [*command, step, "--safetensors", str(tmp_path / "out")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for step in ("10", "30")
    ]
    ends = [(one.wait(100), one.communicate()[1]) for one in both]
    assert sorted(code for code, _ in ends) == [0, 2]
    (error,) = [said for code, said in ends if code]
    assert str(tmp_path / "out") in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    read_safetensors(tmp_path / "out" / "model.safetensors")


@needs_torch
def test_what_a_killed_export_has_left_goes(saved: Path, tmp_path: Path, run: Any) -> None:
    left = tmp_path / ".out.export-0123456789abcdef"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"x")
    other = tmp_path / ".other.export-0123456789abcdef"
    other.mkdir()
    assert run("export", saved, "--safetensors", tmp_path / "out").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "out"]


# --- what goes wrong ------------------------------------------------------------------------------


@needs_torch
def test_steps_that_are_not_there(place: str, run: Any, tmp_path: Path) -> None:
    for words in (["verify", place, "7"], ["show", place, "7"], ["diff", place, "10", "7"]):
        said = refused(run(*words))
        assert "no step 7" in said
        assert "10, 20, 30" in said
    refused(run("export", place, "7", "--safetensors", tmp_path / "out"))
    assert "'newest' is no step" in refused(run("show", place, "newest"))


@pytest.mark.parametrize("action", ["list", "verify", "show", "diff", "prune", "export"])
def test_places_without_checkpoints(action: str, tmp_path: Path, run: Any) -> None:
    if action in {"show", "diff", "export"}:
        pytest.importorskip("torch")
    more = {"prune": ["--keep", "1"], "export": ["--safetensors", tmp_path / "out"]}
    second = [tmp_path] if action == "diff" else []

    def error(where: Path) -> str:
        return refused(run(action, where, *second, *more.get(action, [])))

    (tmp_path / "file").touch()
    (tmp_path / "runs" / "a" / "step-00000001").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    assert "does not exist" in error(tmp_path / "nowhere")
    assert "is a file" in error(tmp_path / "file")
    assert "no checkpoints" in error(tmp_path / "empty")
    assert "directories in it do: a" in error(tmp_path / "runs")
    assert not (tmp_path / "out").exists()
    refused(run(action))


@needs_torch
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(place: str, run: Any) -> None:
    Path(place).chmod(0)
    try:
        assert "UNDAUNTED_CHECKPOINT_UMASK" in refused(run("list", place))
    finally:
        Path(place).chmod(0o700)


def test_no_permission_as_the_system_says_it(tmp_path: Path, run: Any, monkeypatch: Any) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("undaunted.checkpointing.inspection.os.listdir", refuse)
    assert "UNDAUNTED_CHECKPOINT_UMASK" in refused(run("list", tmp_path))


def test_storage_that_does_not_answer(tmp_path: Path, run: Any, monkeypatch: Any) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(checkpoint, "_STALL_S", 0.1)
    monkeypatch.setattr(checkpoint._Work.__init__, "__defaults__", (0.1,))
    monkeypatch.setattr(inspection, "open_place", lambda _: release.wait(60))
    try:
        assert "has not answered" in refused(run("list", tmp_path))
    finally:
        release.set()


@needs_torch
@pytest.mark.e2e
def test_ctrl_c_in_an_export(saved: Path, tmp_path: Path) -> None:
    """The export is stopped as it writes, in a thread that goes on when the main one has heard."""
    out = tmp_path / "out"
    program = f"""
import os, signal, sys, threading
from undaunted.cli import main
real = os.write
waits = threading.Event()
def is_interrupted(thread):
    found = sys._current_exceptions()[thread]
    return isinstance(found[1] if isinstance(found, tuple) else found, KeyboardInterrupt)
def write(fd, content):
    if len(content) > 1000:
        main_thread = threading.main_thread().ident
        signal.pthread_kill(main_thread, signal.SIGINT)
        while not is_interrupted(main_thread):
            waits.wait(0.01)
        waits.wait(0.01)
    return real(fd, content)
import undaunted.checkpointing.export as export
export.os.write = write
sys.exit(main.main(["checkpoint", "export", {str(saved)!r}, "--safetensors", {str(out)!r}]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 130
    assert ended.stderr == ""
    assert list(tmp_path.iterdir()) == []


# --- elsewhere ------------------------------------------------------------------------------------


@pytest.fixture
def s3() -> Iterator[str]:
    with bucket() as url:
        yield url


@needs_torch
@pytest.mark.e2e
@pytest.mark.leaves("fds", "threads", "maps")
def test_an_object_store(s3: str, tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    from undaunted.checkpointing import Checkpointer

    url = f"{s3}/run"
    model = torch.nn.Linear(5, 3)
    assert "has no checkpoints" in refused(run("list", url))
    with Checkpointer(url, process_group="alone") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"model": model, "step": step})
    found = run("list", "--json", url).json
    assert [(one["step"], one["complete"]) for one in found["checkpoints"]] == [
        *((2, True), (1, True))
    ]
    assert run("verify", url, "all").code == 0
    assert "model.weight" in run("show", url).out
    assert [one["name"] for one in run("diff", "--json", url, "1", "2").json["differences"]] == [
        "step"
    ]
    assert run("export", url, "--safetensors", tmp_path / "out").code == 0
    weights = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert torch.equal(weights["weight"], model.weight.detach())
    assert "no such bucket" in refused(run("list", "s3://nowhere/run"))

    assert "--force" in refused(run("prune", "--keep", "1", url))
    assert run("prune", "--json", "--keep", "1", "--force", url).json["deleted"] == [1]
    assert [one["step"] for one in run("list", "--json", url).json["checkpoints"]] == [2]
    import fsspec

    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    (data,) = [path for path in fs.find(url) if path.endswith("distcp")]
    content = bytearray(fs.cat_file(data))
    content[70] ^= 1
    fs.pipe_file(data, bytes(content))
    assert run("verify", url).code == 1


@needs_torch
def test_a_file_url(place: str, run: Any) -> None:
    assert len(run("list", "--json", f"file://{place}").json["checkpoints"]) == 3


@needs_torch
def test_local_checkpoints(tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

    manager = LocalCheckpointManager(tmp_path / "disk", "my-run")
    for iteration in (5, 6):
        state = {"w": torch.ones(10), "step": iteration}
        manager.save(BasicTensorAwareStateDict(state), iteration, is_async=False)
    manager.close()
    for where in (tmp_path / "disk", tmp_path / "disk" / "my-run"):
        found = run("list", "--json", where).json
        assert found["kind"] == "local"
        newest = found["local"][0]
        assert (newest["iteration"], newest["ranks"], newest["found"]) == (6, 1, [0])
        assert newest["session"] == "my-run"
        assert "complete on this node" in run("list", where).out
    assert "LocalCheckpointManager" in refused(run("show", tmp_path / "disk"))
    (tmp_path / "disk" / ".ledger").touch()  # a job under the launcher has loaded from it
    assert run("list", "--json", tmp_path / "disk").json["kind"] == "local"
    assert run("verify", tmp_path / "disk").code == 0


@needs_torch
def test_verify_local_checkpoints(tmp_path: Path, run: Any) -> None:
    torch = pytest.importorskip("torch")
    from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

    disk = tmp_path / "disk"
    manager = LocalCheckpointManager(disk, keep=3)
    for iteration in (5, 6, 7):
        state = {"step": iteration, "a": torch.ones(3 << 20), "b": torch.ones(10)}
        manager.save(BasicTensorAwareStateDict(state), iteration, is_async=False)
    manager.close()
    assert "iteration 7: whole, complete on this node (1 file" in run("verify", disk).out
    found = run("verify", disk, "all", "--json").json["local"]
    assert [(one["iteration"], one["whole"]) for one in found] == [(7, True), (6, True), (5, True)]
    path, torn = (disk / f"0/iter_000000{iteration}_0_local.pt" for iteration in (6, 7))
    with path.open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"x")
    with torn.open("r+b") as file:
        file.truncate(1 << 20)

    done = run("verify", disk, "--json")
    assert done.code == 1
    (newest,) = done.json["local"]
    assert (newest["iteration"], newest["whole"], newest["saves"]) == (7, False, [])
    assert newest["damage"][0]["file"] == "0/iter_0000007_0_local.pt"
    (one,) = run("verify", disk, "6", "--json").json["local"]
    (damage,) = one["damage"]
    assert (damage["block"], damage["start"]) == (1, 8 << 20)
    assert damage["names"] == ["tensor 0", "tensor 1"]
    done = run("verify", disk, "all")
    assert (done.code, done.out.count(": damaged"), done.out.count(": whole")) == (1, 2, 1)
    assert "it has 5, 6, 7" in refused(run("verify", disk, "4"))


@needs_torch
def test_parts_of_ranks_of_other_nodes_are_not_damaged(tmp_path: Path, run: Any) -> None:
    from undaunted.checkpointing.local.folder import ShardFolder
    from undaunted.checkpointing.local.shard import Head, encode_head

    head = Head(
        format=1, iteration=5, rank=2, world_size=4, session="", save="s-1", saved_at=1.0,
        kind="", state=b"", tensors=[], data_bytes=0,
    )  # fmt: skip
    image = bytearray(encode_head(head).ljust(4096, b"\0"))
    ShardFolder(tmp_path, "", 2).write(memoryview(image), 4096, head, lambda _: None)
    done = run("verify", tmp_path)
    assert done.code == 0
    assert "has rank 2; ranks 0-1,3 must be on other nodes" in done.out
