"""Ways to plant a fault into a copy of some stages of a finished demo, or of finished headline rows.

A fault changes what its stages wrote, and nothing after them. Records are written again to fit (`Planting.seal`): the
fault looks as if the code had made it, so that it must be found by what the results say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import yaml

from tasks.commands.verify import VERIFIED
from tasks.params.pages import Address, merge, read_settings
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.result_digests import RECORD, digests_of

Row = dict[str, Any]
Change = Mapping[str, Any]


#: Files that a tree needs to run stages; `pipelines` is there once the headline rows have run.
CODE = ("rlhf_core", "tasks", "flows", "params", "params.yaml", "dvc.yaml", "pipelines")


@cache
def commands(root: Path, names: tuple[str, ...] = tuple(VERIFIED)) -> dict[str, list[str]]:
    """Returns the command of every stage of a tree's demo and headline rows, by its output below `results/testbed`.

    Args:
        names: of `tasks.commands.verify.VERIFIED`; those whose dvc.yaml is not there are left out.
    """
    found = {}
    for file in (root / VERIFIED[name].file for name in names):
        for stage in read_mapping(file)["stages"].values() if file.exists() else ():
            out = Path(stage["outs"][0]).parent.relative_to(Path("results") / DEFAULT_SCALE)
            found[out.as_posix()] = stage["cmd"].split()
    return found


def link(source: Path, target: Path) -> None:
    """Makes a file or folder in another tree, where it is there, of hard links: results are replaced as a whole, never
    changed."""
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)


def linked(root: Path, tree: Path) -> Path:
    """Returns a tree with the code and the finished results of another, in which stages may run."""
    for name in CODE:
        link(root / name, tree / name)
    for stage in commands(root):
        if (root / "results" / DEFAULT_SCALE / stage / "result").exists():
            link(root / "results" / DEFAULT_SCALE / stage, tree / "results" / DEFAULT_SCALE / stage)
    return tree


def run_stage(root: Path, stage: str, out: Path, arguments: Mapping[str, str], **environment: str) -> None:
    """Runs a stage of a finished tree into another folder, one thread unless the environment says otherwise.

    Args:
        root: the finished tree.
        stage: its output below `results/testbed`.
        out: the folder that gets `result/` and `record/`.
        arguments: values of its command line that differ, such as `--seed`.
    """
    if (root / out / "result").exists():
        return
    command = [sys.executable, *commands(root)[stage][1:]]
    for flag, value in {**arguments, "--out": out.as_posix()}.items():
        command[command.index(flag) + 1] = value
    threads = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environ = {**os.environ, "PYTHONPATH": root.as_posix(), **threads, **environment}
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


@dataclass(frozen=True)
class Planting:
    """Copies of the stages that a fault changes.

    Attributes:
        root: the finished tree, which stays as it is.
        work: a folder of this fault.
        stages: outputs below `results/testbed`.
    """

    root: Path
    work: Path
    stages: tuple[str, ...]

    def finished(self, stage: str) -> Path:
        return self.root / "results" / DEFAULT_SCALE / stage

    def copy(self, stage: str) -> Path:
        """Returns the folder of a stage's copy."""
        return self.work / "planted" / stage

    def result(self) -> Path:
        """Returns the copied result of the fault's first stage."""
        return self.copy(self.stages[0]) / "result"

    def begin(self) -> None:
        for stage in self.stages:
            shutil.rmtree(self.copy(stage), ignore_errors=True)
            shutil.copytree(self.finished(stage), self.copy(stage))
            record = self.copy(stage) / "record" / "record.json"  # without digests, which planting changes
            kept = {name: value for name, value in read_json(record).items() if name not in ("files", "result_digest")}
            write_json(record, kept)

    def seal(self) -> None:
        """Makes the copied records fit the changed results."""
        for stage in self.stages:
            record = self.copy(stage) / "record" / "record.json"
            write_json(record, {**read_json(record), **digests_of(self.copy(stage) / "result")})

    def replace(self, stage: str, source: Path) -> None:
        """Puts a folder in the place of a copied stage, or of its `result`."""
        target = self.copy(stage) / "result" if source.name == "result" else self.copy(stage)
        shutil.rmtree(target)
        shutil.copytree(source, target)
        if source.name == "result" and (source.parent / RECORD).exists():
            note_used(self.copy(stage), read_json(source.parent / RECORD).get("as_used", {}))

    def again(self, name: str, stage: str, arguments: Mapping[str, str] | None = None, **changes: Change) -> Path:
        """Runs a stage again, once for each name; returns its new result.

        Args:
            arguments: values of its command line that differ.
            changes: settings that differ, by the argument that names them (`row`, `scale`, `spec`, `evaluation`).
        """
        given, command = dict(arguments or {}), commands(self.root)[stage]
        for argument, change in changes.items():
            address = command[command.index(f"--{argument}") + 1]
            key = Address(address).key or ""
            settings = read_settings(Address(self.root / address))
            page = self.work / "settings" / f"{argument}.yaml"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(yaml.safe_dump({key: merge(settings, change)}), encoding="utf-8")
            given[f"--{argument}"] = f"{page}:{key}"
        out = self.work / name
        run_stage(self.root, stage, out, given)
        return out / "result"

    def rows(self, file: str, change: Callable[[list[Row]], list[Row]]) -> None:
        """Changes the rows of a file of the first stage's copy, where it has it."""
        path = self.result() / file
        if path.exists():
            write_jsonl(path, change(read_jsonl(path)))

    def metrics(self, change: Callable[[dict[str, float]], dict[str, float]]) -> None:
        path = self.result() / "metrics.json"
        write_json(path, change(read_json(path)))


