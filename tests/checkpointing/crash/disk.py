"""A record of what a program did to a folder, and what a loss of power may leave of it.

What is sure: the content of a file when it was synced last, and the entries of a folder when that
was synced last. Of later changes to a folder any number may have happened, in their order, and the
folders do not know of each other; that is weaker than what ext4 (data=ordered) or XFS promise. A
file that was never synced may be empty, full of zeros, or whole.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = 0


@dataclass
class Change:
    """An entry of a folder appears (`node`), disappears, or gets another name."""

    at: int
    folder: int
    name: str
    node: int | None
    former: str | None = None


@dataclass
class Sync:
    """What a node is, is sure from here on."""

    at: int
    node: int
    content: bytes | None


@dataclass
class Tree:
    """A state: entries of folders, contents of files."""

    folders: dict[int, dict[str, int]]
    files: dict[int, bytes]

    def key(self) -> str:
        return repr(self.describe(ROOT))

    def describe(self, node: int) -> Any:
        if node in self.files:
            return self.files[node]
        return sorted((name, self.describe(one)) for name, one in self.folders[node].items())

    def make(self, path: Path, node: int = ROOT) -> None:
        if node in self.files:
            path.write_bytes(self.files[node])
            return
        path.mkdir()
        for name, one in self.folders[node].items():
            self.make(path / name, one)


@dataclass
class Disk:
    """Records while it is patched in."""

    root: Path
    now: int = 0
    changes: list[Change] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    files: set[int] = field(default_factory=set)
    whole: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What is there already is sure."""
        self._numbers = itertools.count(ROOT)
        self.first = self._take(self.root)

    def _take(self, path: Path) -> Tree:
        tree = Tree({}, {})

        def take(one: Path) -> int:
            node = next(self._numbers)
            if one.is_dir():
                self.folders[node] = tree.folders[node] = {}
                for name in sorted(os.listdir(one)):
                    tree.folders[node][name] = take(one / name)
                self.folders[node] = dict(tree.folders[node])
            else:
                self.files.add(node)
                tree.files[node] = self.whole[node] = one.read_bytes()
            return node

        take(path)
        return tree

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.marks[name] = self.now

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Have everything pass through here."""
        real = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "replace")}
        real |= {name: getattr(os, name) for name in ("unlink", "rmdir", "fsync")}

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            known = None if named.get("dir_fd") is not None else self._find(path)
            fd: int = real["open"](path, flags, *rest, **named)
            if flags & os.O_CREAT and known is None and self._inside(path):
                self._add(path, folder=False)
            return fd

        def made(path: Any, *rest: Any, **named: Any) -> None:
            real["mkdir"](path, *rest, **named)
            self._add(path, folder=True)

        def renamed(source: Any, destination: Any) -> None:
            real["rename"](source, destination)
            self._rename(source, destination)

        def removed(call: str) -> Any:
            def remove(path: Any, *, dir_fd: int | None = None) -> None:
                if dir_fd is not None:
                    path = f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"
                self._keep(path)
                real[call](path)
                self._remove(path)

            return remove

        def synced(fd: int) -> None:
            real["fsync"](fd)
            self._sync(os.readlink(f"/proc/self/fd/{fd}"))

        patch.setattr(os, "open", opened)
        patch.setattr(os, "mkdir", made)
        patch.setattr(os, "rename", renamed)
        patch.setattr(os, "replace", renamed)
        patch.setattr(os, "unlink", removed("unlink"))
        patch.setattr(os, "rmdir", removed("rmdir"))
        patch.setattr(os, "fsync", synced)

    def _inside(self, path: Any) -> bool:
        return isinstance(path, str) and path.startswith(f"{self.root}/")

    def _find(self, path: Any) -> int | None:
        if path == str(self.root):
            return ROOT
        if not self._inside(path):
            return None
        node: int | None = ROOT
        for part in path[len(str(self.root)) + 1 :].split("/"):
            node = None if node is None else self.folders.get(node, {}).get(part)
        return node

    def _parent(self, path: str) -> int:
        node = self._find(path.rpartition("/")[0])
        assert node is not None, path
        return node

    def _change(self, folder: int, name: str, node: int | None, former: str | None = None) -> None:
        self.now += 1
        self.changes.append(Change(self.now, folder, name, node, former))
        entries = self.folders[folder]
        if former is not None:
            del entries[former]
        if node is None:
            del entries[name]
        else:
            entries[name] = node

    def _add(self, path: str, *, folder: bool) -> None:
        node = next(self._numbers)
        if folder:
            self.folders[node] = {}
        else:
            self.files.add(node)
        self._change(self._parent(path), _name(path), node)

    def _rename(self, source: str, destination: str) -> None:
        parent = self._parent(source)
        assert parent == self._parent(destination)
        node = self._find(source)
        self._change(parent, _name(destination), node, _name(source))

    def _remove(self, path: str) -> None:
        self._change(self._parent(path), _name(path), None)

    def _keep(self, path: str) -> None:
        """A file that is removed was whole before."""
        node = self._find(path)
        if node in self.files:
            self.whole[node] = Path(path).read_bytes()

    def _sync(self, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        self.now += 1
        content = Path(path).read_bytes() if node in self.files else None
        self.syncs.append(Sync(self.now, node, content))

    def finish(self) -> None:
        """Read what the files that are there now hold."""

        def read(node: int, path: Path) -> None:
            if node in self.files:
                self.whole[node] = path.read_bytes()
                return
            for name, one in self.folders[node].items():
                read(one, path / name)

        read(ROOT, self.root)

    def crashes(self) -> Iterator[tuple[int, Tree]]:
        """Every state that a loss of power may leave, with the moment; the same one only once."""
        seen = set()
        for moment in range(self.now + 1):
            for tree in self._left(moment):
                key = (tree.key(), moment >= self.marks.get("done", moment))
                if key not in seen:
                    seen.add(key)
                    yield moment, tree

    def _left(self, moment: int) -> Iterator[Tree]:
        choices = []
        for folder in self.folders:
            mine = [one for one in self.changes if one.folder == folder and one.at <= moment]
            sure = max(
                (one.at for one in self.syncs if one.node == folder and one.at <= moment), default=0
            )
            least = sum(one.at <= sure for one in mine)
            choices.append([(folder, mine[:count]) for count in range(least, len(mine) + 1)])
        contents = [
            [(node, content) for content in self._contents(node, moment)]
            for node in sorted(self.files)
        ]
        for chosen in itertools.product(*choices):
            for content in itertools.product(*contents):
                yield self._tree(dict(chosen), dict(content))

    def _tree(self, chosen: dict[int, list[Change]], contents: dict[int, bytes]) -> Tree:
        folders = {}
        for folder, changes in chosen.items():
            entries = dict(self.first.folders.get(folder, {}))
            for one in changes:
                if one.former is not None:
                    entries.pop(one.former)
                if one.node is None:
                    entries.pop(one.name)
                else:
                    entries[one.name] = one.node
            folders[folder] = entries
        return Tree(folders, contents)

    def _contents(self, node: int, moment: int) -> set[bytes]:
        """What a file may hold."""
        if node in self.first.files:
            return {self.first.files[node]}
        made = min(one.at for one in self.changes if one.node == node)
        if made > moment:
            return {b""}
        content = None
        for one in self.syncs:
            if one.node == node and one.at <= moment:
                content = one.content
        if content is not None:
            return {content}
        whole = self.whole[node]
        return {b"", bytes(len(whole)), whole}


def _name(path: str) -> str:
    return path.rpartition("/")[2]
