"""What every storage has to do: test modules derive a class from `Conformance`."""

from __future__ import annotations

import mmap
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.checkpointing.errors import DamagedCheckpointError, StaleEpochError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.manifest import File, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.checkpointing.files.storage import Storage

BLOCK = 8192
SIZE = 3 * BLOCK + 100
# Any order and any size of them.
STEPS = [0, 7, 100, 123_456_789_012]


def content(seed: int, size: int = SIZE) -> bytes:
    return (b"%d," % seed * size)[:size]


def arena(size: int) -> memoryview:
    """Memory at the beginning of a page."""
    return memoryview(mmap.mmap(-1, size))


def checksums(data: bytes) -> str:
    return "".join(
        f"{zlib.crc32(data[start : start + BLOCK]):08x}" for start in range(0, len(data), BLOCK)
    )


def ignore(count: int) -> None:
    """Nobody wants to know how far it is."""


def write_attempt(
    storage: Storage,
    step: int,
    session: str = "s1",
    number: int = 0,
    seed: int = 0,
    wrote: Callable[[int], None] = ignore,
) -> tuple[str, dict[str, File]]:
    """Writes two data files, as two ranks would, and a small one."""
    target = storage.target(step, session, number)
    files = {}
    memory = arena(1 << 20)
    for rank in range(2):
        image = Image(f"__{rank}_0.distcp", 4096 * (1 + 20 * rank), SIZE)
        data = content(seed + rank)
        memory[image.offset : image.offset + SIZE] = data
        crc32 = storage.write(target, image, memory, wrote)
        files[image.name] = File(size=SIZE, crc32=crc32)
    metadata = b"meta%d" % seed
    storage.write_small(target, ".metadata", metadata)
    files[".metadata"] = File(size=len(metadata), crc32=checksums(metadata))
    return target, files


def manifest_of(
    step: int, files: dict[str, File], session: str = "s1", number: int = 0, epoch: int = 0
) -> Manifest:
    return Manifest(
        format=1,
        step=step,
        epoch=epoch,
        world_size=2,
        session=session,
        attempt=number,
        structure="abc",
        block_bytes=BLOCK,
        files=files,
        saved_at=0.0,
        writer="test",
    )


def save(storage: Storage, step: int, **settings: Any) -> Manifest:
    epoch = settings.pop("epoch", 0)
    target, files = write_attempt(storage, step, **settings)
    settings.pop("seed", None)
    manifest = manifest_of(step, files, epoch=epoch, **settings)
    storage.commit(target, manifest)
    return manifest


def read(storage: Storage, step: int, name: str, offset: int = 0, size: int = SIZE) -> bytes:
    buffer = bytearray(size)
    with closing(storage.open(step, name)) as file:
        file.read_into(offset, memoryview(buffer))
    return bytes(buffer)


class _Shut:
    """A gate that lets nothing through."""

    def __enter__(self) -> None:
        raise PermissionError

    def __exit__(self, *_: object) -> None: ...


