"""The graph of stages: rows, reward models, scales and seeds resolved into the files that DVC reads.

    python -m tasks.graph            writes dvc.yaml, graph.yaml and pipelines/<scale>/<paper>/{dvc,graph}.yaml
    python -m tasks.graph --check    exits with 1 when one of them is not current

What is read:
    params.yaml                                which rows and seeds the demo and the suite have
    params/<paper>/rows/<row>.yaml             one row of the paper each
    params/<paper>/reward_models/<name>.yaml   reward models, shared by rows (or .../<backbone>/<name>.yaml)
    params/scales/<scale>/                     how big: data, tokenizer, backbones, training, evaluation
    tasks/<stage>.py                           each stage's VERSION, read without importing it

The root files hold the demo-sized rows and what they share, so that `dvc repro` without a target stays
short. `pipelines/testbed/<paper>/` holds the rest of that paper's matrix and reads what the root makes;
`pipelines/<scale>/<paper>/` the whole matrix of another scale. Every path is relative to the repository.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError, RewardsmithError

STAGES = ("prepare", "tokenizer", "sft", "entropies", "reward_model", "normaliser", "policy", "tables")
#: Groups of stages made by `foreach`; `supervised` rows run `tasks.policy` without a reward model.
GROUPS = ("sft", "entropies", "reward_model", "normaliser", "policy", "supervised")
ROOT_SCALE = "testbed"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
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


@dataclass(frozen=True)
class RowSpec:
    """One row file. `kind` raw: the backbone itself, measured by its SFT stage."""

    paper: str
    name: str
    path: str
    kind: str
    backbone: str
    reward_model: str | None = None


@dataclass
class Graph:
    """The stages of one dvc.yaml: items of each group by key, and the tables stage."""

    scale: str
    groups: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {g: {} for g in GROUPS})
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    shared_stages: bool = True

    def outputs(self) -> set[str]:
        return {item["out"] for items in self.groups.values() for item in items.values()}


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; a missing, unreadable or differently shaped file is named."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"not valid YAML ({error})", file=str(path)) from None
    if not isinstance(value, dict):
        raise DataError("expected a mapping of settings", file=str(path))
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known names nearest to an unknown one."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(c) for c in close)}?" if close else f"Known: {', '.join(names)}"


def file_name(address: str) -> str:
    """A stage's address as a file name."""
    return re.sub(r"[^\w.@-]+", "_", address)


def stage_version(root: Path, stage: str) -> int | str:
    """VERSION of `tasks/<stage>.py`, read from its source (1 while the module does not exist)."""
    path = root / "tasks" / f"{stage}.py"
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


def load_rows(root: Path, paper: str) -> dict[str, RowSpec]:
    """Every row of a paper by name."""
    rows = {}
    for path in sorted((root / "params" / paper / "rows").glob("*.yaml")):
        values = load_yaml(path)
        name, where = path.stem, path.relative_to(root).as_posix()
        if not NAME.fullmatch(name):
            raise RecipeError(f"{where}: a row's name may hold small letters, digits, '-', '_' and '.' only")
        kind, backbone = values.get("kind", "reward"), values.get("backbone")
        if kind not in ("reward", "supervised", "raw"):
            raise RecipeError(f"{where}: kind is '{kind}'; it must be reward, supervised or raw")
        if not isinstance(backbone, str):
            raise RecipeError(f"{where}: 'backbone' is missing; it names params/scales/<scale>/backbones/<it>.yaml")
        reward_model = values.get("reward_model")
        if kind == "reward" and not isinstance(reward_model, str):
            raise RecipeError(f"{where}: a row of kind reward must name its 'reward_model'")
        model = str(reward_model) if kind == "reward" else None
        rows[name] = RowSpec(paper, name, where, kind, backbone, model)
    return rows


def raw_row(paper: str, backbone: str) -> RowSpec:
    """The row of a backbone as it is, which its SFT stage measures."""
    return RowSpec(paper, backbone, f"params/scales/{ROOT_SCALE}/backbones/{backbone}.yaml", "raw", backbone)


