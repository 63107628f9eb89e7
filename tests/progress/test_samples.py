from __future__ import annotations

import msgspec

from undaunted.progress.samples import HEARTBEAT, SECTION, Knowledge, Samples, merge

S = 10**9


def samples(*groups, raised_s=0.0):
    """Samples of (seconds, how many)."""
    longest_ns = round(max(s for s, _ in groups) * S)
    return Samples(sum(number for _, number in groups), longest_ns, longest_ns, raised_s)


def known(heartbeat=Samples(), observed_ns=S, **sections):  # noqa: B008 - frozen
    kinds = {HEARTBEAT: heartbeat} | {SECTION + name: of for name, of in sections.items()}
    return Knowledge(world_size=2, observed_ns=observed_ns, samples=kinds)


def test_merged_knowledge_adds_up():
    both = merge(
        known(samples((1, 5)), a=samples((2, 1))),
        known(samples((1, 2), (9, 1)), b=samples((3, 1), raised_s=7)),
    )
    assert both == known(
        samples((1, 7), (9, 1)), 2 * S, a=samples((2, 1)), b=samples((3, 1), raised_s=7)
    )


def test_counts_stay_small_enough_to_be_written():
    many = Samples(2**62, 5)
    both = merge(known(many), known(many))
    assert msgspec.json.decode(msgspec.json.encode(both), type=Knowledge) == both
    assert both.of(HEARTBEAT).count == 2**62


def test_a_program_is_known_by_its_sections():
    knowledge = known(a=samples((1, 1)), b=Samples())
    assert knowledge.sections() == {"a", "b"}
    assert knowledge.fits(["a"])
    assert not knowledge.fits(["a", "c"])


def test_what_was_never_seen_is_empty():
    assert known().of("section:other") == Samples()


def test_in_words():
    assert samples((50, 5000)).summary() == "5000 samples, longest 50.0 s"
    assert (
        known()
        .raised("section:a", 9.0)
        .of("section:a")
        .summary()
        .endswith(", raised since it ended a rank")
    )