class Conformance:
    """Fixtures that a derived class has: `make`, a function that returns a new storage of the same
    place, for the run of that name; with blocks of `BLOCK` bytes.
    """

    def put(self, storage: Storage, step: int, name: str, data: bytes | None) -> None:
        """Overwrites a file of a committed checkpoint, or removes it."""
        raise NotImplementedError

    def all(self, storage: Storage) -> dict[str, bytes]:
        """Returns all files there are, by their paths."""
        raise NotImplementedError

    def put_manifest(self, storage: Storage, step: int, data: bytes) -> None:
        self.put(storage, step, "undaunted.json", data)

    def end(self, storage: Storage) -> None:
        """Ends the session that this storage was used by."""
        storage.close()

    @pytest.fixture
    def storage(self, make: Any) -> Any:
        with closing(make()) as storage:
            yield storage

    def test_what_was_committed_is_found_and_read(self, storage: Storage) -> None:
        for number, step in enumerate(reversed(STEPS)):
            save(storage, step, number=number, seed=step % 97)
        assert storage.steps() == STEPS
        for step in STEPS:
            manifest = storage.manifest(step)
            assert manifest.step == step
            assert set(manifest.files) == {"__0_0.distcp", "__1_0.distcp", ".metadata"}
            for rank in range(2):
                name = f"__{rank}_0.distcp"
                data = content(step % 97 + rank)
                assert read(storage, step, name) == data
                assert read(storage, step, name, 5, 1000) == data[5:1005]
                assert manifest.files[name] == File(size=SIZE, crc32=checksums(data))
            assert read(storage, step, ".metadata", 0, 4) == b"meta"

    def test_an_empty_place_has_no_steps(self, storage: Storage) -> None:
        assert storage.steps() == []

    def test_who_looks_writes_nothing(self, make: Any) -> None:
        with closing(make()) as one, closing(make()) as other:
            assert one.steps() == []
            with pytest.raises(DamagedCheckpointError):
                one.manifest(3)
            assert other.sweep("s9") == []

    def test_a_ledger(self, make: Any) -> None:
        with closing(make()) as storage:
            assert storage.read_ledger() == b""
            save(storage, 3)
            for text in (b"one\n", b"one\ntwo\n"):
                storage.write_ledger(text)
                assert storage.read_ledger() == text
            assert storage.steps() == [3]
        with closing(make()) as other:
            other.sweep("s9")
            assert other.read_ledger() == b"one\ntwo\n"

    def test_nothing_is_found_before_the_commit(self, make: Any) -> None:
        with closing(make()) as writer, closing(make()) as reader:
            target, files = write_attempt(writer, 100)
            assert reader.steps() == []
            writer.commit(target, manifest_of(100, files))
            assert reader.steps() == [100]

    def test_what_the_gate_refuses_does_not_exist(self, storage: Storage) -> None:
        before = save(storage, 100)
        target, files = write_attempt(storage, 100, number=1, seed=3)
        with pytest.raises(PermissionError):
            storage.commit(target, manifest_of(100, files, number=1), _Shut())
        assert storage.manifest(100) == before

    def test_what_was_given_up_is_removed(self, storage: Storage) -> None:
        before = save(storage, 100)
        committed = set(self.all(storage))
        target, _ = write_attempt(storage, 100, number=1)
        storage.discard(target, ["__1_0.distcp", "never-written"])
        left = {path.rpartition("/")[2] for path in set(self.all(storage)) - committed}
        assert left == {"__0_0.distcp", ".metadata"}
        for _ in range(2):  # the second time nothing is there
            storage.discard(target)
            storage.discard(target, ["__0_0.distcp"])
            assert set(self.all(storage)) == committed
        assert [leftover.name for leftover in storage.leftovers()] == []
        assert storage.manifest(100) == before

    @pytest.mark.parametrize("target", ["{place}", "{place}/step-00000100", "{place}x/y", "/"])
    def test_only_what_was_given_up_is_removed(self, storage: Storage, target: str) -> None:
        before = save(storage, 100)
        with pytest.raises(ValueError, match="attempt"):
            storage.discard(target.format(place=storage.place))
        assert storage.manifest(100) == before

    def test_an_empty_file(self, storage: Storage) -> None:
        target = storage.target(1, "s1", 0)
        crc32 = storage.write(target, Image("empty", 0, 0), arena(4096), ignore)
        storage.write_small(target, "small", b"")
        empty = File(size=0, crc32=crc32)
        storage.commit(target, manifest_of(1, {"empty": empty, "small": empty}))
        assert storage.manifest(1).files["empty"] == File(size=0, crc32="")

    def test_reading_beyond_the_end_is_an_error(self, storage: Storage) -> None:
        save(storage, 1)
        with pytest.raises((EOFError, OSError)):
            read(storage, 1, "__0_0.distcp", SIZE - 10, 20)

    def test_a_step_that_is_saved_again_is_replaced(self, storage: Storage) -> None:
        save(storage, 100, number=0, seed=1)
        save(storage, 100, number=1, seed=5)
        assert storage.steps() == [100]
        assert read(storage, 100, "__0_0.distcp") == content(5)
        assert storage.manifest(100).attempt == 1
        storage.delete(100)
        assert storage.steps() == []

    def test_one_that_is_not_trusted_is_kept_when_its_step_is_saved_again(self, make: Any) -> None:
        with closing(make()) as storage:
            save(storage, 100, number=0, seed=1)
            target, files = write_attempt(storage, 100, number=1, seed=5)
            storage.commit(target, manifest_of(100, files, number=1), aside=True)
            assert read(storage, 100, "__0_0.distcp") == content(5)
            assert storage.steps() == [100]
            (aside,) = storage.kept_aside()
            assert aside.step == 100
            assert aside.size >= 2 * len(content(1))
            storage.delete(100)
            storage.sweep("s9")
            assert storage.kept_aside() == [aside]
            assert storage.steps() == []
            kept = {name.rpartition("/")[2]: data for name, data in self.all(storage).items()}
            assert kept["__0_0.distcp"] == content(1)
            named = [name for name in self.all(storage) if "doubted-step-00000100." in name]
            assert named
            (manifest,) = [data for data in kept.values() if b'"structure"' in data]
            assert b'"attempt":0' in manifest.replace(b" ", b"")

    def test_delete(self, storage: Storage) -> None:
        for number, step in enumerate((100, 200)):
            save(storage, step, number=number)
        storage.delete(100)
        assert storage.steps() == [200]
        assert read(storage, 200, "__0_0.distcp") == content(0)
        with pytest.raises(FileNotFoundError):
            storage.delete(100)

    def test_what_is_written_is_counted(self, storage: Storage) -> None:
        counts: list[int] = []
        write_attempt(storage, 1, wrote=counts.append)
        assert sum(counts) == 2 * SIZE
        assert len(counts) >= 2

    def test_a_write_can_be_given_up(self, storage: Storage) -> None:
        def stop(count: int) -> None:
            raise InterruptedError("enough")

        with pytest.raises(InterruptedError, match="enough"):
            write_attempt(storage, 1, wrote=stop)
        assert storage.steps() == []

    def test_an_attempt_that_is_written_again(self, storage: Storage) -> None:
        write_attempt(storage, 1, seed=3)
        save(storage, 1, seed=4)
        assert read(storage, 1, "__0_0.distcp") == content(4)

    @pytest.mark.parametrize("what", ["missing", "shorter", "longer"])
    def test_damage_is_seen_without_reading_data(self, storage: Storage, what: str) -> None:
        save(storage, 100)
        damaged = {"missing": None, "shorter": b"x", "longer": content(0) + b"x"}[what]
        self.put(storage, 100, "__1_0.distcp", damaged)
        with pytest.raises(DamagedCheckpointError, match=r"__1_0\.distcp") as caught:
            storage.manifest(100)
        assert "__1_0.distcp" in caught.value.path

    @pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 100])
    def test_a_damaged_manifest(self, storage: Storage, data: bytes) -> None:
        save(storage, 100)
        self.put_manifest(storage, 100, data)
        with pytest.raises(DamagedCheckpointError):
            storage.manifest(100)

    def test_all_files_have_to_be_there(self, storage: Storage) -> None:
        target, files = write_attempt(storage, 100)
        files["__2_0.distcp"] = File(size=10, crc32="00000000")
        with pytest.raises(OSError, match=r"__2_0\.distcp"):
            storage.commit(target, manifest_of(100, files))
        assert storage.steps() == []

    def test_an_older_round_is_refused(self, make: Any) -> None:
        with closing(make("run1")) as old, closing(make("run1")) as new:
            old.raise_epoch(4)
            save(old, 100, session="s4", epoch=4, seed=1)
            late = write_attempt(old, 100, session="s4", number=1, seed=2)
            new.raise_epoch(5)
            with pytest.raises(StaleEpochError, match=r"round epoch 5 of run 'run1' has begun"):
                old.commit(late[0], manifest_of(100, late[1], "s4", 1, epoch=4))
            assert new.steps() == [100]
            assert read(new, 100, "__0_0.distcp") == content(1)
            save(new, 200, session="s5", epoch=5)
            assert new.steps() == [100, 200]

    def test_a_job_may_be_started_again_under_its_name(self, make: Any) -> None:
        with closing(make("run1")) as former, closing(make("run1")) as again:
            former.raise_epoch(9)
            left = write_attempt(former, 100, session="s1", number=1)
            again.raise_epoch(1)
            save(again, 50, session="s2", epoch=1)
            with pytest.raises(StaleEpochError, match="round epoch 1 of run 'run1' has begun"):
                former.commit(left[0], manifest_of(100, left[1], "s1", 1, epoch=9))
            assert again.steps() == [50]

    def test_rounds_of_other_runs_do_not_matter(self, make: Any) -> None:
        with closing(make("run1")) as one, closing(make("run2")) as two, closing(make()) as three:
            one.raise_epoch(7)
            two.raise_epoch(3)
            three.raise_epoch(0)
            save(one, 1, session="s1", epoch=7)
            save(two, 2, session="s2", epoch=3)
            save(three, 3, session="s3", epoch=0)
            assert one.steps() == [1, 2, 3]

    def test_what_ended_sessions_left_is_swept(self, make: Any) -> None:
        with closing(make()) as one, closing(make()) as two:
            assert one.sweep("s1") == []
            save(one, 100, number=0)
            write_attempt(one, 200, number=1)
            assert two.sweep("s2") == []
            target, files = write_attempt(two, 200, session="s2")
            self.end(one)
            with closing(make()) as three:
                assert len(three.sweep("s3")) == 1
                assert three.sweep("s3") == []
            assert two.steps() == [100]
            assert read(two, 100, "__0_0.distcp") == content(0)
            two.commit(target, manifest_of(200, files, "s2"))
            assert two.steps() == [100, 200]

    @pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
    def test_files_stay_in_their_place(self, storage: Storage, name: str) -> None:
        target = storage.target(1, "s1", 0)
        with pytest.raises(ValueError, match="cannot be the name"):
            storage.write_small(target, name, b"")
        with pytest.raises(ValueError, match="cannot be the name"):
            storage.write(target, Image(name, 0, 1), arena(4096), ignore)
        save(storage, 1)
        with pytest.raises(ValueError, match="cannot be the name"):
            storage.open(1, name)

    def test_other_targets_are_refused(self, storage: Storage) -> None:
        for target in ("/elsewhere/.step-00000001.s1-0", f"{storage.place}/x", storage.place):
            with pytest.raises(ValueError, match="not the"):
                storage.write_small(target, "x", b"")
        for step, session, attempt in ((-1, "s", 0), (1, "a/b", 0), (1, "s", -1)):
            with pytest.raises(ValueError, match=r"at least 0|session"):
                storage.target(step, session, attempt)

    def test_locate_is_where_the_files_are(self, storage: Storage) -> None:
        save(storage, 100)
        assert storage.locate(100).startswith(storage.place)
        assert "step-00000100" in storage.locate(100)

    def test_close_again_and_again(self, storage: Storage) -> None:
        storage.sweep("s1")
        storage.close()
        storage.close()
