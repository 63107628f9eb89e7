"""Certificates for the tests, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class Certificate(NamedTuple):
    """Signed by itself, thus its own authority."""

    cert: Path
    key: Path


def make_certificate(directory: Path, name: str, subject: str) -> Certificate:
    """``subject``: as openssl wants alternative names, for example ``IP:127.0.0.1``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command is not there")
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    options = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-keyout", str(made.key), "-out", str(made.cert)]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}"]
    subprocess.run(
        [openssl, "req", "-x509", *options.split(), *names, *files],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return made