def row_named(root: Path, paper: str, name: str, rows: Mapping[str, RowSpec]) -> RowSpec:
    """A row by name; a backbone's name stands for the raw backbone."""
    if name in rows:
        return rows[name]
    backbones = {p.stem for p in (root / "params" / "scales" / ROOT_SCALE / "backbones").glob("*.yaml")}
    if name in backbones:
        return raw_row(paper, name)
    raise RecipeError(f"unknown row '{name}' of {paper}. {nearest(name, {*rows, *backbones})}")


def reward_model_spec(root: Path, row: RowSpec) -> tuple[str, str]:
    """Key and file of the reward model that a row names, which must be of the row's backbone."""
    folder = root / "params" / row.paper / "reward_models"
    nested, flat = folder / row.backbone / f"{row.reward_model}.yaml", folder / f"{row.reward_model}.yaml"
    if nested.exists():
        return f"{row.backbone}-{row.reward_model}", nested.relative_to(root).as_posix()
    if not flat.exists():
        known = {path.stem for path in folder.rglob("*.yaml")}
        raise RecipeError(
            f"{row.path}: unknown reward_model '{row.reward_model}'. {nearest(str(row.reward_model), known)}"
        )
    declared = load_yaml(flat).get("backbone")
    if declared is None:
        return f"{row.backbone}-{row.reward_model}", flat.relative_to(root).as_posix()
    if declared != row.backbone:
        raise RecipeError(
            f"{row.path}: backbone is '{row.backbone}' but reward model '{row.reward_model}' is of '{declared}'"
        )
    return str(row.reward_model), flat.relative_to(root).as_posix()


def add_row(graph: Graph, root: Path, row: RowSpec, seed: int) -> None:
    """Adds a row's stage of one seed and everything above it."""
    place, groups, scale = f"results/{graph.scale}", graph.groups, f"params/scales/{graph.scale}"
    spec = f"{scale}/backbones/{row.backbone}.yaml"
    if not (root / spec).exists():
        known = [path.stem for path in (root / scale / "backbones").glob("*.yaml")]
        raise RecipeError(f"{row.path}: unknown backbone '{row.backbone}'. {nearest(row.backbone, known)}")
    base = f"{row.backbone}-{seed}"
    sft, entropies = (f"{place}/shared/{kind}/{row.backbone}/{seed}" for kind in ("sft", "entropies"))
    groups["sft"][base] = {"spec": spec, "seed": seed, "out": sft}
    if row.kind == "raw":
        return
    above = {"sft": f"{sft}/result"}
    policy: dict[str, Any] = {"row": row.path, "seed": seed, **above}
    out = f"{place}/{row.paper}/policy/{row.name}/{seed}"
    if row.kind == "supervised":
        groups["supervised"][f"{row.name}-{seed}"] = {**policy, "out": out}
        return
    name, model_spec = reward_model_spec(root, row)
    model, normaliser = (f"{place}/{row.paper}/{kind}/{name}/{seed}" for kind in ("reward_model", "normaliser"))
    groups["entropies"][base] = {**above, "out": entropies}
    above["entropies"] = f"{entropies}/result"
    groups["reward_model"][f"{name}-{seed}"] = {"spec": model_spec, "seed": seed, **above, "out": model}
    groups["normaliser"][f"{name}-{seed}"] = {**above, "reward_model": f"{model}/result", "out": normaliser}
    scored = {
        "entropies": f"{entropies}/result",
        "reward_model": f"{model}/result",
        "normaliser": f"{normaliser}/result",
    }
    groups["policy"][f"{row.name}-{seed}"] = {**policy, **scored, "out": out}


