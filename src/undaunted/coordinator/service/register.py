"""The store of a job's leader, its epoch and its ledger: one interface of any of them.

etcd is one (`coordinator.etcd.client`), and a file of one coordinator
(`coordinator.service.ledger_file`). The committee of launchers does the same by its messages, with
the rules of `coordinator.lead.register`. Tests judge them all by one suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from undaunted.coordinator.protocol import Ledger


class RegisterError(Exception):
    """The register did not do what it was asked for, or nobody knows whether it has.

    Attributes:
        final: trying again will not help, as far as that can be said of a first answer: once the
            register has worked, nothing is final.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class Leads:
    """The leader.

    Attributes:
        as_of: no epoch is later that had been claimed by then.
        epoch: of the leader, 0 = nobody leads.
        address: where that launcher listens.
        incarnation: of that launcher.
        held: the register hears of it.
    """

    as_of: int
    epoch: int = 0
    address: str = ""
    incarnation: str = ""
    held: bool = False


@dataclass(frozen=True, slots=True)
class Won:
    """This launcher leads.

    Attributes:
        epoch: its own, later than all before.
        ledger: the last that was written, None = there is none.
    """

    epoch: int
    ledger: Ledger | None


class Register(Protocol):
    """One launcher's access to the register of its job, which knows its address and incarnation.

    Each operation but `watch` has a deadline, and raises `RegisterError` after it. It may have been
    done all the same.
    """

    @property
    def hold_s(self) -> float:
        """For how many seconds others see that a leader is there, after `claim` and `hold`."""

    def watch(self) -> AsyncIterator[Leads]:
        """Say who leads: now, and whenever that changes.

        Raises:
            RegisterError: the register cannot be reached, or not any more.
        """

    async def claim(self, after: int) -> Won | Leads:
        """Lead under the next epoch, if the leader's epoch is ``after``; else say who leads."""

    async def write(self, epoch: int, ledger: Ledger) -> bool:
        """Keep a ledger in place of the one before, if the leader's epoch is this one."""

    async def hold(self, epoch: int) -> bool:
        """Show others that the leader is there; return whether it may be the one of this epoch."""

    async def release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        """Lead no more, if the leader's epoch is this one.

        ``ended``: takes the place of the ledger, for a while; the job is over.
        """

    async def close(self) -> None:
        """Release what this access holds here; the register is left as it is."""
