"""Parameters of a run: the settings that a stage and those above it work with, as they are parsed, with defaults."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rlhf_core.recipe import Recipe
from tasks.graph.typed_settings import type_of
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping

#: Arguments that name results whose settings count as those of the stage that reads them.
ABOVE = ("sft", "reward-model", "normaliser", "references")
#: Arguments with the settings of a stage itself; others have their name before them.
OWN = ("row", "spec")


class DeclaredStages:
    """Stages of a scale as the dvc.yaml files declare them; a file is read when it is needed.

    Args:
        root: the repository.
        scale: of the stages.
    """

    def __init__(self, root: Path, scale: str) -> None:
        self.root, self.scale = root, scale
        self._read: dict[Path, Mapping[str, Any]] = {}

    def stages_in(self, file: Path) -> Mapping[str, Any]:
        """Returns the stages of a file, a path relative to the repository."""
        if file not in self._read:
            self._read[file] = read_mapping(self.root / file)["stages"]
        return self._read[file]

    def _files(self) -> Iterator[Path]:
        known = [*self._read]
        yield from known
        every = [Path("dvc.yaml")] if self.scale == DEFAULT_SCALE else []
        every += sorted(path.relative_to(self.root) for path in self.root.glob(f"pipelines/{self.scale}/*/dvc.yaml"))
        yield from (file for file in every if file not in known and (self.root / file).exists())

    def with_result(self, result: str) -> Mapping[str, Any] | None:
        """Returns the stage that makes a result; None for a folder that no stage makes."""
        stages = (stage for file in self._files() for stage in self.stages_in(file).values())
        return next((stage for stage in stages if result in stage["outs"]), None)


def _arguments(stage: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the values on a stage's command line by the names of their arguments."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in shlex.split(str(stage["cmd"]), comments=True):
        if word.startswith("--"):
            values = found.setdefault(word.removeprefix("--"), [])
        else:
            values.append(word)
    return found


def _settings(root: Path, stage: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings of a stage by argument, as its settings page states them and typed."""
    found = {}
    for argument, values in _arguments(stage).items():
        if len(values) == 1 and Address(values[0]).key is not None:
            stated = read_settings(Address(values[0]).under(root))
            found[argument] = stated, type_of(values[0])(stated, values[0])
    return found


def _plain(value: Any) -> Any:
    """Returns settings as mappings, lists and values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def flatten(settings: Any, prefix: str = "") -> dict[str, str]:
    """Returns nested settings as `a.b.c` -> text."""
    value = _plain(settings)
    if isinstance(value, dict):
        parts = (flatten(each, f"{prefix}.{key}" if prefix else key) for key, each in value.items())
        return {name: text for part in parts for name, text in part.items()}
    return {prefix: json.dumps(value, default=str) if isinstance(value, list) else str(value)}


def parameters(root: Path, stage: Mapping[str, Any], declared: DeclaredStages) -> dict[str, str]:
    """Returns the parameters of a stage's run.

    Those of its row or spec have their own names, those of its other arguments the argument's before them
    (`scale.checkpoint_prompts`), those of stages above it the argument's that names their result
    (`reward_model.loss`); of several reward models, their names too. All are typed, defaults included, but for a row,
    which is as its settings page states it; `optimiser` is whole, from row, scale and defaults.
    """
    settings, found = _settings(root, stage), dict[str, str]()
    for argument, (stated, typed) in settings.items():
        found |= flatten(stated if argument == "row" else typed, "" if argument in OWN else argument)
    row, scale = (settings.get(name, (None, None))[1] for name in ("row", "scale"))
    if isinstance(row, Recipe) and isinstance(scale, PolicyScale) and row.kind == "reward":
        found |= flatten(reward_training(row, scale, str(stage["meta"]["name"])))
    for argument, results in _arguments(stage).items():
        for result in results if argument in ABOVE else ():
            above = declared.with_result(result)
            if above is None:
                continue
            prefix = argument.replace("-", "_") + (f".{above['meta']['name']}" if len(results) > 1 else "")
            for own, (_, typed) in _settings(root, above).items():
                if own != "evaluation":
                    found |= flatten(typed, prefix if own in OWN else f"{prefix}.{own}")
    return found