def add_tables(graph: Graph, paper: str, rows: Iterable[RowSpec], seeds: Iterable[int], out: str) -> None:
    """The tables stage, which reads the results of its rows and of everything before them."""
    made = {item["out"] for items in graph.groups.values() for item in items.values()}
    deps = sorted(f"{out}/result" for out in {*made, f"results/{graph.scale}/shared/data"})
    names = sorted({row.name for row in rows})
    graph.tables[paper] = {"rows": names, "seeds": sorted(seeds), "deps": deps, "out": out}


def without(graph: Graph, made: set[str]) -> Graph:
    """The stages of a graph whose outputs are not made elsewhere."""
    rest = Graph(graph.scale, tables=graph.tables, shared_stages=False)
    for group, items in graph.groups.items():
        rest.groups[group] = {key: item for key, item in items.items() if item["out"] not in made}
    return rest


def build(root: Path) -> dict[Path, Graph]:
    """Every graph by its folder, relative to the root.

    Raises:
        RecipeError: an unknown row, backbone or reward model, or two that contradict each other.
    """
    settings = load_yaml(root / "params.yaml")
    demo_rows: dict[str, list[str]] = settings["demo"]["rows"]
    demo_seeds, suite_seeds = settings["demo"]["seeds"], settings["suite"]["seeds"]
    graphs = {Path(): Graph(ROOT_SCALE)}
    papers = {paper: load_rows(root, paper) for paper in demo_rows}
    for paper, names in demo_rows.items():
        chosen = [row_named(root, paper, name, papers[paper]) for name in names]
        for row in chosen:
            for seed in demo_seeds:
                add_row(graphs[Path()], root, row, seed)
        add_tables(graphs[Path()], paper, chosen, demo_seeds, f"results/{ROOT_SCALE}/{paper}/tables-demo")
    scales = sorted(path.name for path in (root / "params" / "scales").iterdir() if path.is_dir())
    for paper, rows in papers.items():
        for scale in scales:
            full = Graph(scale)
            seeds = suite_seeds if scale == ROOT_SCALE else settings["suite"].get("scale_seeds", [0])
            raw = {row.backbone for row in rows.values()} | set(demo_rows[paper])
            every = rows | {name: raw_row(paper, name) for name in raw if name not in rows}
            for row in every.values():
                for seed in seeds:
                    add_row(full, root, row, seed)
            add_tables(full, paper, every.values(), seeds, f"results/{scale}/{paper}/tables")
            if scale == ROOT_SCALE:
                full = without(full, graphs[Path()].outputs())
            graphs[Path("pipelines") / scale / paper] = full
    return graphs


def graph_file(root: Path, graph: Graph) -> dict[str, Any]:
    """Content of graph.yaml: what the pipeline reads by `vars:`, and what the scheduler reads."""
    own = root / "params" / "scales" / graph.scale / "resources.yaml"
    resources: dict[str, Any] = {k: dict(v) for k, v in RESOURCES.get(graph.scale, RESOURCES["small"]).items()}
    for stage, needs in (load_yaml(own) if own.exists() else {}).items():
        if stage not in resources:
            raise RecipeError(f"{own}: unknown stage '{stage}'. {nearest(stage, STAGES)}")
        resources[stage].update(needs)
    return {
        "scale": graph.scale,
        "versions": {stage: stage_version(root, stage) for stage in STAGES},
        "resources": resources,
        **{group: items for group, items in graph.groups.items() if items},
        "tables": graph.tables,
    }


def _stage(module: str, arguments: Mapping[str, str], out: str) -> dict[str, Any]:
    """One stage: its command line, and every file or directory among its arguments as a dependency."""
    line = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in arguments.items())
    version = f"${{versions.{module}}}"
    return {
        "cmd": f"python -m tasks.{module} {line} --out {out} --stage-version {version}",
        "deps": [value for name, value in arguments.items() if name not in NOT_PATHS],
        "outs": [f"{out}/result", f"{out}/record"],
    }


def _items(*names: str) -> dict[str, str]:
    return {name: f"${{item.{name}}}" for name in names}


