"""Models, averages, metrics and quantized weights come back as `torch.save` would give them.

Some from torch itself; those of other packages where they are installed. ALL_MODELS=1 takes all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim import swa_utils

from undaunted.checkpointing import Checkpointer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1800),
]

ALL = os.environ.get("ALL_MODELS") == "1"
STEPS = 2

# Of what is trained, by name: objects with a state, and "step", which takes the step's number.
Parts = dict[str, Any]
Make = Callable[[], Parts]


def trained_on(inputs: Callable[[], Any], model: Any, **others: Any) -> Parts:
    """A model with its optimizer; ``others`` are made of the model, and told of each step."""
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    made = {name: make(model) for name, make in others.items()}

    def step(number: int) -> None:
        torch.manual_seed(number)
        arguments = inputs()
        named = isinstance(arguments, dict)
        output = model(**arguments) if named else model(arguments)
        optimizer.zero_grad()
        sum(one.float().square().mean() for one in floats(output)).backward()
        optimizer.step()
        for one in made.values():
            one.update_parameters(model) if hasattr(one, "update_parameters") else one.update(model)

    return {"model": model, "optimizer": optimizer, "step": step, **made}


def floats(output: Any) -> list[torch.Tensor]:
    """All tensors in the output of a model that depend on its parameters."""
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, Mapping):
        output = list(output.values())
    if not isinstance(output, (list, tuple)):
        output = list(vars(output).values()) if hasattr(output, "__dict__") else []
    return [one for part in output for one in floats(part)]


def built(make: Make) -> Parts:
    torch.manual_seed(7)
    return make()


def of_torch(parts: Parts) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if name != "step"}


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Places at which two states are not exactly the same."""
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.requires_grad == other.requires_grad
        return [] if same and torch.equal(plain(one), plain(other)) else [place]
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return [f"{place}: keys {list(one)} and {list(other)}"]
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{place}: length"]
        pairs = [(at, a, b) for at, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return [] if repr(one) == repr(other) else [f"{place}: {one!r} and {other!r}"]
    return [found for key, a, b in pairs for found in differences(a, b, f"{place}.{key}")]


def plain(tensor: Any) -> torch.Tensor:
    """The values of a tensor, as bits: NaN is the same as itself."""
    if hasattr(tensor, "dequantize") and type(tensor) not in (torch.Tensor, nn.Parameter):
        tensor = tensor.dequantize()
    tensor = tensor.detach().contiguous()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.nan_to_num(nan=1234.5)


def state_of(parts: Parts) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in of_torch(parts).items()}


def resumed_by_torch(old: Parts, make: Make, place: Path) -> Parts:
    torch.save(state_of(old), place / "state.pt")
    state = torch.load(place / "state.pt", weights_only=False)
    new = built(make)
    for name, part in of_torch(new).items():
        part.load_state_dict(state[name])
    return new


def checked(makes: dict[str, Make], place: Path) -> tuple[int, dict[str, Any]]:
    """How many were tried, and what is not as with torch.save, by name."""
    old: dict[str, Parts] = {}
    expected: dict[str, Parts] = {}
    new: dict[str, Parts] = {}
    for name, make in makes.items():
        try:
            parts = built(make)
            for number in range(STEPS):
                parts["step"](number)
            expected[name], new[name] = resumed_by_torch(parts, make, place), built(make)
            old[name] = parts
        except Exception as error:  # not with this version of the package, or not with torch either
            print(f"{name} is left out: {type(error).__name__}: {str(error)[:200]}")
    names = list(old)
    wrong: dict[str, Any] = {}
    if exchanged(
        old, {name: new[name] for name in names}, place / "all"
    ):  # one has kept all from it
        for number, name in enumerate(names):
            new[name] = built(makes[name])
            only = exchanged({name: old[name]}, {name: new[name]}, place / str(number))
            wrong |= {name: only} if only else {}
    for name in names:
        if name not in wrong:
            found = differences(state_of(expected[name]), state_of(new[name]))
            for parts in (expected[name], new[name]):
                parts["step"](STEPS)
            found += differences(state_of(expected[name]), state_of(new[name]), "after a step")
            wrong |= {name: found[:5]} if found else {}
    print(f"{len(names)} of {len(makes)} tried: {', '.join(names)}")
    return len(names), wrong


