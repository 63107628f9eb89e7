import pytest

from nvidia_resiliency_ext.shared_utils._messages import sources as sources_module
from nvidia_resiliency_ext.shared_utils._messages.sources import CHUNK_BYTES, Sources
from tests.leaks import count_fds


@pytest.fixture
def sources(tmp_path):
    sources = Sources(str(tmp_path), {})
    yield sources
    sources.close()


def test_only_message_files_by_age(tmp_path, sources):
    for name in ("rank_1_9.msg.20", "ft_rank_0_9.msg.3", "rank_1_9.msg", ".rank_0_1.msg.1", "log"):
        (tmp_path / name).touch()
    assert sources.look() == ["ft_rank_0_9.msg.3", "rank_1_9.msg.20"]


def test_whole_lines_once(tmp_path, sources):
    path = tmp_path / "rank_0_1.msg.1"
    path.write_bytes(b"one\ntwo\nthr")
    assert list(sources.read(path.name)) == [(0, b"one\ntwo\n")]
    assert list(sources.read(path.name)) == []
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert list(sources.read(path.name)) == [(8, b"three\n")]


def test_pieces_are_bounded(tmp_path, sources):
    path = tmp_path / "rank_0_1.msg.1"
    path.write_bytes(b"x" * (2 * CHUNK_BYTES) + b"\nshort\n")
    sizes = [len(data) for _, data in sources.read(path.name)]
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, 7]


def test_the_rest_of_a_removed_file_is_read(tmp_path, sources):
    path = tmp_path / "rank_0_1.msg.1"
    path.write_bytes(b"one\n")
    assert len(list(sources.read(path.name))) == 1
    with path.open("ab") as file:
        file.write(b"two\n")
    path.unlink()
    assert sources.look() == [path.name]
    assert list(sources.read(path.name)) == [(4, b"two\n")]
    assert sources.drop_removed() == [path.name]
    assert sources.look() == []


def test_few_files_are_open(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(sources_module, "_MOST_OPEN", 2)
    before = count_fds()
    for _ in range(2):
        for number in range(5):
            path = tmp_path / f"rank_{number}_1.msg.1"
            with path.open("ab") as file:
                file.write(b"line\n")
            assert [data for _, data in sources.read(path.name)] == [b"line\n"]
    assert count_fds() == before + 2


def test_a_symbolic_link_is_not_read(tmp_path, sources):
    (tmp_path / "secret").write_bytes(b"line\n")
    (tmp_path / "rank_0_1.msg.1").symlink_to(tmp_path / "secret")
    assert list(sources.read("rank_0_1.msg.1")) == []
