"""A bucket of S3, on a server of our own."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = itertools.count(1)
"""What one server of this process held, the next one holds, too."""


@contextmanager
def bucket() -> Iterator[str]:
    """Serve an empty bucket while the block runs. Returns its URL."""
    pytest.importorskip("s3fs")
    fsspec = pytest.importorskip("fsspec")
    serving = pytest.importorskip("moto.server").ThreadedMotoServer
    server = serving("127.0.0.1", port=0, verbose=False)
    server.start()
    filesystem = fsspec.get_filesystem_class("s3")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
            }.items():
                patch.setenv(name, value)
            filesystem.clear_instance_cache()
            name = f"bucket-{next(_NUMBERS)}"
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
            yield f"s3://{name}"
    finally:
        server.stop()
        filesystem.clear_instance_cache()
