"""What `undaunted checkpoint export` writes, the real Transformers loads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.leaves("threads", "fds", "maps"),  # of Transformers
    pytest.mark.filterwarnings("ignore"),
]

from undaunted.checkpointing import Checkpointer  # noqa: E402
from undaunted.cli.checkpoint import main  # noqa: E402


@pytest.mark.parametrize("size", ["5G", "1M"])
def test_a_model_with_tied_weights(tmp_path: Path, size: str) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=5000)
    model = transformers.GPT2LMHeadModel(config)
    with Checkpointer(tmp_path / "saved", process_group="alone") as checkpoints:
        checkpoints.save(1, {"model": model, "step": 1})
    out = tmp_path / "out"
    words = ["export", str(tmp_path / "saved"), "--safetensors", str(out), "--shard-size", size]
    assert main(words) == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert (len(set(index["weight_map"].values())) > 1) is (size == "1M")
    model.config.save_pretrained(out)
    for kind, expected in (
        (transformers.AutoModelForCausalLM, model),
        (transformers.AutoModel, model.transformer),
    ):
        loaded, about = kind.from_pretrained(out, output_loading_info=True)
        assert not about["missing_keys"]
        values = loaded.state_dict()
        assert values.keys() == expected.state_dict().keys()
        assert all(torch.equal(values[name], one) for name, one in expected.state_dict().items())
