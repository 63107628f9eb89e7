"""Clocks of nodes, and what is different on some of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from undaunted.doctor.facts import Facts, Gpus, Limit
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.meeting_judge import Member, best, compare, estimate
from undaunted.doctor.meeting_messages import Clock, Pong, Unreached

# --- clocks ---------------------------------------------------------------------------------------


NS = st.integers(0, 10**9)


@given(st.integers(-(10**12), 10**12), NS, NS, NS)
def test_the_truth_is_within_the_error(ahead: int, there: int, work: int, back: int) -> None:
    sent = 10**18
    got = sent + there + ahead
    answered = got + work
    clock = estimate(Pong(sent, got, answered), sent + there + work + back)
    assert abs(clock.ahead_ns - ahead) <= clock.error_ns + 1
    assert clock.error_ns <= (there + back + 1) // 2


def test_the_least_traffic_counts() -> None:
    assert best([Clock(5, 9), Clock(7, 2), Clock(6, 3)]) == Clock(7, 2)


def test_a_clock_that_is_set_back_meanwhile() -> None:
    assert estimate(Pong(1000, 10, 20), 500).error_ns == 0


# --- compare --------------------------------------------------------------------------------------


ISSUES = known_issues()
S = 10**9


def member(node: str, clock: Clock | None = None, **facts: Any) -> Member:
    return Member(facts=Facts(node=node, **facts), clock=clock)


def said(*members: Member, expected: int | None = None) -> list[tuple[str, str, str]]:
    found = compare(members, expected or len(members), ISSUES)
    return [(finding.id, finding.severity, finding.found) for finding in found]


def test_nodes_that_are_the_same() -> None:
    facts: dict[str, Any] = {"versions": {"torch": "2.9"}, "environ": {"NCCL_DEBUG": "WARN"}}
    assert said(member("n1", **facts), member("n2", **facts)) == []
    assert said(member("n1")) == []
    assert said() == []


def test_versions_that_must_agree_and_others() -> None:
    found = said(
        member("n1", versions={"torch": "2.9", "linux": "6.8", "python": "3.11.7"}),
        member("n2", versions={"torch": "2.8", "linux": "5.15", "python": "3.11.9"}),
        member("n3", versions={"torch": "2.9", "linux": "6.8", "python": "3.11.7"}),
    )
    assert found == [
        ("N02", "info", "Linux: 6.8 on n1, n3; 5.15 on n2"),
        ("N02", "warn", "Python: 3.11.7 on n1, n3; 3.11.9 on n2"),
        ("N02", "fail", "torch: 2.9 on n1, n3; 2.8 on n2"),
    ]


def test_what_only_some_have() -> None:
    found = said(member("n1", versions={"nccl": "2.28.9"}), member("n2"))
    assert found == [("N02", "fail", "NCCL: 2.28.9 on n1; none on n2")]
    found = said(member("n1", environ={"NCCL_ALGO": "Ring"}), member("n2"))
    assert found == [("N02", "warn", "NCCL_ALGO: Ring on n1; not set on n2")]


def test_what_each_node_has_for_itself() -> None:
    assert said(member("n1", environ={"SLURM_JOB_ID": "1"}), member("n2")) == []


def test_limits_settings_and_devices() -> None:
    found = said(
        member("n1", limits={"memlock": Limit(None, None)}, cpus=96, gpus=Gpus(count=8)),
        member("n2", limits={"memlock": Limit(8 * 2**20, None)}, cpus=64, gpus=Gpus(count=7)),
    )
    assert found == [
        ("N02", "warn", "limit memlock: unlimited on n1; 8 MiB on n2"),
        ("N02", "warn", "CPUs: 96 on n1; 64 on n2"),
        ("N02", "warn", "GPUs: 8 on n1; 7 on n2"),
    ]
    one = member("n1", settings={"net.ipv4.ip_local_port_range": "32768\t60999"})
    other = member("n2", settings={"net.ipv4.ip_local_port_range": "32768 60999"})
    assert said(one, other) == []


def test_many_nodes_with_many_values_fit_a_line() -> None:
    members = [
        member(f"n{number}", versions={"torch": f"2.{number % 50}"}) for number in range(1000)
    ]
    ((_, _, found),) = said(*members)
    assert found.startswith("torch: 2.0 on n0, n50, n100, n150 and 16 more; 2.1 on")
    assert found.endswith("and 46 more")


def test_nodes_that_did_not_come() -> None:
    ((key, severity, found),) = said(member("n1"), expected=3)
    assert (key, severity) == ("N01", "fail")
    assert found == "only 1 of 3 nodes came to the meeting: n1"


def test_nodes_that_are_not_reached() -> None:
    first, second, third = member("n1"), member("n2"), member("n3")
    late = "10.0.0.3 has not answered within 3.0 s"
    first.unreached = [Unreached(2, late), Unreached(99, "a lie")]
    second.unreached = [Unreached(2, late), Unreached(0, "the name n1 ...", name_only=True)]
    assert said(first, second, third) == [
        ("N01", "fail", f"n3 from n1, n2: {late}"),
        ("N01", "warn", "n1 from n2: the name n1 ..."),
    ]


def test_clocks() -> None:
    host = member("n1", Clock(0, 10))
    assert said(host, member("n2", Clock(S // 2, 10)), member("n3")) == []
    ((key, severity, found),) = said(
        host, member("n2", Clock(-3 * S, 10)), member("n3", Clock(2 * S, 10))
    )
    assert (key, severity) == ("L17", "warn")
    assert found == "the clock of n2 is 5.0 s ahead of that of n3 (error at most 0 ms)"


def test_clocks_that_may_agree() -> None:
    assert said(member("n1", Clock(0, S)), member("n2", Clock(2 * S, S))) == []


def test_names_are_shown_safely() -> None:
    ((_, _, found),) = said(member("n1\x1b[2J"), expected=2)
    assert found.isprintable()
