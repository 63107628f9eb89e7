"""Object stores: a folder and memory as fsspec has them, and a server that speaks S3."""

from __future__ import annotations

import json
import socket
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.buckets import bucket
from tests.checkpointing.files.conformance import (
    BLOCK,
    Conformance,
    arena,
    content,
    ignore,
    manifest_of,
    read,
    save,
    write_attempt,
)
from undaunted.checkpointing.files.objects import ObjectStorage
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.names import step as step_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., ObjectStorage]

fsspec = pytest.importorskip("fsspec")
# The clients keep a thread, connections and semaphores until the process ends.
pytestmark = pytest.mark.leaves("fds", "threads", "maps")


def maker(url: str) -> Make:
    return lambda run="", **more: ObjectStorage(url, run, block_bytes=BLOCK, **more)


class Objects(Conformance):
    def put(self, storage: Any, step: int, name: str, data: bytes | None) -> None:
        path = f"{storage.locate(step)}/{name}"
        if name == "undaunted.json":
            path = f"{storage.place}/{step_name(step)}.json"
        fs, path = fsspec.core.url_to_fs(path)
        if data is None:
            fs.rm(path)
        else:
            fs.pipe_file(path, data)

    def all(self, storage: Any) -> dict[str, bytes]:
        fs, root = fsspec.core.url_to_fs(storage.place)
        fs.invalidate_cache()
        return {path: fs.cat_file(path) for path in fs.find(root)}

    def test_what_is_not_trusted_is_not_swept_however_old_it_is(self, make: Any) -> None:
        with closing(make(abandoned_after_s=0.0)) as storage:
            save(storage, 100, number=0)
            target, files = write_attempt(storage, 100, number=1)
            storage.commit(target, manifest_of(100, files, number=1), aside=True)
            write_attempt(storage, 100, number=2)
            assert storage.sweep("s2") == ["step-00000100/s1-2"]
            assert storage.leftovers() == []

    def test_what_ended_sessions_left_is_swept(self, make: Any) -> None:
        """Nobody can tell which have ended: age decides."""
        with closing(make()) as one, closing(make(abandoned_after_s=0.0)) as two:
            save(one, 100, number=0)
            write_attempt(one, 200, number=1)
            write_attempt(one, 100, number=2)
            assert two.sweep("s1") == []
            assert one.sweep("s2") == []
            assert two.sweep("s2") == ["step-00000100/s1-2", "step-00000200/s1-1"]
            assert two.sweep("s2") == []
            assert one.steps() == [100]
            assert one.manifest(100).attempt == 0

    def test_a_replaced_one_leaves_nothing(self, make: Any) -> None:
        with closing(make()) as storage:
            save(storage, 100, number=0)
            save(storage, 100, number=1)
            storage.delete(100)
            fs, root = fsspec.core.url_to_fs(storage.place)
            fs.invalidate_cache()
            assert fs.find(root) == []

    def test_a_damaged_manifest_can_be_deleted_and_replaced(self, storage: Any) -> None:
        save(storage, 100)
        self.put_manifest(storage, 100, b"?")
        save(storage, 100, number=1, seed=4)
        assert read(storage, 100, "__0_0.distcp") == content(4)
        self.put_manifest(storage, 100, b"?")
        storage.delete(100)
        assert storage.steps() == []

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("layers=[2,2]", "layers=2"),
            ("a*", "ab"),
            ("a?", "ab"),
            ("{a,b}", "a"),
            ("[!b]", "a"),
            ("**", "a"),
            ("a", "ab"),
            ("a b#%20&", "a b"),
        ],
    )
    def test_no_name_is_a_pattern(self, make: Any, name: str, other: str) -> None:
        place = make().place
        with (
            closing(ObjectStorage(f"{place}/{other}", block_bytes=BLOCK)) as theirs,
            closing(
                ObjectStorage(f"{place}/{name}", block_bytes=BLOCK, abandoned_after_s=0.0)
            ) as mine,
        ):
            save(theirs, 1)
            write_attempt(theirs, 2, session="s5")
            save(mine, 1)
            save(mine, 1, number=1, seed=4)
            save(mine, 2, number=2)
            write_attempt(mine, 3, number=3)
            assert mine.steps() == [1, 2]
            assert read(mine, 1, "__0_0.distcp") == content(4)
            assert mine.sweep("s2") == ["step-00000003/s1-3"]
            mine.delete(1)
            mine.delete(2)
            fs, root = fsspec.core.url_to_fs(place)
            fs.invalidate_cache()
            left = [path.removeprefix(f"{root}/").partition("/")[0] for path in fs.find(root)]
            assert left == [other] * 7
            assert theirs.manifest(1).step == 1

    def test_large_objects_go_in_parts(self, make: Any) -> None:
        storage = make(part_bytes=5 << 20, threads=2)
        size = (11 << 20) + 77
        memory = arena(size + 4096)
        memory[:size] = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        counts: list[int] = []
        target = storage.target(1, "s1", 0)
        crc32 = storage.write(target, Image("big", 0, size), memory, counts.append)
        assert len(counts) == 3
        assert sum(counts) == size
        assert crc32[:8] == f"{zlib.crc32(memory[:BLOCK]):08x}"
        assert len(crc32) == 8 * -(-size // BLOCK)
        fs, path = fsspec.core.url_to_fs(f"{target}/big")
        assert fs.cat_file(path) == bytes(memory[:size])

        def stop(count: int) -> None:
            raise InterruptedError("enough")

        with pytest.raises(InterruptedError):
            storage.write(target, Image("never", 0, size), memory, stop)
        fs.invalidate_cache()
        assert [one.rpartition("/")[2] for one in fs.find(path.rpartition("/")[0])] == ["big"]


class TestFile(Objects):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return maker(f"file://{tmp_path}/checkpoints")

    # A local file is there while it is written; for file:// a user gets a folder's storage.
    test_large_objects_go_in_parts = None  # type: ignore[assignment]


class TestMemory(Objects):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Make]:
        yield maker(f"memory://{tmp_path}/checkpoints")
        fs = fsspec.filesystem("memory")
        for path in fs.find(str(tmp_path)):
            fs.rm(path)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with bucket() as url:
        yield url


