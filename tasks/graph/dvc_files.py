"""The graph of stages: rows, reward models, scales and seeds resolved into the files that DVC reads.

    rewardsmith graph                     brings dvc.yaml and the matrices that are there up to date
    rewardsmith graph --matrix segment    writes a paper's matrix, pipelines/testbed/{shared,segment}/, too
    rewardsmith graph --check             exits with 1 when one of them is not current

A matrix is written when it is first asked for, and then stays: DVC's status and checkout take every dvc.yaml of the
tree, so a matrix that nobody ran would appear there as missing.

What is read:
    params.yaml                which rows and seeds the demo, demo-all and the suite have
    params/<paper>/            pages of rows and reward models, see `tasks.graph.rows`
    params/scales/<scale>/     how big, see `tasks.params.scales`
    tasks/<stage>.py           each stage's VERSION, read without importing it

`tasks.graph.matrix` says which stages there are. Every path is relative to the repository. A stage depends on the keys
of pages that its settings are made of (`params:`), so a changed value of a row runs that row again, and DVC's own
`params diff`, `exp run -S`, `exp show` and `metrics diff` work. `meta` of a stage is what the scheduler reads.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph.check import check_all
from tasks.graph.code_dependencies import Reads, reads
from tasks.graph.items import SHARED, Graph, Item, result_of
from tasks.graph.matrix import HEADLINE_ROWS, build
from tasks.graph.results import HEADLINE_FILE, HEADLINES
from tasks.graph.typed_settings import typed_settings
from tasks.params import scales
from tasks.params.pages import Address, read_page, read_settings
from tasks.params.scales import DEFAULT_SCALE
from tasks.params.yaml_files import write_whole, yaml_text

STAGES = (
    "check", "prepare", "tokenizer", "segmenter", "sft", "entropies", "samples", "teacher", "generative_reward_model",
    "solution_pairs", "reward_model", "normaliser", "references", "aspect_model", "selection", "policy",
    "reward_bench", "pool", "best_of_n", "second_judge", "tables",
)  # fmt: skip
#: The name of this project in pyproject.toml.
DISTRIBUTION = "rewardsmith"
#: Arguments of stages that are not files.
NOT_PATHS = ("seed", "seeds", "world", "paper", "results", "rows")
HEADER = "# Written by `rewardsmith graph`; change params/ instead.\n"

#: A stage's version in its module.
_VERSION = re.compile(r"^VERSION(?:: int)? = (\d+)", re.MULTILINE)

#: Resources of a running stage by default; `resources` of params/scales/<scale>/stages.yaml overrides them.
CPU = {"cores": 1, "gpus": 0, "memory_gb": 2}
ON_CPU = ("check", "tokenizer", "tables")
RESOURCES: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "testbed": dict.fromkeys(STAGES, CPU),
    "small": {stage: CPU if stage in ON_CPU else {"cores": 4, "gpus": 1, "memory_gb": 32} for stage in STAGES},
    "paper": {stage: CPU if stage in ON_CPU else {"cores": 32, "gpus": 8, "memory_gb": 512} for stage in STAGES},
}


def file_name(address: str) -> str:
    """Returns a stage's address as a file name."""
    return re.sub(r"[^\w.@-]+", "_", address)


def is_checkout(root: Path) -> bool:
    """Returns whether a folder is a checkout of this project, whose own `tasks/` the stages run; elsewhere the
    installed package runs, and a folder `tasks` is the user's."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(project.get("project", {}).get("name") == DISTRIBUTION)


def stage_version(root: Path, stage: str) -> int:
    """Returns VERSION of the module `tasks.<stage>` that stages run, read from its source (1 while it does not
    exist)."""
    tasks = root / "tasks" if is_checkout(root) else Path(__file__).resolve().parents[1]
    path = tasks / f"{stage}.py"
    found = _VERSION.search(path.read_text(encoding="utf-8")) if path.exists() else None
    return 1 if found is None else int(found[1])


def resources(root: Path, scale: str) -> dict[str, dict[str, Any]]:
    """Returns the resources of each stage at a scale: cores, gpus and memory_gb (GiB), by the stage's name.

    Raises:
        RecipeError: `resources` of params/scales/<scale>/stages.yaml names an unknown stage.
    """
    found: dict[str, dict[str, Any]] = {k: dict(v) for k, v in RESOURCES.get(scale, RESOURCES["small"]).items()}
    own = scales.scale_entries(root, scale, scales.STAGES).get(scales.RESOURCES)
    for stage, needs in ({} if own is None else typed_settings(root).get(own)).items():
        if stage not in found:
            raise RecipeError(f"{own}: unknown stage '{stage}'{hint(stage, STAGES, more=3)}")
        found[stage].update({name: value for name, value in vars(needs).items() if value is not None})
    return found


def _stage(item: Item, root: Path, run: str, version: int, needs: Mapping[str, Any], own: Reads) -> dict[str, Any]:
    """Returns one stage: its command line, what it reads, and what it leaves.

    Args:
        run: what runs a module, such as `python -m`.
        version: of the module.
        needs: cores, gpus and memory_gb.
        own: code and data of the user's own that its settings name. Installed packages stand in a comment of the
            command, so that another version runs the stage again.
    """
    words: list[str] = []
    deps: list[str] = []
    for name, value in item.arguments.items():
        values = value if isinstance(value, tuple) else (str(value) if isinstance(value, int) else value,)
        _check_words(values, f"stage {item.stage}: --{name.replace('_', '-')}")
        words += [f"--{name.replace('_', '-')}", *values]
        if name not in NOT_PATHS:
            deps += [one for one in values if not isinstance(one, Address)]
    after = [result_of(one) if isinstance(one, Item) else one for one in item.after]
    outs = {"outs": [f"{item.out}/result", f"{item.out}/record"]}
    if item.module in HEADLINES:
        outs["metrics"] = [f"{item.out}/{HEADLINE_FILE}"]
    params = _params(root, item.addresses)
    _check_words((item.out,), f"stage {item.stage}: --out")
    command = f"{run} tasks.{item.module} {shlex.join([*words, '--out', item.out])} --stage-version {version}"
    meta = {"module": item.module, "owner": item.owner, "name": item.name, "seed": item.seed, "needs": dict(needs)}
    return {
        "cmd": f"{command} # {' '.join(own.versions)}" if own.versions else command,
        **({"params": params} if params else {}),
        "deps": [*deps, *after, *(file for file in own.files if file not in deps)],
        **outs,
        "meta": {name: value for name, value in meta.items() if value is not None},
    }


def _check_words(words: Iterable[str], where: str) -> None:
    """Refuses arguments that DVC would not pass on as they are, quoted or not."""
    for word in words:
        if not word.isprintable() or "${" in word or word.startswith("-") or not word:
            raise RecipeError(
                f"{where} is {word!r}; a path or name is not empty, does not begin with '-' and has no line breaks, "
                "control characters or '${'. Rename it"
            )


def _params(root: Path, addresses: Iterable[Address]) -> list[str | dict[str, list[str]]]:
    """Returns DVC's parameters of some entries: the keys of each page that they are made of."""
    keys: dict[str, list[str]] = {}
    for address in addresses:
        own = [] if address.key is None else read_page(root / address.file).keys(address.key)
        known = keys.setdefault(address.file.as_posix(), [])
        known += [key for key in own if key not in known]
    return [{file: names} for file, names in keys.items()]


