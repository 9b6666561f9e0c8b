"""A training state as files without pickles: tensors as safetensors, everything else as JSON.

A state is any nesting of mappings, lists and tuples over tensors, numpy arrays, texts, numbers, booleans and None.
In the JSON a tensor or array is replaced by its name among the tensors; what JSON has no form for is marked:

    {"$tensor": "model/layer.weight"}    a tensor of that name
    {"$array": "values"}                 a numpy array, stored as a tensor
    {"$tuple": [...]}                    a tuple
    {"$items": [[key, value], ...]}      a mapping whose keys are not all texts, or begin with '$'

Numbers return exactly: Python writes the shortest text that reads back as the same float.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_core.training_state import State

TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Returns tensors by name, and the JSON value that refers to them.

    One tensor in several places (tied weights) is stored once.

    Raises:
        TypeError: a value of another kind, with its place.
    """
    tensors: dict[str, Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def named(value: Tensor, place: str) -> str:
        value = value.detach()
        identity = (value.data_ptr(), value.dtype, value.device, tuple(value.shape), value.stride())
        if value.numel() and identity in seen:
            return seen[identity]
        stored = value.cpu().contiguous()
        if stored.untyped_storage().nbytes() != stored.numel() * stored.element_size():
            stored = stored.clone()
        while place in tensors:
            place += "'"
        tensors[place] = stored
        seen[identity] = place
        return place

    def convert(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": named(value, place)}
        if isinstance(value, np.ndarray):
            return {"$array": named(torch.from_numpy(np.array(value)), place)}
        if isinstance(value, Mapping):
            plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
            inner = [(key, convert(item, f"{place}/{key}" if place else str(key))) for key, item in value.items()]
            return dict(inner) if plain else {"$items": [[convert(key, f"{place} key"), item] for key, item in inner]}
        if isinstance(value, list | tuple):
            items = [convert(item, f"{place}/{i}") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if value is None or type(value) in (str, bool, int, float):
            return value
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"a checkpoint cannot hold '{place}' of type {type(value).__name__}")

    return tensors, convert(state, "")


def unflatten(tensors: Mapping[str, Tensor], value: Any) -> Any:
    """Returns the state that `flatten` took apart; tensors are on the CPU, in memory of their own."""
    if isinstance(value, list):
        return [unflatten(tensors, item) for item in value]
    if not isinstance(value, dict):
        return value
    mark: str
    content: Any
    mark, content = next(iter(value.items())) if len(value) == 1 else ("", None)
    if mark == "$tensor":
        return tensors[content].clone()
    if mark == "$array":
        return tensors[content].numpy().copy()
    if mark == "$tuple":
        return tuple(unflatten(tensors, item) for item in content)
    if mark == "$items":
        return {unflatten(tensors, key): unflatten(tensors, item) for key, item in content}
    return {key: unflatten(tensors, item) for key, item in value.items()}


def write_state(folder: Path, state: State) -> list[Path]:
    """Writes a state into a folder; returns the files."""
    tensors, rest = flatten(state)
    save_file(tensors, folder / TENSORS_FILE)
    (folder / STATE_FILE).write_text(json.dumps(rest, ensure_ascii=False), encoding="utf-8")
    return [folder / TENSORS_FILE, folder / STATE_FILE]


def read_state(folder: Path) -> State:
    """Returns the state that `write_state` wrote."""
    rest = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    state: State = unflatten(load_file(folder / TENSORS_FILE), rest)
    return state


def random_states() -> State:
    """States of the process's random generators: Python's, numpy's, torch's on the CPU and on every GPU in use."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (libraries may draw from it)
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def restore_random_states(states: State) -> None:
    """Puts `random_states` back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
