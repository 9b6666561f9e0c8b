"""The working tree of a rehearsal: the project's rows, and the pages of a scale made small by `caps.yaml`.

A tree is a project of its own: `params/`, a dvc.yaml for each paper, DVC's cache, MLflow's database. The papers' flow
runs it as it runs any other; it may be deleted at any time.

    <tree>/params/<paper>/                             the project's pages
    <tree>/params/scales/rehearsal-<scale>/*.yaml      the scale's entries, made small
    <tree>/hub/, rows/                                 stand-ins for models, and rows of the data sets
    <tree>/report/, mlflow.db                          what the flow makes of them
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import RecipeError
from tasks.params.pages import read_settings
from tasks.params.scales import DEFAULT_SCALE, KINDS, REHEARSAL, RESOURCES, STAGES, is_rehearsal, scale_entries
from tasks.params.stages import RUNS
from tasks.params.yaml_files import read_mapping, yaml_text
from tasks.rehearsal.rows import SmallRows
from tasks.rehearsal.stand_ins import language_model, sentence_model

CAPS = read_mapping(Path(__file__).with_name("caps.yaml"))
SEED = 0
#: Resources of every stage.
NEEDS = {"cores": 1, "gpus": 0, "memory_gb": 2}
#: Test sets of mathematics whose questions have choices.
CHOICE_TESTS = ("mmlu_math",)

Settings = dict[str, Any]


def write_tree(project: Path, scale: str, given: Path | None) -> tuple[Path, str]:
    """Writes a rehearsal's tree, with rows of a given folder or made-up ones; returns it, and the scale's name in it.
    Results stay where rows are those of the rehearsal before.

    Raises:
        RecipeError: the testbed, which needs no rehearsal, or a model of unknown architecture.
        DataError: no such folder, or rows that cannot be read.
    """
    if scale == DEFAULT_SCALE or is_rehearsal(scale):
        raise RecipeError(f"scale is '{scale}', which runs in minutes as it is; rehearse small or paper")
    tree = project / ".work" / "rehearsal" / scale
    files = [] if given is None else sorted(given.iterdir())
    made_of = f"{given} {[(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]}"
    note = tree / "made_of.txt"
    if not note.exists() or note.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(tree, ignore_errors=True)
    for folder in ("params", "rows"):
        shutil.rmtree(tree / folder, ignore_errors=True)
    (tree / "rows").mkdir(parents=True)
    note.write_text(made_of, encoding="utf-8")
    shutil.copytree(project / "params", tree / "params")
    suite = {"seeds": [SEED], "scale_seeds": {"default": [SEED]}}
    (tree / RUNS).write_text(yaml_text({"suite": suite}), encoding="utf-8")
    rows = SmallRows(tree / "rows", None if given is None else DirectorySource(given), CAPS["also"])
    _write_scale(project, tree, scale, rows)
    if not (tree / ".dvc").is_dir():
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tree, check=True)
    return tree, f"{REHEARSAL}{scale}"


def _write_scale(project: Path, tree: Path, scale: str, rows: SmallRows) -> None:
    """Writes the pages of the scale, made small; data first, on whose rows tokenizers are trained."""
    from tasks.graph.dvc_files import STAGES as EVERY

    folder = tree / "params" / "scales" / f"{REHEARSAL}{scale}"
    folder.mkdir()
    pages = {
        kind: {
            name: small(read_settings(address.under(project)))
            for name, address in scale_entries(project, scale, kind).items()
            if name != RESOURCES
        }
        for kind in KINDS
    }
    for values in pages["data"].values():
        _with_small_rows(rows, values)
    for values in pages[STAGES].values():
        for name, own in values.get("sets", {}).items():
            values["sets"][name] = rows.reward_bench(name, own)
    for values in (values for kind in KINDS for values in pages[kind].values()):
        _with_stand_ins(tree, rows.texts, values)
    for name, values in pages[STAGES].items():
        if name.startswith("samples"):
            values["gold"] = 1  # one sample of each question is its solution
    pages[STAGES][RESOURCES] = dict.fromkeys(EVERY, NEEDS)
    for kind, entries in pages.items():
        if entries:
            (folder / f"{kind}.yaml").write_text(yaml_text(entries), encoding="utf-8")


def small(values: Mapping[str, Any]) -> Settings:
    """Returns settings with the caps of `caps.yaml`, in mappings within them, too."""
    made: Settings = {}
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, Mapping):
            made[name] = small(value)
        elif name in CAPS["most"] and (number or value is None):
            made[name] = CAPS["most"][name] if value is None else min(value, CAPS["most"][name])
        else:
            made[name] = value
    for name, instead in CAPS["instead"].items():
        if name in values:
            made |= instead
    if {"iterations", "rollout_batch"} & values.keys():
        return made | CAPS["policy"]
    return made | CAPS["supervised"] if {"epochs", "updates"} & values.keys() else made


def _with_stand_ins(tree: Path, texts: Sequence[str], values: Settings) -> None:
    """Puts stand-ins in the place of models that settings name."""

    def stand_in(source: str, write: Callable[[str, Sequence[str], Path], None] = language_model) -> str:
        folder = f"hub/{source.replace('/', '--')}"
        write(source, texts, tree / folder)
        return folder

    if "source" in values and ("tokenizer" in values or values.keys() == {"source"}):  # a backbone, a tokenizer
        values["source"] = stand_in(str(values["source"]))
    if values.get("filters"):
        values["filters"]["tokenizer"] = stand_in(values["filters"]["tokenizer"])
    if "max_sentence_chars" in values and "model" in values:
        values["model"] = stand_in(values["model"], sentence_model)
    if "base_url" not in (asked := values.get("zero_shot", {"base_url": ""})):
        asked["model"] = stand_in(asked["model"])


def _with_small_rows(rows: SmallRows, values: Settings) -> None:
    """Writes rows for all sets of data settings, and lets these read them."""
    values.pop("directory", None)
    if "task" in values:
        kind = "choice" if values["task"] == "multiple_choice" else "solved"
        for name in values.get("train", ()):
            rows.write(name, "train", kind, where=lambda row: bool(row.get("solution")))
        for name in values.get("tests", ()):
            rows.write(name, "test", "choice" if name in CHOICE_TESTS else kind)
    elif values["source"] == "directory-longform":
        for split in ("train", "test"):
            asked = rows.write(values["questions"], split, "feedback", where=_has_all_errors)
            rows.pairs_of(values["preference"], split, asked)
    elif values["source"] == "directory-translation":
        for name in values["sets"]:
            for split in ("train", "test"):
                rows.write(name, split, "translation", where=lambda row: len(row["target_text"].split()) > 3)
    elif values["source"] in ("directory", "huggingface"):
        for part in ("sets", "references", "livecode_window"):
            values.pop(part, None)
        values["source"] = "directory"
        for name in values["preference"]:
            rows.write(name, "train", "preference")
            rows.write(name, "test", "preference")
        for name in values.get("prompts", ()):
            rows.write(name, "train", "prompt")
        for benchmark, name in values.get("benchmarks", {}).items():
            rows.write(name, "test", "turns" if benchmark == "mtbench" else "benchmark")
        for column, name in values.get("code", {}).items():
            rows.write(name, "test", "live_code" if column == "livecode" else "code")
        for own in values.get("tasks", {}).values():
            own["rows"] = rows.task(own["task"], own.get("shots") or 0, own.get("rows"))
        if values.get("alpaca_calibration"):
            values["alpaca_calibration"] = rows.calibration()


def _has_all_errors(row: Mapping[str, Any]) -> bool:
    """Returns whether a row of QA-Feedback has what all three of the aspects' models learn from."""
    told = row["feedback"]
    return bool(told["errors"] and told["missing_info"] and told.get("corrected_prediction") and row["gold_answer"])


def environment(tree: Path, served: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a rehearsal's flow: its own servers and data, no network, no server of others."""
    outside = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")
    several = ("REWARDSMITH_PROCESSES", "REWARDSMITH_DEEPSPEED", "ACCELERATE_DEEPSPEED_CONFIG_FILE")
    kept = {name: value for name, value in os.environ.items() if name not in (*outside, *several)}
    own = {"REWARDSMITH_DATA": str(tree / "rows"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return {**kept, **served, **own, "HF_DATASETS_CACHE": str(tree / ".datasets"), "CUDA_VISIBLE_DEVICES": ""}
