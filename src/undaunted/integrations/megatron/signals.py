"""`DistributedSignalHandler`, as in Megatron: whether any rank was told to stop.

    with DistributedSignalHandler(signal.SIGTERM) as handler:
        for batch in batches:
            train(batch)
            if any(handler.signals_received()):
                save()
                break

Under ``undaunted run`` ranks do not ask each other after each step: they look at a word that the
launcher sets, see docs/design/training.md. A signal to the launcher counts then, too.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

from undaunted.base import torch_ranks
from undaunted.integrations.megatron.ranks import say
from undaunted.progress.writer import current_writer
from undaunted.training.signals import Signals, signal_number
from undaunted.training.stopping import Answers, ByLauncher, StopReason

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_WAIT_S = 600.0  # for the launcher's answer; this rank ends with it
_LOG = logging.getLogger("undaunted")


class DistributedSignalHandler:
    """Takes a signal, and tells all ranks of it, after the same step. A context manager.

    Nothing is installed before it is entered, and the handler from before is put back when it is
    left. A second signal, more than a second later, puts it back, too: the third one does what it
    would have done without this.

    Args:
        sig: number of the signal.

    Raises:
        ValueError: it cannot be handled.
    """

    def __init__(self, sig: int = signal.SIGTERM) -> None:
        signal_number(sig)  # which raises if it cannot be handled
        self.sig = sig
        self.released = False
        self._received = False
        self._said = False
        self._signals: Signals | None = None
        self._answers: Answers | None = None
        self._asked = -1
        self._stops = False

    def __enter__(self) -> Self:
        self.release()  # or its own handler would be the one from before
        self._received = self._said = self.released = False
        page = current_writer()
        if page.attached:
            self._answers = ByLauncher(page)
        self._signals = Signals([self.sig], self._receive)
        if self._signals.install():
            say(f"Signal handler installed for {self.sig}")
        else:
            _LOG.warning("in a side thread no handler of signal %d can be installed", self.sig)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def signals_received(self) -> list[bool]:
        """Return for each rank whether it was told to stop; call it after each step, on every rank.

        Under ``undaunted run`` the answer is the same for all of them. Otherwise this is a
        collective of the default group, or about this process if there is none.
        """
        if self._received and not self._said:
            self._said = True
            say(f"Received signal {self.sig}, initiating graceful stop")
        if self._answers is None:
            return torch_ranks.gather(self._received)
        self._stops = self._stops or self._launcher_says_stop(self._answers)
        return [self._stops] * torch_ranks.place()[1]

    def release(self) -> bool:
        """Put the handler from before back; return whether it was not done already."""
        if self._signals is None or self.released:
            return False
        self.released = True
        self._signals.restore()
        if self._answers is not None and not self._stops:
            self._answers.close()
        self._answers = None
        return True

    def _receive(self) -> None:
        """In the handler: it has to be short, and must not print."""
        self._received = True
        if self._answers is not None:
            self._answers.want(StopReason.PREEMPTED)

    def _launcher_says_stop(self, answers: Answers) -> bool:
        self._asked += 1
        if not answers.ask(self._asked):
            return False
        answer = answers.after(_WAIT_S, lambda: False)
        return answer is not None and self._asked >= answer.after
