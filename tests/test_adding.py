"""docs/adding.md as it stands: each of its choices is added to an installed package, planned, refused when misspelt,
and run by the stages that use it, in fresh processes outside the clone; a module of a user's own is planned, too.
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
from tests.tasks.golden_runs import SETTINGS, SHARED

DOCUMENT = PROJECT / "docs" / "adding.md"
BLOCK = re.compile(r"^```python\n# ([A-Z_]+), ([\w/]+\.py): (\"(\w+)\": (\w+),)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Module with all choices of your own project.
OWN_MODULE = "my_choices"
PACKAGES = ("rlhf_core", "tasks", "flows")
#: Table of protocols, which a paper states.
WITHOUT_EXAMPLE = {"PROTOCOLS"}


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
        text, heard = Path(page).read_text(), io.StringIO()
        Path(page).write_text(misspelt)
        sys.argv = ["rewardsmith", "plan", "toys"]
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard), contextlib.suppress(SystemExit):
            app()
        said[name] = heard.getvalue()
        Path(page).write_text(text)
    return said

def stages():
    called = set()
    def note(frame, event, argument):
        called.add((frame.f_code.co_filename, frame.f_code.co_name))
    lines = {}
    for file in map(Path, ("dvc.yaml", "pipelines/testbed/shared/dvc.yaml", "pipelines/testbed/toys/dvc.yaml")):
        for stage in (yaml.safe_load(file.read_text())["stages"] or {}).values() if file.exists() else ():
            lines[stage["outs"][0]] = shlex.split(stage["cmd"], comments=True)
    sys.settrace(note)
    for line in lines.values():
        at = line.index("-m")
        if line[at + 1] not in ("tasks.tables", "tasks.check"):
            importlib.import_module(line[at + 1]).main(line[at + 2:])
    sys.settrace(None)
    return sorted(called)

if __name__ == "__main__":
    cases = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        found = refusals(cases) if cases else stages()
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
    sizes = {name: value for name, value in SETTINGS["policy/ppo"]["optimiser"].items() if name != "critic_lr"}
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
    evaluation = {**SETTINGS["evaluation"], "only": ["alpaca"], "judge": {"kind": named["JUDGES"]}}
    reasoner = {**SETTINGS["reasoner"], "data": "sums", "tokenizer": "sums", "evaluation": "sums"}
    fitted = {**SETTINGS["normaliser"], **({"own": [named["NORMALISERS"]]} if own else {})}
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
        f"{scale}/data.yaml": {"dialogue": SETTINGS["data/dialogue"], "sums": SETTINGS["data/mathematics"]},
        f"{scale}/tokenizers.yaml": {"dialogue": SETTINGS["tokenizer"], "sums": SETTINGS["question_tokenizer"]},
        f"{scale}/evaluation.yaml": {"dialogue": evaluation, "sums": SETTINGS["question_evaluation"]},
        f"{scale}/backbones.yaml": {"tiny": SETTINGS["backbone"], "reasoner": reasoner},
        f"{scale}/aspects.yaml": {"modest": {"aspect": {"kind": named["ASPECTS"]}}, "long": SETTINGS["aspects/length"]},
        f"{scale}/policy.yaml": {
            "sizes": {**SHARED["policy"], "optimiser": sizes, "sampling": drawn},
            "texts": {"optimiser": {**SHARED["supervised"], "batch": 8, "microbatch": 8}},
        },
        f"{scale}/stages.yaml": {
            "reward_model": SETTINGS["training"], "normaliser": fitted, "selection": SETTINGS["selection_scale"],
            "samples": SETTINGS["samples"],
            "teacher": {**SETTINGS["teacher"], "kind": named["TEACHERS"], "options": {}},
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

    def python(self, *arguments: str, given: str = "") -> str:
        """Returns what Python with the installed package alone prints, in a fresh process in the user's folder."""
        environment = clean_environment(PYTHONPATH=str(self.library), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=self.root, env=environment, input=given, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plan(self) -> str:
        return self.python("-m", "tasks.command_line", "plan", "toys")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package outside the clone, with the page's choices in its tables."""
    folder = tmp_path_factory.mktemp("library")
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for added in ADDED:
        insert(folder, added)
    return folder


def written(root: Path, library: Path, *, own: bool) -> Study:
    for file, content in pages(choices(own=own), own=own).items():
        write_yaml(root / file, content)
    for words in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        command(*words, root=root)
    return Study(root, library, choices(own=own))


@pytest.fixture(scope="module")
def study(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return written(tmp_path_factory.mktemp("study"), library, own=False)


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


def test_a_plan_takes_every_new_choice_from_the_package_or_a_users_module(study: Study, tmp_path: Path) -> None:
    (tmp_path / f"{OWN_MODULE}.py").write_text("\n\n".join(added.code for added in ADDED), encoding="utf-8")
    for one in (study, written(tmp_path, study.library, own=True)):
        planned = one.plan()
        for stage in ("reward_model", "normaliser", "selection", "policy", "teacher"):
            assert stage in planned


def test_a_misspelt_choice_is_refused_with_the_nearest(study: Study) -> None:
    cases = {}
    for table, name in study.named.items():
        texts = {file: file.read_text(encoding="utf-8") for file in sorted((study.root / "params").rglob("*.yaml"))}
        file = next(file for file, text in texts.items() if re.search(rf"\b{name}\b", text))
        cases[table] = (str(file), re.sub(rf"\b{name}\b", f"{name}x", texts[file]))
    for table, said in json.loads(study.python("-c", DRIVER, given=json.dumps(cases))).items():
        assert "error: " in said
        assert f"{study.named[table]}x" in said
        assert f"did you mean '{study.named[table]}'" in said, f"{table}: {said}"


@pytest.mark.platform
@pytest.mark.timeout(1800)
def test_the_stages_call_every_new_choice(study: Study) -> None:
    study.plan()
    called = {(file, name) for file, name in json.loads(study.python("-c", DRIVER, given="{}"))}
    for added in ADDED:
        file = (study.library / added.file).as_posix()
        assert {name for name in added.functions if (file, name) not in called} == set(), added.table
    rollouts = study.root / "results/testbed/toys/policy/rewarded/0/result/rollouts.jsonl"
    first, second, *_ = [json.loads(line) for line in rollouts.read_text(encoding="utf-8").splitlines()]
    assert first["id"] == second["id"], "the optimiser's groups have two responses to each prompt"
