"""Gives the batches of a step once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class RerunDataIterator:
    """Goes through batches as its source does, and keeps those of the step that is under way.

    Args:
        iterable: the source.
        source_repeats: a source that begins, after a resumption in the middle of a step, with the
            batches of this step, which the checkpoint has as well: they are skipped there once.

    Attributes:
        keeps: keep batches; the machine says so.
    """

    def __init__(self, iterable: Iterable[Any], *, source_repeats: bool = False) -> None:
        self.keeps = True
        self._source: Iterator[Any] = iter(iterable)
        self._source_repeats = source_repeats
        self._saved: list[Any] = []
        self._replaying = False
        self._position = 0
        self._skip = 0

    def __iter__(self) -> RerunDataIterator:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the source has no more.
            AssertionError: more batches are asked for than in the run before.
        """
        if self._replaying:
            if self._position >= len(self._saved):
                raise AssertionError("No more batches to replay")
            batch = self._saved[self._position]
            self._position += 1
            return _copy(batch)
        while self._skip:
            self._skip -= 1
            next(self._source)
        batch = next(self._source)
        if self.keeps:
            self._saved.append(_copy(batch))
        return batch

    @property
    def has_some(self) -> bool:
        """Return whether there are batches to be given once more."""
        return bool(self._saved)

    def rewind(self) -> None:
        """Give the batches since `advance` once more."""
        self._replaying, self._position = True, 0

    def advance(self) -> None:
        """A step is over: forget its batches."""
        self._replaying, self._position = False, 0
        if self._saved:
            self._saved = []

    def state_dict(self) -> dict[str, Any]:
        """Return the batches that are kept, and which of them comes next."""
        return {
            "saved_microbatches": list(self._saved),
            "replaying": self._replaying,
            "replay_pos": self._position,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another iterator was."""
        self._saved = list(state_dict["saved_microbatches"])
        self._replaying = bool(state_dict["replaying"])
        self._position = int(state_dict["replay_pos"])
        if self._source_repeats:
            self._skip = len(self._saved)


def _copy(batch: Any) -> Any:
    """Copy what the program may put things into, or take them from; not the tensors in it."""
    return batch.copy() if isinstance(batch, dict | list) else batch
