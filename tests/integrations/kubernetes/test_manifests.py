"""The manifests of examples/deploy/kubernetes, by the models of Kubernetes, JobSet and Trainer."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[3] / "examples" / "deploy" / "kubernetes"
OF_TRAINER = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
# What JobSet demands of the name of a rule.
RULE = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"


def read(document: dict[str, Any]) -> Any:
    """Return the document as its model knows it; what the model does not know is left out.

    Raises:
        ValueError: a value is of another type, or one is missing.
    """
    kind = document["kind"]
    if kind in OF_TRAINER:
        from kubeflow_trainer_api import models

        return getattr(models, OF_TRAINER[kind]).from_dict(document).to_dict()
    from kubernetes import client

    model = getattr(client, f"V1{kind}").from_dict(document)
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


def unknown(given: Any, known: Any, where: str = "") -> list[str]:
    """Return the places of what is given and not known, or is another value there."""
    if isinstance(given, dict) and isinstance(known, dict):
        inner = [
            unknown(value, known[name], f"{where}.{name}") if name in known else [f"{where}.{name}"]
            for name, value in given.items()
        ]
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        inner = [unknown(value, known[at], f"{where}[{at}]") for at, value in enumerate(given)]
    else:
        inner = [] if given == known else [[where]]
    return [place for places in inner for place in places]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where the objects of a document are."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return []
    below = [place for key, inner in items for place in places(inner, (*path, key))]
    return [path, *below] if isinstance(value, dict) else below


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_field_is_known(document: dict[str, Any]) -> None:
    assert unknown(document, read(document)) == []


# Whose keys are anybody's.
FREE = {"labels", "matchLabels", "limits", "selector"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_unknown_field_is_found_wherever_it_is(document: dict[str, Any]) -> None:
    tried = 0
    for path in places(document):
        if path and (path[-1] in FREE or "metadata" in path[-1:]):
            continue
        changed = copy.deepcopy(document)
        inner = changed
        for key in path:
            inner = inner[key]
        inner["livenesProbe"] = "x"
        try:
            found = unknown(changed, read(changed))
        except ValueError:
            found = ["livenesProbe"]
        assert any("livenesProbe" in place for place in found), path
        tried += 1
    assert tried


def test_a_value_of_another_type_is_found() -> None:
    (job,) = [each.values[0] for each in DOCUMENTS if each.id == "job-Job"]
    changed = copy.deepcopy(job)
    changed["spec"]["completions"] = "four"
    with pytest.raises(ValueError, match="completions"):
        read(changed)


def test_names_of_rules_are_those_that_jobset_takes() -> None:
    for document in (each.values[0] for each in DOCUMENTS):
        spec = document["spec"]
        if document["kind"] == "TrainingRuntime":
            spec = spec["template"]["spec"]
        for rule in spec.get("failurePolicy", {}).get("rules", []):
            assert re.fullmatch(RULE, rule["name"]), rule["name"]