@pytest.mark.e2e
class TestS3(Objects):
    @pytest.fixture
    def make(self, s3: str, tmp_path: Path) -> Make:
        return maker(f"{s3}{tmp_path}/checkpoints")

    def test_a_bucket_that_does_not_exist_is_named(self, make: Any) -> None:
        make().sweep("s1")  # empty, but there
        with pytest.raises(FileNotFoundError, match=r"no such bucket.*'not-there'"):
            ObjectStorage("s3://not-there/x").sweep("s1")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its client reads its settings once in a process."""
    pytest.importorskip("multistorageclient")
    base = tmp_path_factory.mktemp("msc")
    settings = {"type": "file", "options": {"base_path": str(base)}}
    config = base / "msc.json"
    config.write_text(json.dumps({"profiles": {"here": {"storage_provider": settings}}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSC_CONFIG", str(config))
        yield "msc://here"


class TestMultiStorageClient(Objects):
    """Is no dependency of the tests: pip install multi-storage-client."""

    @pytest.fixture
    def make(self, profile: str, tmp_path: Path) -> Make:
        return maker(f"{profile}/{tmp_path.name}/checkpoints")


@pytest.mark.e2e
def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself would wait for ever when it has asked whether it may send."""
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "x")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        storage = ObjectStorage("s3://bucket/silent", timeout_s=0.3)
        target = storage.target(1, "s", 0)
        for ask in (
            lambda: storage.write_small(target, "a", b"x"),
            lambda: storage.write(target, Image("a", 0, 1), arena(4096), ignore),
            storage.steps,
            lambda: storage.open(1, "a"),
        ):
            with pytest.raises(TimeoutError, match=r"within 0\.3 s: 'bucket/silent"):
                ask()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_an_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="nothing"):
        ObjectStorage("nothing://x")
