from __future__ import annotations

import pytest

from tests.doctor.checks.saying import ISSUES, said, wanting
from undaunted.doctor.checks import software
from undaunted.doctor.facts import Asked, Facts


def test_a_version_with_a_bug() -> None:
    found = software(Facts(versions={"nccl": "2.28.5"}), Asked(), ISSUES)
    (row,) = [finding for finding in found if finding.id == "V14"]
    assert (row.severity, row.found) == ("warn", "NCCL 2.28.5")
    assert row.wanted == "2.28.7 or newer, or older than 2.28.3"
    assert row.remedy == "use NCCL 2.28.7 or newer"
    assert row.sources


def test_rows_of_a_feature_only_for_that() -> None:
    facts = Facts(versions={"nccl": "2.28.5"})
    assert "V01" not in {finding.id for finding in software(facts, Asked(), ISSUES)}
    found = {f.id: f for f in software(facts, wanting("inprocess"), ISSUES)}
    assert found["V01"].severity == "fail"


def test_rows_of_an_architecture_a_neighbour_or_a_variable() -> None:
    versions = {"nccl": "2.29.2"}
    assert "V07" in {row[0] for row in said(software, arch="aarch64", versions=versions)}
    assert "V07" not in {row[0] for row in said(software, arch="x86_64", versions=versions)}
    torch = {"torch": "2.13.0+cpu"}
    assert "V22" not in {row[0] for row in said(software, versions=torch)}
    both = torch | {"nvidia-resiliency-ext": "0.5.0"}
    assert "V22" in {row[0] for row in said(software, versions=both)}
    ras = {"nccl": "2.27.2"}
    assert "V11" in {row[0] for row in said(software, versions=ras)}
    off = {"NCCL_RAS_ENABLE": "0"}
    assert "V11" not in {row[0] for row in said(software, versions=ras, environ=off)}


@pytest.mark.parametrize("version", ["", "unknown", "git-9f2c", "\x1b[31m"])
def test_versions_that_are_none(version: str) -> None:
    assert said(software, versions={"nccl": version, "torch": version}) == []


def test_an_etcd_that_loses_data() -> None:
    assert said(software, versions={"etcd": "3.5.2"})[0][:2] == ("V36", "fail")
    assert said(software, versions={"etcd": "3.5.3"}) == []


def test_no_torch() -> None:
    python = "/opt/venv/bin/python"
    assert said(software, python=python) == [("D03", "warn", f"there is no torch for {python}")]
    there = said(software, python=python, versions={"torch": "2.13.0+cpu"})
    assert "D03" not in {row[0] for row in there}
    # It is told once why there is no answer.
    assert said(software, python=python, unknown={"software": "no answer within 1 min"}) == []
    assert said(software) == []


def test_a_torch_that_cannot_be_imported() -> None:
    problem = "exit code 1: ImportError: libcudart.so.12"
    found = said(software, python="py", versions={"torch": "2.8.0"}, torch_problem=problem)
    assert ("D03", "fail", f"py cannot import torch: {problem}") in found


def test_calls_that_the_launcher_needs_and_functions_that_python_lacks() -> None:
    call = "pidfd_open (Linux 5.3): Function not implemented"
    (row,) = said(software, versions={"linux": "5.10.0"}, refused=(call,))
    assert row == ("D04", "fail", f"Linux 5.10.0 refuses {call}")
    (row,) = said(software, lacking=("os.memfd_create", "os.pidfd_open"))
    assert row == ("D05", "info", "this build of Python lacks os.memfd_create, os.pidfd_open")
