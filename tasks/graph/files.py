"""The graph of stages: rows, reward models, scales and seeds resolved into the files that DVC reads.

    python -m tasks.graph                     brings dvc.yaml, graph.yaml and the matrices that are there up to date
    python -m tasks.graph --matrix segment    writes a paper's matrix, pipelines/testbed/{shared,segment}/, too
    python -m tasks.graph --check             exits with 1 when one of them is not current

A matrix is written when it is first asked for, and then stays: DVC's status and checkout take every dvc.yaml of the
tree, so a matrix that nobody ran would stand there as missing.

What is read:
    params.yaml                which rows and seeds the demo and the suite have
    params/<paper>/            rows and reward models, see `tasks.graph.rows`
    params/scales/<scale>/     how big: data/, tokenizers/, evaluation/, backbones/, policy/<optimiser>.yaml and the
                               settings of the other stages
    tasks/<stage>.py           each stage's VERSION, read without importing it

`tasks.graph.matrix` says which stages there are. Every path is relative to the repository. A group of stages is a
`foreach` over the items of graph.yaml.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.graph.items import SHARED, Argument, Graph, Item, module_of
from tasks.graph.matrix import build
from tasks.graph.rows import ROOT_SCALE, load_yaml, nearest
from tasks.running.artifacts import write_whole

STAGES = (
    "prepare", "tokenizer", "segmenter", "sft", "entropies", "samples", "teacher", "generative_reward_model",
    "solution_pairs", "reward_model", "normaliser", "references", "aspect_model", "selection", "policy",
    "reward_bench", "pool", "best_of_n", "second_judge", "tables",
)  # fmt: skip
#: The name of this project in pyproject.toml.
DISTRIBUTION = "rewardsmith"
#: Arguments of stages that are no files.
NOT_PATHS = ("seed", "seeds", "paper", "results")
HEADER = "# Written by `python -m tasks.graph` (or `rewardsmith graph`); change params/ instead.\n"

#: What a stage needs while it runs, where params/scales/<scale>/resources.yaml says nothing.
CPU = {"cores": 1, "gpus": 0, "memory_gb": 2}
RESOURCES: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "testbed": dict.fromkeys(STAGES, CPU),
    "small": {
        stage: CPU if stage in ("tokenizer", "tables") else {"cores": 4, "gpus": 1, "memory_gb": 32} for stage in STAGES
    },
    "paper": {
        stage: CPU if stage in ("tokenizer", "tables") else {"cores": 32, "gpus": 8, "memory_gb": 512}
        for stage in STAGES
    },
}


def file_name(address: str) -> str:
    """A stage's address as a file name."""
    return re.sub(r"[^\w.@-]+", "_", address)


def is_checkout(root: Path) -> bool:
    """Whether a folder is a checkout of this project, whose own `tasks/` the stages run; elsewhere the installed
    package runs, and a folder `tasks` is the user's."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(project.get("project", {}).get("name") == DISTRIBUTION)


def stage_version(root: Path, stage: str) -> int | str:
    """VERSION of the module `tasks.<stage>` that stages run, read from its source (1 while it does not exist)."""
    tasks = root / "tasks" if is_checkout(root) else Path(__file__).resolve().parents[1]
    path = tasks / f"{stage}.py"
    if not path.exists():
        return 1
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise DataError(f"not valid Python ({error.msg})", file=str(path), row=error.lineno) from None
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "VERSION" for target in targets):
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, int | str):
                return value.value
    return 1


def resources(root: Path, scale: str) -> dict[str, dict[str, Any]]:
    """What each stage needs while it runs at a scale: cores, gpus and memory_gb (GiB) by the stage's name.

    Raises:
        RecipeError: params/scales/<scale>/resources.yaml names an unknown stage.
    """
    own = root / "params" / "scales" / scale / "resources.yaml"
    found: dict[str, dict[str, Any]] = {k: dict(v) for k, v in RESOURCES.get(scale, RESOURCES["small"]).items()}
    for stage, needs in (load_yaml(own) if own.exists() else {}).items():
        if stage not in found:
            raise RecipeError(f"{own}: unknown stage '{stage}'. {nearest(stage, STAGES)}")
        found[stage].update(needs)
    return found


def graph_file(root: Path, graph: Graph) -> dict[str, Any]:
    """Content of graph.yaml: what the pipeline reads by `vars:`, and what the scheduler reads."""
    content: dict[str, Any] = {
        "scale": graph.scale,
        "versions": {stage: stage_version(root, stage) for stage in STAGES},
        "resources": resources(root, graph.scale),
        "groups": _group_names(graph),
    }
    for group in content["groups"]:
        content[group] = {
            key: {"name": item.name, "owner": item.owner, "seed": item.seed, **item.flat(), "out": item.out}
            for key, item in graph.groups[group].items()
        }
    return {**content, "tables": graph.tables}


def _group_names(graph: Graph) -> list[str]:
    return sorted(graph.groups, key=lambda group: (STAGES.index(module_of(group)), group != module_of(group), group))


def _stage(module: str, arguments: Mapping[str, Argument], out: str, python: str) -> dict[str, Any]:
    """One stage: its command line, and every file or directory among its arguments as a dependency."""
    words: list[str] = []
    deps: list[str] = []
    for name, value in arguments.items():
        values = value if isinstance(value, tuple) else (str(value),)
        words += [f"--{name.replace('_', '-')}", *values]
        deps += values if name not in NOT_PATHS else ()
    version = f"${{versions.{module}}}"
    return {
        "cmd": f"{python} -m tasks.{module} {' '.join(words)} --out {out} --stage-version {version}",
        "deps": deps,
        "outs": [f"{out}/result", f"{out}/record"],
    }


def _template(item: Item, python: str) -> dict[str, Any]:
    """The stage of a group, its values taken from the item."""
    fields: dict[str, Argument] = {
        name: tuple(f"${{item.{name}_{i + 1}}}" for i in range(len(value)))
        if isinstance(value, tuple)
        else f"${{item.{name}}}"
        for name, value in item.arguments.items()
    }
    return _stage(item.module, fields, "${item.out}", python)


def pipeline_file(root: Path, graph: Graph, folder: Path) -> dict[str, Any]:
    """Content of dvc.yaml for a graph in a folder relative to the root."""
    python = "python" if is_checkout(root) else "python -P"
    depth = len(folder.parts)
    stages: dict[str, Any] = {}
    for group in _group_names(graph):
        template = _template(next(iter(graph.groups[group].values())), python)
        stages[group] = {"foreach": f"${{{group}}}", "do": template}
    metrics, plots = [], []
    for paper, item in graph.tables.items():
        seeds = tuple(map(str, item["seeds"]))
        arguments: dict[str, Argument] = {"results": f"results/{graph.scale}", "paper": paper, "seeds": seeds}
        arguments["graph"] = (folder / "graph.yaml").as_posix()
        stages[f"tables-{paper}"] = _stage("tables", arguments, item["out"], python) | {"deps": item["deps"]}
        result = f"{'../' * depth}{item['out']}/result"
        metrics.append(f"{result}/metrics.json")
        plots.append({f"{result}/curves.csv": {"x": "step", "y": "value", "template": "curves"}})
    if depth:
        for stage in stages.values():
            stage.get("do", stage)["wdir"] = "/".join([".."] * depth)
    shown = {"metrics": metrics, "plots": plots} if metrics else {}
    return {"vars": ["graph.yaml"], "stages": stages, **shown}


class _Plain(yaml.CSafeDumper):
    """YAML without anchors, which readers of a generated file would have to follow."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def matrix_folders(scale: str, paper: str) -> tuple[Path, ...]:
    """Where a paper's matrix at a scale stands: what it shares with others, and its own."""
    return tuple(Path("pipelines") / scale / name for name in (SHARED, paper))


