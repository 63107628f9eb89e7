"""Installed packages that a template may import ahead of the ranks.

A worker that is forked with them imported is like a new process that imports them itself:
``tests/imports`` compares both for these names (see docs/design/warm-imports.md). A package that is
not here is imported by each rank, unless ``--preload`` names it.
"""

from __future__ import annotations

import sys
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# By the name that is imported.
PACKAGES = frozenset(
    """
    _distutils_hack _multiprocess absl accelerate aiohappyeyeballs aiohttp aiosignal annotated_types
    antlr4 anyio attr backports boto3 botocore braceexpand certifi charset_normalizer click
    cloudpickle colorama cycler datasets dateutil deepspeed defusedxml diffusers dill distutils
    docstring_parser einops evaluate filelock fontTools frozenlist fsspec functorch google h11 hjson
    httpcore httpcore2 httpx httpx2 huggingface_hub hydra idna ignite jaraco jinja2 jmespath joblib
    kiwisolver lightning lightning_fabric lightning_utilities markupsafe matplotlib megatron
    more_itertools mpl_toolkits mpmath msgpack multidict multiprocess narwhals networkx nltk numpy
    nvidia_resiliency_ext omegaconf opentelemetry packaging pandas peft PIL platformdirs propcache
    psutil pyarrow pydantic pydantic_core pygments pyparsing pytorch_lightning regex requests rich
    s3transfer safetensors scipy sentencepiece setuptools six sklearn spmd_types sympy tensorboard
    threadpoolctl tiktoken timm tokenizers torch torchdata torchgen torchmetrics torchtitan
    torchvision tqdm transformers triton trl truststore typing_extensions typing_inspection tyro
    undaunted urllib3 wandb webdataset xxhash yaml yarl zlib_ng
    """.split()  # noqa: SIM905 - a list of words
)


class RankValue(NamedTuple):
    """A number in a module that its import takes from a variable of the rank."""

    module: str
    name: str  # in the module: of a value, or of one of a function or class
    variable: str


RANK_VALUES = (
    RankValue("lightning_utilities.core.rank_zero", "rank_zero_only.rank", "RANK"),
    RankValue("torchmetrics.utilities.prints", "rank_zero_only.rank", "LOCAL_RANK"),
)


def unlisted(packages: Iterable[str], preloaded: Iterable[str] = ()) -> dict[str, str]:
    """Return the packages that ranks import themselves, and why.

    Args:
        packages: that ranks have imported.
        preloaded: modules that the user has named.
    """
    allowed = PACKAGES | {name.partition(".")[0] for name in preloaded}
    return {name: "it is not on the list" for name in packages if name not in allowed}


def set_rank_values(environment: Mapping[str, str]) -> None:
    """Set what comes from variables of a rank; nothing where a module or a variable is missing."""
    for value in RANK_VALUES:
        *path, last = value.name.split(".")
        try:
            owner = reduce(getattr, path, sys.modules[value.module])
            if hasattr(owner, last):
                setattr(owner, last, int(environment[value.variable]))
        except (KeyError, AttributeError, TypeError, ValueError):
            continue  # not imported, or another version
