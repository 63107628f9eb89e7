"""Calls of an object store that end in time and fail with an OSError that names the object."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.checkpointing.files.sharing import share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What the clients offer against waiting for ever. A user's own settings of fsspec come first.
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 30,
            "retries": {"total_max_attempts": 1},  # s3fs itself tries again
        }
    },
    "gs": {"timeout": 30},
    "file": {"auto_mkdir": True},
}
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs")
# Objects that are removed at the same time, where the client can do that.
_REMOVING = 8
# Under these names the clients say when an object was written.
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated", "created")


class Found(NamedTuple):
    """An object.

    Attributes:
        size: bytes.
        written: when, by the store's clock; None = it does not say.
    """

    size: int
    written: dt.datetime | None


class Remote:
    """A file system of fsspec.

    Attributes:
        fs: itself.
        root: what a URL is to it.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Open it; nothing is sent yet.

        Args:
            url: such as ``s3://bucket/run1``.
            timeout_s: for each call, in seconds. Clients that are not asynchronous have no limits
                but their own.

        Raises:
            ValueError: fsspec, or what it needs for this URL, is not installed; or it is no URL.
        """
        try:
            import fsspec
        except ImportError as error:
            raise ValueError(
                f"{url}: fsspec is not installed: pip install 'undaunted[object]'"
            ) from error
        protocol = url.partition("://")[0]
        own = fsspec.config.conf.get(protocol, {})
        settings = _SETTINGS.get(protocol, {}).items()
        try:
            self.fs, root = fsspec.core.url_to_fs(
                url, **{name: value for name, value in settings if name not in own}
            )
        except ImportError as error:
            raise ValueError(f"{url}: {error}") from error
        self.root: str = root.rstrip("/")
        self._protocol = protocol
        self._timeout_s = timeout_s

    def check_bucket(self) -> None:
        """Raise FileNotFoundError if there is no such bucket, where a store has buckets."""
        if self._protocol not in _WITH_BUCKETS:
            return
        bucket = self.root.partition("/")[0]
        try:
            self.call("info", bucket)
        except FileNotFoundError as error:
            said = "there is no such bucket: create it, or correct the URL"
            raise FileNotFoundError(errno.ENOENT, said, bucket) from error
        except OSError:
            pass  # this user may not ask

    def put(self, path: str, content: bytes) -> None:
        """Write an object; it is there when all of it is."""
        self.call("pipe_file", path, content)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or what there is of it in that range."""
        content: bytes = self.call("cat_file", path, start=start, end=end)
        return content

    def remove(self, path: str) -> None:
        """Remove an object. Its name is no pattern, as it is to fsspec's ``rm``."""
        self.call("rm_file", path)

    def remove_below(self, path: str) -> None:
        """Remove all objects in a folder, and in the folders in it."""
        paths = list(self.below(path))
        asynchronous = getattr(self.fs, "async_impl", False)

        def remove(numbers: Iterator[int]) -> None:
            for number in numbers:
                with contextlib.suppress(FileNotFoundError):
                    self.remove(paths[number])

        share(len(paths), _REMOVING if asynchronous else 1, "undaunted-remove", remove)
        if not asynchronous:  # some of these have real folders
            with contextlib.suppress(Exception):
                self.call("rmdir", path)

    def below(self, path: str) -> dict[str, Found]:
        """Return all objects whose names begin with that of a folder."""
        self.fs.invalidate_cache()
        try:
            found = self.call("find", path, detail=True)
        except FileNotFoundError:
            return {}
        objects = _objects(found.values()).items()
        return {name: one for name, one in objects if name.startswith(f"{path}/")}

    def within(self, path: str) -> dict[str, Found]:
        """Return the objects in a folder, not those in the folders in it."""
        self.fs.invalidate_cache()
        try:
            return _objects(self.call("ls", path, detail=True))
        except FileNotFoundError:
            return {}

    def call(self, name: str, path: str, *args: Any, **named: Any) -> Any:
        """Call a function of the file system that takes a path first."""
        with naming(path):
            return self.bounded(name, path, *args, **named)

    def bounded(self, name: str, *args: Any, **named: Any) -> Any:
        """Call any function of the file system; errors are the client's."""
        fs = self.fs
        function = getattr(fs, f"_{name}", None) if getattr(fs, "async_impl", False) else None
        if function is None:
            return getattr(fs, name)(*args, **named)
        import asyncio

        future = asyncio.run_coroutine_threadsafe(function(*args, **named), fs.loop)
        try:
            return future.result(self._timeout_s)
        except BaseException as error:
            unfinished = not future.done()
            future.cancel()
            if unfinished and isinstance(error, Exception):
                raise TimeoutError(
                    errno.ETIMEDOUT, f"the store has not answered within {self._timeout_s:g} s"
                ) from None
            raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Clients raise what they like: make OSErrors of it that name the object."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object", path) from error
    except OSError as error:
        if error.filename is not None:
            raise
        kind = type(error) if type(error) in (PermissionError, TimeoutError) else OSError
        raise kind(error.errno or errno.EIO, error.strerror or str(error), path) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


def _objects(found: Any) -> dict[str, Found]:
    return {
        one["name"]: Found(int(one["size"] or 0), _written(one))
        for one in found
        if one["type"] == "file"
    }


def _written(info: Mapping[str, Any]) -> dt.datetime | None:
    for name in _WRITTEN:
        when = info.get(name)
        if isinstance(when, (int, float)):
            return dt.datetime.fromtimestamp(when, dt.UTC)
        if isinstance(when, dt.datetime):
            return when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return None
