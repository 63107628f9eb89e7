"""The tables of known issues in docs/doctor.md: everything after the page's mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks import NAMES
from undaunted.doctor.known_issues import FEATURES, known_issues

if TYPE_CHECKING:
    from undaunted.doctor.known_issues import Issue, MessageIssue, VariableIssue, VersionIssue

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
        "\n### Messages in logs\n\n",
        "| id | text | role | what happened | what to do | known from |\n",
        "|---|---|---|---|---|---|\n",
        *(_message(issue) for issue in issues.messages),
    ]
    return "".join(parts)


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


def _message(issue: MessageIssue) -> str:
    role = "cause" if issue.role == "root" else "consequence"
    role = "either" if issue.role == "unclear" else role
    texts = ", ".join([*(f"`{text}`" for text in issue.texts), *_xids(issue.xids)])
    sources = "; ".join(issue.sources)
    doubt = " ?" if issue.unconfirmed else ""
    return f"| {issue.id} | {texts} | {role}{doubt} | {issue.why} | {issue.remedy} | {sources} |\n"


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
