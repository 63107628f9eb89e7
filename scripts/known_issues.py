"""The tables of docs/doctor.md and docs/explain.md: everything after a page's mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from undaunted.attribution.logs.rules import FILE as RULES
from undaunted.doctor.checks import NAMES
from undaunted.doctor.known_issues import FEATURES, known_issues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.doctor.known_issues import Issue, VariableIssue, VersionIssue

MARK = "<!-- Generated from here on: make generated -->\n"
_OPENING = """
*Severity* is the worst it can be. *?* marks what no source says exactly; such rows never fail. A
row *for* a feature is looked at only with `--for FEATURE`.
"""


def with_tables(page: str) -> str:
    """Return the page with tables that are up to date.

    Raises:
        ValueError: the page has no mark.
    """
    return below_mark(page, _tables())


def below_mark(page: str, text: str) -> str:
    """Return the page with another text below its mark.

    Raises:
        ValueError: the page has no mark.
    """
    head, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"the page has no line {MARK!r}")
    return head + mark + text


def _tables() -> str:
    issues = known_issues()
    parts = [
        _OPENING,
        "\n| feature | what it is |\n|---|---|\n",
        *(f"| `{name}` | {text} |\n" for name, text in FEATURES.items()),
        "\n### Versions\n\n| id | affected | severity | what happens | what to do | known from |\n",
        "|---|---|---|---|---|---|\n",
        *(_row(issue, _affected(issue)) for issue in issues.versions),
        "\n### Environment variables\n\n",
        "| id | variable: what it should be | severity | why | what to do | known from |\n",
        "|---|---|---|---|---|---|\n",
        *(_row(issue, _variables(issue)) for issue in issues.variables),
        "\n### Machine and set-up\n\n",
        "| id | what is looked at: how it should be | severity | why | what to do | known from |\n",
        "|---|---|---|---|---|---|\n",
        *(_row(issue, f"{issue.what}: {issue.wanted}") for issue in issues.settings),
    ]
    return "".join(parts)


def with_messages(page: str) -> str:
    """Return the page with a table of messages in logs that is up to date."""
    messages: dict[str, Any] = {}
    causes: dict[str, list[str]] = {}
    for row in yaml.safe_load(RULES.read_text("utf-8"))["rules"]:
        for message in row.get("messages", ()):
            messages[message["id"]] = message
            causes.setdefault(message["id"], []).append(f"`{row['cause']}`")
    table = [
        "\n| id | text | cause | what happened | what to do | known from |\n",
        "|---|---|---|---|---|---|\n",
        *(_message(messages[id_], ", ".join(dict.fromkeys(causes[id_]))) for id_ in sorted(causes)),
    ]
    return below_mark(page, "".join(table))


def _row(issue: Issue, what: str) -> str:
    doubt = " ?" if issue.unconfirmed else ""
    features = f", for {', '.join(issue.features)}" if issue.features else ""
    cells = (
        issue.id,
        what,
        f"{issue.severity}{doubt}{features}",
        issue.why,
        issue.remedy,
        "; ".join("our proposal" if one == "proposal" else one for one in issue.sources),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _message(message: Mapping[str, Any], causes: str) -> str:
    texts = [f"`{text}`" for text in message.get("texts", ())]
    cells = (
        message["id"],
        ", ".join([*texts, *_xids(message.get("xids", []))]),
        causes,
        message["why"],
        message["remedy"],
        "; ".join(message["sources"]),
    )
    return f"| {' | '.join(cells)} |\n"


def _xids(xids: list[int]) -> list[str]:
    return [f"`NVRM: Xid` {', '.join(map(str, xids))}"] if xids else []


def _affected(issue: VersionIssue) -> str:
    ranges = " or ".join("all" if one == "*" else f"`{one}`" for one in issue.ranges)
    arch = f" on {', '.join(issue.arch)}" if issue.arch else ""
    beside = f" with {issue.installed}" if issue.installed else ""
    unless = "".join(f", unless `{name}={value}`" for name, value in issue.unless.items())
    return f"{NAMES.get(issue.component, issue.component)} {ranges}{arch}{beside}{unless}"


def _variables(issue: VariableIssue) -> str:
    return f"{', '.join(f'`{name}`' for name in issue.variables)}: {issue.wanted}"
