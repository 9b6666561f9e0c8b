"""Sizes of a stored model's configuration against its weights, before transformers makes tensors of these sizes."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from transformers import PreTrainedConfig

from rlhf_core.errors import DataError
from rlhf_core.models.architecture import HEADS, LAYERS, MOST, POSITIONS, WIDTH

#: Numbers of layers, each of which has weights of its own.
_LAYERS = (*LAYERS, "num_decoder_layers")
#: Sizes that are at most the longest side of a weight.
_SIDES = (*WIDTH, *HEADS, "vocab_size", "intermediate_size", "d_ff", "d_kv", "head_dim", "num_key_value_heads")


def check_sizes(config: PreTrainedConfig, folder: Path) -> None:
    """Refuses a configuration that asks for more than its weights have; a folder without safetensors passes.

    transformers would build the layers, and would make up weights of another size at random, whatever memory they need.

    Raises:
        DataError: names the configuration, the field and both numbers.
        SafetensorError: the weights are damaged.
    """
    shapes: list[list[int]] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            shapes += [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 (not a mapping)
    if not shapes:
        return
    longest = max((side for shape in shapes for side in shape), default=0)
    for names, most, what in (
        (_LAYERS, len(shapes), f"the weights are {len(shapes)} tensors"),
        (_SIDES, longest, f"no side of a weight is longer than {longest}"),
        (POSITIONS, MOST, f"it must be at most {MOST}"),
    ):
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int | float) and not value <= most:
                raise DataError(
                    f"is {value!r:.50}, but {what}",
                    file=str(folder / "config.json"),
                    field=name,
                    remedy="Give the config.json that belongs to the weights",
                )
