"""Reading checkpoints: metadata kept in memory, everything verified."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from undaunted.checkpointing.async_ckpt import (  # noqa: E402
    cached_metadata_filesystem_reader as module,
)
from undaunted.checkpointing.async_ckpt import core  # noqa: E402
from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (  # noqa: E402
    CachedMetadataFileSystemReader,
)
from undaunted.checkpointing.async_ckpt.core import AsyncRequest  # noqa: E402
from undaunted.checkpointing.async_ckpt.filesystem_async import (  # noqa: E402
    FileSystemWriterAsync,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (  # noqa: E402
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from undaunted.checkpointing.dcp import reader  # noqa: E402
from undaunted.checkpointing.dcp.reader import Verified  # noqa: E402
from undaunted.checkpointing.errors import DamagedCheckpointError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
STATE = {"weight": torch.arange(300.0), "bias": torch.ones(7), "step": 5}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    CachedMetadataFileSystemReader.clear_metadata_cache()
    yield
    core.close_pool()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "c", STATE)
    return tmp_path / "c"


def save(folder: Path, state: dict[str, Any]) -> None:
    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan(state, writer)
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    AsyncRequest(save, tuple(arguments), end, preload_fn=preload).execute_sync()


def load(folder: Path, **settings: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"weight": torch.zeros(300), "bias": torch.zeros(7), "step": 0}
    dcp.load(state, storage_reader=CachedMetadataFileSystemReader(folder, **settings))
    return state


def test_what_was_saved_is_read(folder: Path) -> None:
    loaded = load(folder)
    assert torch.equal(loaded["weight"], STATE["weight"])
    assert torch.equal(loaded["bias"], STATE["bias"])
    assert loaded["step"] == 5


def test_checkpoints_of_torch_are_read(tmp_path: Path) -> None:
    dcp.save(STATE, checkpoint_id=tmp_path / "c")
    assert torch.equal(load(tmp_path / "c")["weight"], STATE["weight"])


def test_metadata_are_read_once_until_the_folder_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    decode = module.decode_metadata

    def counting(content: bytes, path: str) -> Any:
        decoded.append(path)
        return decode(content, path)

    monkeypatch.setattr(module, "decode_metadata", counting)
    one = CachedMetadataFileSystemReader(folder).read_metadata()
    other = CachedMetadataFileSystemReader(f"{folder}/.").read_metadata()
    assert len(decoded) == 1
    assert one.storage_meta.load_id != other.storage_meta.load_id
    save(folder, {"new": torch.ones(2)})
    renewed = CachedMetadataFileSystemReader(folder).read_metadata()
    assert set(renewed.state_dict_metadata) == {"new"}
    CachedMetadataFileSystemReader(folder, cache_metadata=False).read_metadata()
    assert len(decoded) >= 3
    CachedMetadataFileSystemReader.clear_metadata_cache(folder)
    CachedMetadataFileSystemReader(folder).read_metadata()
    assert len(decoded) >= 4


def test_metadata_of_few_folders_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 1)
    for name in "ab":
        save(tmp_path / name, STATE)
        CachedMetadataFileSystemReader(tmp_path / name).read_metadata()
    assert [key.rpartition("/")[2] for key in CachedMetadataFileSystemReader._cache] == ["b"]


@pytest.mark.parametrize("at", [0, 70, 900, -1])
def test_a_flipped_bit_in_the_data_is_found_and_named(folder: Path, at: int) -> None:
    (path,) = folder.glob("*.distcp")
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(dcp.CheckpointException) as caught:
        load(folder)
    error = caught.value.failures[0][0]
    assert isinstance(error, DamagedCheckpointError)
    assert set(error.names) == {"weight", "bias", "step"}  # all of them are in one block
    assert "block 0" in str(error)


def test_files_that_are_cut_short_or_missing_are_found(folder: Path) -> None:
    (path,) = folder.glob("*.distcp")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(dcp.CheckpointException) as caught:
        load(folder)
    error = caught.value.failures[0][0]
    assert isinstance(error, DamagedCheckpointError)
    assert (error.path, error.block) == (str(path), 0)
    path.unlink()
    with pytest.raises(dcp.CheckpointException, match="__0_0"):
        load(folder)


@pytest.mark.parametrize("name", [".metadata", "undaunted.json"])
def test_a_flipped_bit_beside_the_data_is_found(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=name):
        CachedMetadataFileSystemReader(folder).read_metadata()


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code of the file ran",)


def test_metadata_do_not_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DamagedCheckpointError, match=r"builtins\.print"):
        CachedMetadataFileSystemReader(tmp_path).read_metadata()
    assert "ran" not in capsys.readouterr().out


class OwnMetadata(dcp.Metadata):  # type: ignore[misc, name-defined]
    pass


def test_classes_the_user_calls_safe_are_read(tmp_path: Path) -> None:
    own = OwnMetadata(state_dict_metadata={}, storage_data={})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(own))
    with pytest.raises(DamagedCheckpointError, match="OwnMetadata"):
        CachedMetadataFileSystemReader(tmp_path).read_metadata()
    with torch.serialization.safe_globals([OwnMetadata]):
        assert type(CachedMetadataFileSystemReader(tmp_path).read_metadata()) is OwnMetadata


def test_little_memory_is_needed_besides_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"weight {n}": torch.full((1000,), float(n)) for n in range(8)}
    save(tmp_path / "c", state)
    limit = 3 * 4600  # a tensor and what surrounds it
    monkeypatch.setattr(reader, "AT_ONCE_BYTES", limit)
    sizes: list[int] = []
    read = Verified.read

    def noted(self: Any, pieces: Any, *rest: Any) -> None:
        sizes.append(sum(len(piece.destination) for of in pieces.values() for piece in of))
        read(self, pieces, *rest)

    monkeypatch.setattr(Verified, "read", noted)
    loaded = {name: torch.zeros(1000, dtype=torch.float64) for name in state}
    dcp.load(loaded, storage_reader=CachedMetadataFileSystemReader(tmp_path / "c"))
    assert all(torch.equal(loaded[name], value.double()) for name, value in state.items())
    assert len(sizes) > 1
    assert max(sizes) <= limit
