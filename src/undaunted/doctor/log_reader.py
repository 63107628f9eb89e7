"""Known messages in a log: what they mean, and which of them is likely to be the cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from undaunted.doctor.advice import Advice
    from undaunted.doctor.known_issues import MessageIssue

_LONGEST_LINE = 64 * 1024
_SHOWN = 160
# As in "NVRM: Xid (PCI:0000:05:00): 79, pid=1234, ..."
_XID = re.compile(rb"NVRM: Xid [^,]*: (\d{1,4}),")
_ROLES = {"root": "a cause", "unclear": "cause or consequence", "cascade": "a consequence"}


class MessageSeen(msgspec.Struct, kw_only=True):
    """A known message that is in the log.

    Attributes:
        issue: what is known about it.
        line: number of its first line, from 1.
        text: that line.
        count: lines with it.
    """

    issue: MessageIssue
    line: int
    text: str
    count: int = 1


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long comes in pieces."""
    while line := stream.readline(_LONGEST_LINE):
        yield line


def scan(lines: Iterable[bytes], issues: Sequence[MessageIssue]) -> list[MessageSeen]:
    """Return the known messages, likely causes first, and each kind in the order of the log."""
    by_text = {text.encode(): issue for issue in issues for text in issue.texts}
    by_xid = {xid: issue for issue in issues for xid in issue.xids}
    # Longer ones first: some contain others.
    texts = sorted(by_text, key=len, reverse=True)
    pattern = re.compile(b"|".join(re.escape(text) for text in texts))
    found: dict[str, MessageSeen] = {}
    for number, line in enumerate(lines, 1):
        there = [by_text[text] for text in pattern.findall(line)]
        there += [by_xid[xid] for xid in map(int, _XID.findall(line)) if xid in by_xid]
        for issue in {issue.id: issue for issue in there}.values():
            seen = found.get(issue.id)
            if seen is not None:
                seen.count += 1
            else:
                shown = one_line(line.decode("utf-8", "replace"), longest=_SHOWN)
                found[issue.id] = MessageSeen(issue=issue, line=number, text=shown)
    order = list(_ROLES)
    return sorted(found.values(), key=lambda seen: (order.index(seen.issue.role), seen.line))


def findings_of(seen: Sequence[MessageSeen]) -> list[Advice]:
    """Return the messages as findings."""
    return [
        one.issue.finding(
            _ROLES[one.issue.role],
            f"line {one.line}{_times(one.count)}: {one.text}",
        )
        for one in seen
    ]


def _times(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""