def pipeline_file(root: Path, graph: Graph, folder: Path) -> dict[str, Any]:
    """Returns the content of dvc.yaml for a graph in a folder relative to the root."""
    run = "python -m" if is_checkout(root) else "python -P -m"
    versions = {stage: stage_version(root, stage) for stage in STAGES}
    needs = resources(root, graph.scale)
    items = sorted(graph.items(), key=lambda item: (STAGES.index(item.module), item.stage))
    stages, known = {}, dict[Address, Reads]()
    for item in (*items, *graph.tables.values()):
        own = Reads()
        for address in (*item.addresses, *item.reads):
            if address not in known:
                known[address] = reads(root, read_settings(address.under(root)))
            own |= known[address]
        stages[item.stage] = _stage(item, root, run, versions[item.module], needs[item.module], own)
    depth = len(folder.parts)
    if depth:
        stages = {name: {"wdir": "/".join([".."] * depth), **stage} for name, stage in stages.items()}
    results = [f"{'../' * depth}{item.out}/result" for item in graph.tables.values()]
    plots = [{f"{result}/curves.csv": {"x": "step", "y": "value", "template": "curves"}} for result in results]
    return {"stages": stages, **({"plots": plots} if plots else {})}


def matrix_folders(scale: str, paper: str) -> tuple[Path, ...]:
    """Returns the folders of a paper's matrix at a scale: the folder shared with other papers, that of the headline
    rows, of which a matrix has the rest, and its own."""
    shared, own = (Path("pipelines") / scale / name for name in (SHARED, paper))
    return (shared, HEADLINE_ROWS, own) if scale == DEFAULT_SCALE else (shared, own)


def render(root: Path, wanted: Collection[Path] = (), graphs: Mapping[Path, Graph] | None = None) -> dict[Path, str]:
    """Returns the text of every generated file by its path: the root's, those of matrices that are there, and of wanted
    ones.

    Args:
        graphs: what `build` gives for the files that are asked for.

    Raises:
        RecipeError: a wanted matrix that no row makes.
    """
    files = {}
    graphs = build(root) if graphs is None else graphs
    for folder in wanted:
        if folder not in graphs and folder != HEADLINE_ROWS and folder.name != SHARED:
            raise RecipeError(f"no row of {folder.name} has a backbone at scale {folder.parent.name}")
    for folder, graph in graphs.items():
        if folder.parts and folder not in wanted and not (root / folder / "dvc.yaml").exists():
            continue
        content = pipeline_file(root, graph, folder)
        files[folder / "dvc.yaml"] = HEADER + yaml_text(content)
    return files


def stale(root: Path, texts: Mapping[Path, str], scales: Collection[str] | None = None) -> list[Path]:
    """Returns the generated files that differ from what `render` gives, or that nothing gives.

    Args:
        scales: of which the texts are; None for all.
    """
    changed = [
        path
        for path, text in texts.items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]
    there = {path.relative_to(root) for path in (root / "pipelines").glob("*/*/*.yaml")}
    there = {path for path in there if scales is None or path.parts[1] in scales}
    return [*changed, *sorted(there - set(texts))]


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


def check_graph(root: Path) -> list[Path]:
    """Returns the generated files that are not current, and writes none.

    Raises:
        RecipeError: what any stage of any row would refuse, every problem in a line.
    """
    check_all(root)
    return stale(root, render(root))


def update_graph(root: Path, wanted: Collection[Path] = ()) -> None:
    """Writes the generated files, says which, and warns of settings that are not valid: their rows are left out."""
    for path in write(root, wanted):
        print(f"wrote {path}")
    try:
        check_all(root)
    except RecipeError as error:
        for problem in str(error).splitlines():
            print(f"warning: {problem}", file=sys.stderr)