def render(root: Path, wanted: Collection[Path] = (), graphs: Mapping[Path, Graph] | None = None) -> dict[Path, str]:
    """Text of every generated file by its path: the root's, those of matrices that are there, and of wanted ones.

    Args:
        graphs: what `build` gives, where it is known.

    Raises:
        RecipeError: a wanted matrix that no row makes.
    """
    files = {}
    graphs = build(root) if graphs is None else graphs
    for folder in wanted:
        if folder not in graphs and folder.name != SHARED:
            raise RecipeError(f"no row of {folder.name} has a backbone at scale {folder.parent.name}")
    for folder, graph in graphs.items():
        if folder.parts and folder not in wanted and not (root / folder / "dvc.yaml").exists():
            continue
        for name, value in (("graph.yaml", graph_file(root, graph)), ("dvc.yaml", pipeline_file(root, graph, folder))):
            files[folder / name] = HEADER + yaml.dump(value, Dumper=_Plain, sort_keys=False, width=110)
    return files


def stale(root: Path, texts: Mapping[Path, str]) -> list[Path]:
    """Generated files that differ from what `render` gives, or that nothing gives."""
    changed = [
        path
        for path, text in texts.items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]
    there = {path.relative_to(root) for path in (root / "pipelines").glob("*/*/*.yaml")}
    return [*changed, *sorted(there - set(texts))]


def stale_files(root: Path) -> list[Path]:
    """Generated files that differ from what params/ and the stages' versions give now, or that nothing gives."""
    return stale(root, render(root))


def put(root: Path, texts: Mapping[Path, str], changed: Collection[Path]) -> None:
    """Writes the changed files, and removes those that nothing gives."""
    for path in changed:
        if path in texts:
            write_whole(root / path, texts[path])  # DVC may be reading it
        else:
            (root / path).unlink()


def write(root: Path, wanted: Collection[Path] = ()) -> list[Path]:
    """Writes the generated files that are not current, removes those that nothing gives, and returns both."""
    texts = render(root, wanted)
    changed = stale(root, texts)
    put(root, texts, changed)
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.graph", description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--matrix", metavar="PAPER", help="also write this paper's matrix")
    parser.add_argument("--scale", default=ROOT_SCALE, help="of the matrix (default: testbed)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when not current")
    options = parser.parse_args(arguments)
    wanted = matrix_folders(options.scale, options.matrix) if options.matrix else ()
    try:
        if options.check:
            stale = stale_files(options.root)
            if stale:
                print(f"not current: {', '.join(map(str, stale))}; run `python -m tasks.graph`", file=sys.stderr)
            return 1 if stale else 0
        for path in write(options.root, wanted):
            print(f"wrote {path}")
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