def note_used(out: Path, notes: Mapping[str, Any]) -> None:
    """Puts what a stage used into the record of a copy, as the stage itself would."""
    write_json(out / RECORD, read_json(out / RECORD) | {"as_used": notes})


Plant = Callable[[Planting], None]


def instead(other: str) -> Plant:
    """Returns a fault that puts another finished stage's output in the place of the first one's, record and all."""
    return lambda at: at.replace(at.stages[0], at.finished(other))


def exchanged(at: Planting) -> None:
    """Exchanges the outputs of two stages."""
    first, second = at.stages
    at.replace(first, at.finished(second))
    at.replace(second, at.finished(first))


def again(arguments: Mapping[str, str] | None = None, **changes: Change) -> Plant:
    """Returns a fault that runs the stage again with other arguments or settings."""
    return lambda at: at.replace(at.stages[0], at.again("again", at.stages[0], arguments, **changes))


def again_on(argument: str, data: Callable[[Planting], Path]) -> Plant:
    """Returns a fault that runs the stage again on a changed input."""
    return lambda at: again({argument: data(at).as_posix()})(at)


def evaluated(model: str | None = None, **settings: Any) -> Plant:
    """Returns a fault that evaluates a model again: another finished stage's, or with other settings."""

    def plant(at: Planting) -> None:
        source = at.result() if model is None else at.finished(model) / "result"
        if model is not None:
            shutil.rmtree(at.result() / "model")
            shutil.copytree(source / "model", at.result() / "model")
        command = [sys.executable, "-m", "benchmarks.fault_planting", str(at.root), at.stages[0], str(at.result())]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        subprocess.run([*command, json.dumps(settings)], env=environ, check=True)

    return plant


def evaluate_again(root: Path, stage: str, result: Path, settings: Change) -> None:
    """Replaces the evaluation in a result of `sft` or `policy` by that of the model beside it."""
    from rlhf_core.as_used import take_notes
    from tasks.evaluating.over_sft import over_sft
    from tasks.params.evaluation import EvaluationConfig
    from tasks.params.settings import typed
    from tasks.policy_run.run import start_run
    from tasks.running.loading import load_policy
    from tasks.running.stage import prepare_process

    prepare_process()
    take_notes()
    command = commands(root)[stage]
    given = dict(pairwise(command))
    where = given["--evaluation"]
    spec = typed(EvaluationConfig, merge(read_settings(Address(root / where)), settings), where)
    sft = root / given["--sft"] if "--sft" in given else root / given["--out"] / "result"
    run = start_run(root / given["--data"], sft, spec, None, 0)
    run.policy = load_policy(result / "model", run.encoder)
    run.policy.model.train(False)
    evaluation = run.evaluator.evaluate(run.policy)
    metrics = read_json(result / "metrics.json") | evaluation.metrics
    if "--sft" in given:
        metrics |= over_sft(run.evaluator, evaluation.generations, run.sft_answers).metrics
        metrics["kl"] = run.kl([row for row in evaluation.generations if row["benchmark"] in run.kl_sets])
    write_json(result / "metrics.json", metrics)
    write_jsonl(result / "generations.jsonl", cast(list[Row], evaluation.generations))
    write_jsonl(result / "judgements.jsonl", cast(list[Row], evaluation.judgements))
    used = read_json(result.parent / RECORD).get("as_used", {})
    note_used(result.parent, {**used, "sampling": {**used.get("sampling", {}), **take_notes().get("sampling", {})}})


if __name__ == "__main__":
    evaluate_again(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
