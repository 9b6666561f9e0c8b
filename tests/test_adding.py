"""docs/adding.md as it stands: each of its choices is added to an installed package, and named from a user's folder.

Both are planned, refused when misspelt, and run by the stages that use them, in fresh processes outside the clone.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.small_repository import PROJECT, clean_environment, command, write_yaml
from tests.tasks.golden_settings import DATA, SUPERVISED, policy_scale
from tests.tasks.golden_settings import SETTINGS as GOLDEN
from tests.tasks.tiny_pipeline import SETTINGS as TINY

DOCUMENT = PROJECT / "docs" / "adding.md"
BLOCK = re.compile(r"^```python\n# ([A-Z_]+), ([\w/]+\.py): (\"(\w+)\": (\w+),)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Module with all choices of your own project.
OWN_MODULE = "my_choices"
PACKAGES = ("rlhf_core", "tasks", "flows")
#: Tables of an option within a choice, such as which deviation of a group; and of protocols, which a paper states.
WITHOUT_EXAMPLE = {
    "BASES", "CRITICS", "GIVES", "GROUP_STDS", "KL_PLACEMENTS", "LOSS_AVERAGES", "PROTOCOLS", "REGRESSIONS", "SOURCES",
    "VALUE_TARGETS", "WHITENINGS",
}  # fmt: skip


@dataclass(frozen=True)
class Added:
    """A choice that the page adds.

    Attributes:
        table, file: where it is listed.
        line: what is added to the table.
        name: in the table.
        entry: class, function or object behind it.
        code: everything but the line.
    """

    table: str
    file: str
    line: str
    name: str
    entry: str
    code: str

    @property
    def functions(self) -> set[str]:
        """Names of functions and methods that a stage calls; `check` is called by whoever reads settings."""
        found = (node for node in ast.walk(ast.parse(self.code)) if isinstance(node, ast.FunctionDef))
        return {node.name for node in found} - {"check"}


ADDED = [Added(*found) for found in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))]
BY_TABLE = {added.table: added for added in ADDED}

#: Runs in a user's folder with nothing but the installed package: misspells each name and asks for a plan, or runs
#: every stage of the pipeline files and notes which functions were called. Prints JSON.
DRIVER = """
import contextlib, importlib, io, json, shlex, sys
from pathlib import Path

import yaml

def refusals(cases):
    from tasks.command_line import app
    said = {}
    for name, (page, misspelt) in cases.items():
        text = Path(page).read_text()
        Path(page).write_text(misspelt)
        heard = io.StringIO()
        sys.argv = ["rewardsmith", "plan", "toys"]
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            try:
                app()
                code = 0
            except SystemExit as stop:
                code = stop.code
        said[name] = [code, heard.getvalue()]
        Path(page).write_text(text)
    return said

def stages():
    called = set()
    def note(frame, event, argument):
        called.add((frame.f_code.co_filename, frame.f_code.co_name))
    files = [Path("dvc.yaml"), *sorted(Path("pipelines").glob("*/shared/dvc.yaml")),
             *sorted(Path("pipelines").glob("*/toys/dvc.yaml"))]
    lines = {}
    for file in files:
        if file.exists():
            for name, stage in (yaml.safe_load(file.read_text())["stages"] or {}).items():
                lines[stage["outs"][0]] = shlex.split(stage["cmd"], comments=True)
    sys.settrace(note)
    for line in lines.values():
        at = line.index("-m")
        if line[at + 1] not in ("tasks.tables", "tasks.check"):
            importlib.import_module(line[at + 1]).main(line[at + 2:])
    sys.settrace(None)
    return sorted(called)

if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        found = refusals(given["refusals"]) if "refusals" in given else stages()
    print(json.dumps(found))