def stage_templates(scale: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Module and arguments of each group of stages at a scale."""
    params = f"params/scales/{scale}"
    data = {"data": f"results/{scale}/shared/data/result"}
    tokenizer = {"tokenizer": f"results/{scale}/shared/tokenizer/result"}
    evaluation = {"evaluation": f"{params}/evaluation.yaml"}
    policy = {**_items("row"), "scale": f"{params}/policy.yaml", **evaluation, **data, **_items("sft")}
    return {
        "prepare": ("prepare", {"spec": f"{params}/data.yaml"}),
        "tokenizer": ("tokenizer", {"spec": f"{params}/tokenizer.yaml", **data}),
        "sft": ("sft", {**_items("spec"), **evaluation, **data, **tokenizer, **_items("seed")}),
        "entropies": ("entropies", {"spec": f"{params}/entropies.yaml", **data, **_items("sft")}),
        "reward_model": (
            "reward_model",
            _items("spec") | {"scale": f"{params}/reward_model.yaml"} | data | _items("sft", "entropies", "seed"),
        ),
        "normaliser": (
            "normaliser",
            {"scale": f"{params}/normaliser.yaml", **data, **_items("sft", "entropies", "reward_model")},
        ),
        "policy": ("policy", policy | _items("entropies", "reward_model", "normaliser", "seed")),
        "supervised": ("policy", policy | _items("seed")),
    }


def pipeline_file(graph: Graph, depth: int) -> dict[str, Any]:
    """Content of dvc.yaml for a graph that lies `depth` folders below the root."""
    templates, up = stage_templates(graph.scale), "../" * depth
    stages: dict[str, Any] = {}
    if graph.shared_stages:
        for name, folder in (("prepare", "data"), ("tokenizer", "tokenizer")):
            stages[name] = _stage(*templates[name], f"results/{graph.scale}/shared/{folder}")
    for group in GROUPS:
        if graph.groups[group]:
            stages[group] = {"foreach": f"${{{group}}}", "do": _stage(*templates[group], "${item.out}")}
    metrics, plots = [], []
    for paper, item in graph.tables.items():
        seeds = " ".join(map(str, item["seeds"]))
        declared = f"pipelines/{graph.scale}/{paper}/graph.yaml" if depth else "graph.yaml"
        arguments = {"results": f"results/{graph.scale}", "paper": paper, "seeds": seeds, "graph": declared}
        stages[f"tables-{paper}"] = _stage("tables", arguments, item["out"]) | {"deps": item["deps"]}
        metrics.append(f"{up}{item['out']}/result/metrics.json")
        plots.append({f"{up}{item['out']}/result/curves.csv": {"x": "step", "y": "value", "template": "curves"}})
    if depth:
        for stage in stages.values():
            stage.get("do", stage)["wdir"] = "/".join([".."] * depth)
    return {"vars": ["graph.yaml"], "stages": stages, "metrics": metrics, "plots": plots}


class _Plain(yaml.SafeDumper):
    """YAML without anchors, which readers of a generated file would have to follow."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(root: Path) -> dict[Path, str]:
    """Text of every generated file by its path relative to the root."""
    files = {}
    for folder, graph in build(root).items():
        for name, value in (
            ("graph.yaml", graph_file(root, graph)),
            ("dvc.yaml", pipeline_file(graph, len(folder.parts))),
        ):
            files[folder / name] = HEADER + yaml.dump(value, Dumper=_Plain, sort_keys=False, width=110)
    return files


def stale_files(root: Path) -> list[Path]:
    """Generated files that differ from what params/ and the stages' versions give now."""
    return [
        path
        for path, text in render(root).items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]


def write(root: Path) -> list[Path]:
    """Writes the generated files that are not current and returns them."""
    changed = stale_files(root)
    texts = render(root)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(texts[path], encoding="utf-8")
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.graph", description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when not current")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            stale = stale_files(options.root)
            if stale:
                print(f"not current: {', '.join(map(str, stale))}; run `python -m tasks.graph`", file=sys.stderr)
            return 1 if stale else 0
        for path in write(options.root):
            print(f"wrote {path}")
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