def exchanged(old: dict[str, Parts], new: dict[str, Parts], place: Path) -> str:
    """Save and load with a Checkpointer; what went wrong."""
    try:
        for parts, act in ((old, Checkpointer.save), (new, Checkpointer.load)):
            state = {name: of_torch(one) for name, one in parts.items()}
            with Checkpointer(place) as checkpoints:
                checkpoints.save(1, state) if act is Checkpointer.save else checkpoints.load(state)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


class Tied(nn.Module):
    """Embedding and output share their weight; with buffers of all sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(11, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.inner.weight
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("turned", torch.arange(16.0).view(2, 8).t())
        self.register_buffer("waves", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("unsaved", torch.ones(3), persistent=False)
        self.register_buffer("none", None)
        self.more = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(numbers) * self.scale) * self.more["a"].sum()


def average(model: nn.Module, **settings: Any) -> Any:
    averaging = swa_utils.get_ema_multi_avg_fn(0.9)
    return swa_utils.AveragedModel(model, multi_avg_fn=averaging, **settings)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def parametrized() -> nn.Module:
    model: Any = layers()
    torch.nn.utils.parametrizations.weight_norm(model[0])
    torch.nn.utils.parametrizations.spectral_norm(model[2])
    return model


def pruned() -> nn.Module:
    model: Any = layers()
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def recurrent() -> nn.Module:
    return nn.LSTM(6, 8, num_layers=2, bidirectional=True, proj_size=3)


OF_TORCH: dict[str, Make] = {
    "tied": lambda: trained_on(lambda: torch.randint(0, 11, (2, 3)), Tied()),
    "lstm": lambda: trained_on(partial(numbers, 3, 2, 6), recurrent()),
    "transformer": lambda: trained_on(
        partial(numbers, 2, 3, 8), nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    ),
    "parametrized": lambda: trained_on(partial(numbers, 5, 6), parametrized()),
    "pruned": lambda: trained_on(partial(numbers, 5, 6), pruned()),
    "half": lambda: trained_on(
        lambda: numbers(5, 6).bfloat16(), nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)).bfloat16()
    ),
    "ema": lambda: trained_on(partial(numbers, 5, 6), layers(), ema=average),
    "ema of buffers": lambda: trained_on(
        partial(numbers, 5, 6), layers(), ema=partial(average, use_buffers=True)
    ),
    "swa": lambda: trained_on(partial(numbers, 5, 6), layers(), swa=swa_utils.AveragedModel),
    "ema of tied": lambda: trained_on(
        lambda: torch.randint(0, 11, (2, 3)), Tied(), ema=partial(average, use_buffers=True)
    ),
}


def test_models_of_torch(tmp_path: Path) -> None:
    assert checked(OF_TORCH, tmp_path) == (len(OF_TORCH), {})


def picked(all_names: str, some: str) -> list[str]:
    return (all_names if ALL else some).split()


def images(size: int) -> Callable[[], torch.Tensor]:
    return partial(numbers, 2, 3, size, size)


TIMM = (
    "resnet18 resnet10t mobilenetv3_small_050 efficientnet_lite0 vit_tiny_patch16_224 "
    "convnext_atto deit_tiny_distilled_patch16_224 mixer_s32_224 regnetx_002 ghostnet_050 "
    "resmlp_12_224 xcit_nano_12_p16_224 poolformer_s12 levit_128s edgenext_xx_small "
    "mobilevit_xxs tinynet_e lcnet_035 botnet26t_256 repvgg_a0 cait_xxs24_224 hardcorenas_a"
)


def of_timm(timm: Any, name: str) -> Parts:
    if name.startswith(("vit", "deit", "mixer", "resmlp", "xcit", "cait")):
        model = timm.create_model(name, num_classes=5, img_size=32)
        return trained_on(images(32), model)
    size = {"levit_128s": 224, "botnet26t_256": 256, "mobilevit_xxs": 64}.get(name, 64)
    return trained_on(images(size), timm.create_model(name, num_classes=5))


def test_models_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    names = picked(TIMM, "mobilenetv3_small_050 convnext_atto")
    tried, wrong = checked({name: partial(of_timm, timm, name) for name in names}, tmp_path)
    assert wrong == {}
    assert tried >= 0.9 * len(names)


VISION = (
    "resnet18 mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 squeezenet1_1 googlenet "
    "efficientnet_b0 regnet_y_400mf mnasnet0_5 densenet121"
)


def of_vision(vision: Any, name: str) -> Parts:
    more = {"init_weights": False} if name == "googlenet" else {}
    return trained_on(images(64), getattr(vision.models, name)(num_classes=5, **more))


def test_models_of_torchvision(tmp_path: Path) -> None:
    vision = pytest.importorskip("torchvision", exc_type=ImportError)
    names = picked(VISION, "shufflenet_v2_x0_5")
    tried, wrong = checked({name: partial(of_vision, vision, name) for name in names}, tmp_path)
    assert wrong == {}
    assert tried >= 0.9 * len(names)


TRANSFORMERS = (
    "bert roberta albert distilbert electra gpt2 gpt_neox gptj opt bloom falcon llama mistral "
    "mixtral qwen2 qwen3 qwen3_moe gemma gemma2 phi olmo t5 bart mamba rwkv xlnet deberta-v2 "
    "stablelm starcoder2 deepseek_v3 gpt_oss roformer squeezebert mpnet"
)
SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 64,
    "embedding_size": 16, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "state_size": 8, "pad_token_id": 0, "attention_hidden_size": 32,
    "rotary_dim": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
OF_BART_AND_T5 = {
    "bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
             "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "t5": {"d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4},
}  # fmt: skip


def of_transformers(transformers: Any, name: str) -> Parts:
    small = {"vocab_size": 99, **OF_BART_AND_T5[name]} if name in OF_BART_AND_T5 else SMALL
    config = transformers.AutoConfig.for_model(name, **small)
    model = transformers.AutoModel.from_config(config)

    def inputs() -> Any:
        tokens = torch.randint(1, 99, (2, 7))
        both = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
        return {"input_ids": tokens, **both}

    return trained_on(inputs, model)


def test_models_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    names = picked(TRANSFORMERS, "gpt2 llama")
    makes = {name: partial(of_transformers, transformers, name) for name in names}
    tried, wrong = checked(makes, tmp_path)
    assert wrong == {}
    assert tried >= 0.7 * len(names)


def test_averages_of_timm(tmp_path: Path) -> None:
    utils = pytest.importorskip("timm.utils", exc_type=ImportError)

    def averaged(kind: str) -> Parts:
        return trained_on(partial(numbers, 5, 6), layers(), ema=getattr(utils, kind))

    makes: dict[str, Make] = {
        kind: partial(averaged, kind) for kind in ("ModelEmaV2", "ModelEmaV3")
    }
    assert checked(makes, tmp_path) == (2, {})


def test_averages_of_torch_ema(tmp_path: Path) -> None:
    package = pytest.importorskip("torch_ema", exc_type=ImportError)

    def averaged(model: nn.Module) -> Any:
        ema = package.ExponentialMovingAverage(model.parameters(), decay=0.9)
        ema.update_parameters = lambda _: ema.update()
        return ema

    make = partial(lambda: trained_on(partial(numbers, 5, 6), layers(), ema=averaged))
    assert checked({"ema": make}, tmp_path) == (1, {})


METRICS: dict[str, Any] = {
    "Accuracy": {"task": "multiclass", "num_classes": 4},
    "AUROC": {"task": "multiclass", "num_classes": 4},
    "ConfusionMatrix": {"task": "multiclass", "num_classes": 4},
    "F1Score": {"task": "multiclass", "num_classes": 4, "average": "macro"},
    "PrecisionRecallCurve": {"task": "multiclass", "num_classes": 4},
    "CalibrationError": {"task": "multiclass", "num_classes": 4},
}


def measured(metrics: Any, make: Callable[[], Any], *, persistent: bool) -> Parts:
    metric = make()
    if hasattr(metric, "persistent"):
        metric.persistent(persistent)
    parts = trained_on(partial(numbers, 5, 6), layers(), metric=lambda _: metric)

    def update(_: Any) -> None:
        logits, right = torch.randn(5, 4), torch.randint(0, 4, (5,))
        of_values = isinstance(metric, (metrics.MeanMetric, metrics.CatMetric, metrics.SumMetric))
        metric.update(logits) if of_values else metric.update(logits, right)

    metric.update_parameters = update
    return parts


def test_metrics_of_torchmetrics(tmp_path: Path) -> None:
    metrics = pytest.importorskip("torchmetrics", exc_type=ImportError)
    kinds: dict[str, Callable[[], Any]] = {
        name: partial(getattr(metrics, name), **settings) for name, settings in METRICS.items()
    }
    one, other = kinds["Accuracy"], kinds["AUROC"]
    kinds |= {
        "MeanMetric": metrics.MeanMetric,
        "CatMetric": metrics.CatMetric,
        "SumMetric": metrics.SumMetric,
        "collection": lambda: metrics.MetricCollection({"a": one(), "b": other()}),
        "bootstrapped": lambda: metrics.wrappers.BootStrapper(one(), num_bootstraps=3),
        "least and most": lambda: metrics.wrappers.MinMaxMetric(one()),
        "classwise": lambda: metrics.wrappers.ClasswiseWrapper(
            metrics.classification.MulticlassAccuracy(num_classes=4, average=None)
        ),
    }
    makes: dict[str, Make] = {
        f"{name}, {persistent}": partial(measured, metrics, make, persistent=persistent)
        for name, make in kinds.items()
        for persistent in (True, False)
    }
    tried, wrong = checked(makes, tmp_path)
    assert wrong == {}
    assert tried >= 0.9 * len(makes)


def quantized(quantization: Any, config: str) -> Parts:
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 32)).bfloat16()
    quantization.quantize_(model[0], getattr(quantization, config)())
    for one in model[0].parameters():
        one.requires_grad_(False)
    return trained_on(lambda: numbers(5, 128).bfloat16(), model)


def with_small_states(optimizers: Any, kind: str) -> Parts:
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 128))
    parts = trained_on(partial(numbers, 5, 128), model)
    optimizer = parts["optimizer"] = getattr(optimizers, kind)(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        torch.manual_seed(number)
        model(numbers(5, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    parts["step"] = step
    return parts


def test_tensors_of_torchao(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    optimizers = pytest.importorskip("torchao.optim", exc_type=ImportError)
    configs = (
        *("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Int4WeightOnlyConfig"),
        *("IntxWeightOnlyConfig", "Float8WeightOnlyConfig"),
        "Float8DynamicActivationFloat8WeightConfig",
    )
    makes: dict[str, Make] = {one: partial(quantized, quantization, one) for one in configs}
    makes |= {
        kind: partial(with_small_states, optimizers, kind)
        for kind in ("AdamW8bit", "AdamW4bit", "AdamWFp8", "Adam8bit", "CPUOffloadOptimizer")
    }
    tried, wrong = checked(makes, tmp_path)
    assert wrong == {}
    assert tried