"""


def choices(*, own: bool) -> dict[str, str]:
    """Returns how settings name each table's new choice: by its short name, or as `module:name` of the user's own."""
    return {added.table: f"{OWN_MODULE}:{added.entry}" if own else added.name for added in ADDED}


def pages(named: dict[str, str], *, own: bool) -> dict[str, dict[str, Any]]:
    """Returns the pages of a study that names every new choice, by file."""
    segmenter = {"kind": named["SEGMENTERS"]}
    bandit = {"segmenter": {"kind": "bandit"}, "aggregation": "mean", "loss": "bradley_terry"}
    learned = {
        "segmenter": segmenter,
        "aggregation": named["AGGREGATIONS"],
        "loss": {"kind": named["LOSSES"], "margin": 0.5},
    }
    component = {
        "reward_model": "learned",
        "readout": {"segmenter": segmenter, "read": named["READS"]},
        "normaliser": named["NORMALISERS"],
        "shaping": {"kind": named["SHAPINGS"]},
        "credit": named["CREDITS"],
    }
    optimiser = {
        "kind": named["OPTIMISERS"],
        "advantage": named["ADVANTAGES"],
        "objective": named["OBJECTIVES"],
        "kl_estimator": named["KL_ESTIMATORS"],
        "lr_schedule": named["SCHEDULES"],
    }
    taught = {"kind": "rft", "additional": "teacher"}
    drawn = {"max_new_tokens": 12, "engine": named["ENGINES"]}
    sizes = {name: value for name, value in TINY["ppo"]["optimiser"].items() if name != "critic_lr"}
    scale = "params/scales/testbed"
    rows: dict[str, Any] = {
        "rewarded": {
            "kind": "reward", "backbone": "tiny", "selection": "compared", "settings": "sizes",
            "combination": {"kind": named["COMBINATIONS"]}, "optimiser": optimiser,
            "components": [component, {"aspect": "selected"}],
        },
        "supervised": {
            "kind": "supervised", "backbone": "tiny", "settings": "texts", "optimiser": {"kind": named["RECIPES"]},
        },
        "taught": {"kind": "supervised", "backbone": "reasoner", "settings": "texts", "optimiser": taught},
    }  # fmt: skip
    evaluation = {**TINY["evaluation"], "only": ["alpaca"], "judge": {"kind": named["JUDGES"]}}
    reasoner = {**GOLDEN["reasoner"], "data": "sums", "tokenizer": "sums", "evaluation": "sums"}
    fitted = {**TINY["normaliser"], **({"own": [named["NORMALISERS"]]} if own else {})}
    return {
        "params/toys/rows.yaml": {name: {"title": name.capitalize(), **row} for name, row in rows.items()},
        "params/toys/reward_models.yaml": {
            "learned": {"title": "Learned", "backbone": "tiny", **learned},
            "whole": {"title": "Whole", "backbone": "tiny", **bandit},
        },
        "params/toys/selections.yaml": {
            "compared": {"title": "Compared", "backbone": "tiny", "holistic": "whole", "aspects": ["modest", "long"]}
            | {"rule": {"kind": named["RULES"]}},
        },
        f"{scale}/data.yaml": {"dialogue": TINY["data"], "sums": DATA["data/mathematics"]},
        f"{scale}/tokenizers.yaml": {"dialogue": TINY["tokenizer"], "sums": TINY["question_tokenizer"]},
        f"{scale}/evaluation.yaml": {"dialogue": evaluation, "sums": GOLDEN["question_evaluation"]},
        f"{scale}/backbones.yaml": {"tiny": TINY["backbone"], "reasoner": reasoner},
        f"{scale}/aspects.yaml": {"modest": {"aspect": {"kind": named["ASPECTS"]}}, "long": GOLDEN["aspects/length"]},
        f"{scale}/policy.yaml": {
            "sizes": policy_scale(sizes, sampling=drawn),
            "texts": {"optimiser": {**SUPERVISED, "batch": 8, "microbatch": 8}},
        },
        f"{scale}/stages.yaml": {
            "reward_model": TINY["reward_model_scale"], "normaliser": fitted, "selection": GOLDEN["selection_scale"],
            "samples": GOLDEN["samples"], "teacher": {**TINY["teacher"], "kind": named["TEACHERS"], "options": {}},
        },
        "params.yaml": {"demo": {}, "suite": {"seeds": [0], "scale_seeds": {"default": [0]}}},
    }  # fmt: skip


def insert(library: Path, added: Added) -> None:
    """Adds a choice to an installed package: its code before its table, and its line in the table."""
    file = library / added.file
    text = file.read_text(encoding="utf-8")
    (table,) = re.finditer(rf"^{added.table}(: .+)? = Choices\(", text, re.MULTILINE)
    brace = text.index("{", table.end()) + 1
    code = f"{text[: table.start()]}{added.code}\n\n{text[table.start() : brace]}\n        {added.line}{text[brace:]}"
    file.write_text(code, encoding="utf-8")


@dataclass(frozen=True)
class Study:
    """A user's folder that names the new choices, and the installed package that it uses."""

    root: Path
    library: Path
    named: dict[str, str]

    def python(self, *arguments: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs Python with the installed package alone, in a fresh process in the user's folder."""
        environment = clean_environment(PYTHONPATH=str(self.library), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=self.root, env=environment, input=given, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def drive(self, given: dict[str, Any]) -> Any:
        """Runs the driver; returns what it found."""
        return json.loads(self.python("-c", DRIVER, given=json.dumps(given)).stdout)


@pytest.fixture(scope="module", params=["in the project", "in your own folder"])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The package outside the clone, with the page's choices in its tables or in a module of the user's."""
    library, root = tmp_path_factory.mktemp("library"), tmp_path_factory.mktemp("study")
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, library / package, ignore=shutil.ignore_patterns("__pycache__"))
    own = request.param != "in the project"
    if own:
        code = "\n\n".join(added.code for added in ADDED)
        (root / f"{OWN_MODULE}.py").write_text(code, encoding="utf-8")
    else:
        for added in ADDED:
            insert(library, added)
    named = choices(own=own)
    for file, content in pages(named, own=own).items():
        write_yaml(root / file, content)
    for words in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        command(*words, root=root)
    return Study(root, library, named)


def test_every_table_of_choices_has_an_example() -> None:
    found = {
        table: path.relative_to(PROJECT).as_posix()
        for path in sorted((PROJECT / "rlhf_core").rglob("*.py"))
        for table in re.findall(r"^([A-Z_]+)(?:: .+)? = Choices\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found.keys() >= WITHOUT_EXAMPLE
    wanted = {table: file for table, file in found.items() if table not in WITHOUT_EXAMPLE}
    assert {table: added.file for table, added in BY_TABLE.items()} == wanted
    assert len(BY_TABLE) == len(ADDED)


def test_a_plan_takes_every_new_choice(study: Study) -> None:
    planned = study.python("-m", "tasks.command_line", "plan", "toys").stdout
    for stage in ("reward_model", "normaliser", "selection", "policy", "teacher"):
        assert stage in planned


def test_a_misspelt_choice_is_refused_with_the_nearest(study: Study) -> None:
    cases = {}
    for table, name in study.named.items():
        (page, text), *_ = [
            (file, file.read_text(encoding="utf-8"))
            for file in sorted((study.root / "params").rglob("*.yaml"))
            if re.search(rf"\b{name}\b", file.read_text(encoding="utf-8"))
        ]
        cases[table] = (str(page), re.sub(rf"\b{name}\b", f"{name}x", text))
    for table, (code, said) in study.drive({"refusals": cases}).items():
        right = study.named[table].rpartition(":")[2]
        assert code == 2, f"{table}: {said}"
        assert f"{right}x" in said
        assert f"did you mean '{right}'" in said, f"{table}: {said}"


@pytest.mark.platform
@pytest.mark.timeout(1800)
def test_the_stages_call_every_new_choice(study: Study) -> None:
    study.python("-m", "tasks.command_line", "plan", "toys")
    called = {(file, name) for file, name in study.drive({})}
    for added in ADDED:
        file = study.library / added.file if ":" not in study.named[added.table] else study.root / f"{OWN_MODULE}.py"
        for function in added.functions:
            assert (file.as_posix(), function) in called, f"{added.table}: {function} was not called"
    rollouts = study.root / "results/testbed/toys/policy/rewarded/0/result/rollouts.jsonl"
    first, second, *_ = [json.loads(line) for line in rollouts.read_text(encoding="utf-8").splitlines()]
    assert first["id"] == second["id"], "the optimiser's groups have two responses to each prompt"
