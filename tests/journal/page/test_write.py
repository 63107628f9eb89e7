"""Tests of `undaunted.journal.page.write`."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
from html.parser import HTMLParser

import pytest

from tests.journal.page.jobs import hostile, whole
from undaunted.journal.page.write import page, write_page


class Seen(HTMLParser):
    """Elements, attributes and the texts of scripts and styles."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.contents: dict[str, list[str]] = {}
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag in ("script", "style"):
            self.contents.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        self.open.append(f"/{tag}")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.contents[self.open[-1]][-1] += data


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_the_page_is_for_the_umask_to_say(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_page(*whole(), tmp_path / "report.html")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == mode


def test_the_file_is_replaced(tmp_path):
    file = tmp_path / "report.html"
    for _ in range(2):
        write_page(*whole(), file)
    assert file.read_text().startswith("<!doctype html>")
    assert [one.name for one in file.parent.iterdir()] == ["report.html"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "link").symlink_to("report.html")
    write_page(*whole(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb") as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        write_page(*whole(), pipe)
        assert os.read(reader.fileno(), 15) == b"<!doctype html>"
    assert pipe.is_fifo()
    with pytest.raises(IsADirectoryError):
        write_page(*whole(), tmp_path)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_page(*whole(), tmp_path / "file" / "report.html")


def test_every_slot_is_filled():
    assert not re.search(r"\{\{\w+\}\}", page(*whole()))


def test_nothing_is_loaded_from_anywhere():
    seen = Seen(page(*whole()))
    loading = {"src", "href", "srcset", "action", "poster", "data", "background"}
    assert not [one for one in seen.tags if loading & one[1].keys()]
    style = seen.contents["style"][0]
    assert "url(" not in style
    assert "@import" not in style


def test_only_our_script_and_style_may_run():
    seen = Seen(page(*whole()))
    policy = next(a["content"] for tag, a in seen.tags if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'; ")
    for kind, content in (
        ("script", seen.contents["script"][1]),
        ("style", seen.contents["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not [a for _, a in seen.tags if any(name.startswith("on") for name in a)]
    assert not [a for _, a in seen.tags if "style" in a]


def test_hostile_text_stays_text():
    calm, made = Seen(page(*whole())), Seen(page(*hostile()))
    assert {tag for tag, _ in made.tags} == {tag for tag, _ in calm.tags}
    assert len(made.contents["script"]) == 2
    assert made.contents["script"][1] == calm.contents["script"][1]
    text = page(*hostile())
    assert not set("\u2028\u2029\x1b\x00\u202e") & set(text)
    text.encode()
    data = json.loads(made.contents["script"][0])
    assert any("</script><img" in one for one in data["text"])
    assert "{{data}}" in text  # what looks like a slot is not filled


def test_the_data_is_that_of_the_job():
    data = json.loads(Seen(page(*whole())).contents["script"][0])
    assert data["format"] == 1
    assert data["length"] == 9003


def test_the_page_does_not_grow_without_need():
    assert len(page(*whole())) < 80_000
