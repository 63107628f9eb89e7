from __future__ import annotations

import datetime as dt
from contextlib import nullcontext

import pytest

from undaunted.checkpointing.files.remote import Remote, RemoteObject, naming

pytest.importorskip("fsspec")


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (RuntimeError("no route"), OSError, "[Errno 5] RuntimeError: no route: 'a/b'"),
        (PermissionError("Access Denied"), PermissionError, "[Errno 5] Access Denied: 'a/b'"),
        (FileNotFoundError("x"), FileNotFoundError, "[Errno 2] no such object: 'a/b'"),
        (OSError(28, "No space"), OSError, "[Errno 28] No space: 'a/b'"),
        (OSError(28, "No space", "c"), OSError, "[Errno 28] No space: 'c'"),
        (KeyError("x"), OSError, "[Errno 5] KeyError: 'x': 'a/b'"),
    ],
)
def test_errors_name_the_object(raised: Exception, kind: type[OSError], said: str) -> None:
    with pytest.raises(kind) as caught, naming("a/b"):
        raise raised
    assert type(caught.value) is kind
    assert str(caught.value) == said


class Client:
    """Has one object under each of the names by which clients say when it was written."""

    def __init__(self, when: tuple[str, object]) -> None:
        self.info = {"name": "x/a", "type": "file", "size": None, when[0]: when[1]}

    def invalidate_cache(self) -> None:
        """Nothing is cached."""

    def ls(self, path: str, detail: bool) -> list[object]:
        return [self.info, {"name": "x/b", "type": "directory", "size": 0}]


@pytest.mark.parametrize(
    "when",
    [
        ("mtime", 86_400.0),
        ("LastModified", dt.datetime(1970, 1, 2, tzinfo=dt.UTC)),
        ("created", dt.datetime(1970, 1, 2)),
        ("updated", "yesterday"),
    ],
)
def test_when_objects_were_written(
    monkeypatch: pytest.MonkeyPatch, when: tuple[str, object]
) -> None:
    remote = Remote("memory://x", 1.0)
    monkeypatch.setattr(remote, "fs", Client(when))
    known = None if when[0] == "updated" else dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    assert remote.within("x") == {"x/a": RemoteObject(0, known)}


@pytest.mark.parametrize(("url", "missed"), [("s3://b/x", True), ("memory://b/x", False)])
def test_a_bucket_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, url: str, missed: bool
) -> None:
    asked: list[str] = []
    answers: list[OSError] = [FileNotFoundError("b"), PermissionError("may not ask")]

    class NoBucket:
        def info(self, path: str) -> None:
            asked.append(path)
            raise answers[len(asked) - 1]

    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **_: (NoBucket(), "b/x"))
    remote = Remote(url, 1.0)
    with pytest.raises(FileNotFoundError, match="no such bucket") if missed else nullcontext():
        remote.check_bucket()
    remote.check_bucket()
    assert asked == (["b", "b"] if missed else [])


def test_a_users_settings_of_fsspec_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    seen = {}

    def url_to_fs(url: str, **settings: object) -> tuple[object, str]:
        seen[url] = settings
        return None, url

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    Remote("s3://a", 1.0)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {}})
    Remote("s3://b", 1.0)
    assert seen["s3://a"]["config_kwargs"]["connect_timeout"] == 10
    assert seen["s3://b"] == {}
