"""docs/extending.md as it stands: a user's own reward, aspect and data set in a copy of the project."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.small_repository import PROJECT, clean_environment, command

DOCUMENT = PROJECT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_LINES = 60
#: Contents of a copy of the project, be it a clone or unpacked.
PARTS = (
    ".dvc/.gitignore", ".dvc/config", ".dvc/plots", ".dvcignore", ".gitignore", "constraints.txt", "dvc.yaml", "flows",
    "infra", "params", "params.yaml", "pyproject.toml", "rlhf_core", "tasks",
)  # fmt: skip
#: Entries of the testbed's pages, as small as training gets: the page says what runs, not how well it learns.
TINY: dict[tuple[str, str], dict[str, Any]] = {
    ("policy", "ppo"): {
        "optimiser": {
            "iterations": 1, "rollout_batch": 8, "minibatch": 8, "microbatch": 8, "epochs": 1, "actor_lr": 6.0e-4,
            "critic_lr": 2.0e-3,
        },
        "sampling": {"max_new_tokens": 12},
        "checkpoints": 1,
        "checkpoint_prompts": 2,
        "rollout_samples": 2,
    },
    ("stages", "selection"): {"prompts": 16, "max_new_tokens": 24, "rounds": 20},
    ("stages", "normaliser"): {"pairs": 24, "floor_fraction": 0.1, "min_samples": 2},
}  # fmt: skip


def blocks(*languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")) if language in languages]


def files() -> dict[str, str]:
    """The files that the page shows: the first line of a block names its file."""
    named = (text.partition("\n") for text in blocks("yaml", "python"))
    return {first.removeprefix("# "): content for first, _, content in named}


def write_pairs(folder: Path) -> None:
    """80 preference pairs, which the page leaves to the reader."""
    folder.mkdir()
    things = ("parcel", "invoice", "phone", "ticket", "refund", "book", "order", "lamp")
    faults = ("late", "lost", "broken", "wrong", "too small", "too big", "missing", "wet", "old", "blue")
    rows = [
        {
            "id": str(number),
            "source": "desk",
            "prompt": f"My {thing} is {fault}.",
            "chosen": f"Sorry that your {thing} is {fault}. Thank you for writing. I will send a new {thing}.",
            "rejected": f"Your {thing} is {fault}, yes. That happens with a {thing}.",
        }
        for number, (thing, fault) in enumerate(itertools.product(things, faults))
    ]
    for split, part in (("train", rows[:64]), ("test", rows[64:])):
        (folder / f"pairs.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with what the page adds to it, not run."""
    root = tmp_path_factory.mktemp("clone")
    for name in PARTS:
        (root / name).parent.mkdir(exist_ok=True)
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(PROJECT / name, root / name)
    write_pairs(root / "my_data")
    for name, content in files().items():
        assert not (PROJECT / name).exists(), f"{name} is the project's own"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    for text in blocks("bash"):
        if "rewardsmith" not in text:
            command("bash", "-ec", text, root=root)
    for arguments in (["init", "-q"], ["add", "-A"]):
        command("git", *arguments, root=root)
    command("git", "-c", "user.email=me@example.org", "-c", "user.name=me", "commit", "-qm", "study", root=root)
    return root


def test_the_page_takes_fewer_lines_than_it_says() -> None:
    lines = [line for text in [*files().values(), *blocks("bash")] for line in text.splitlines() if line.strip()]
    assert len(lines) < MOST_LINES
    assert f"fewer than {MOST_LINES} lines" in " ".join(DOCUMENT.read_text(encoding="utf-8").split())


def test_the_example_of_a_pair_is_a_record() -> None:
    from rlhf_core.data.jsonl import Lines
    from rlhf_core.data.quarantine import Screening
    from rlhf_core.data.schemas import record_type

    rows = [(1, json.loads(text)) for text in blocks("json")]
    assert Screening().apply(Lines("page", rows), record_type("preference"))[0] == [row for _, row in rows]


def test_the_study_resolves_into_stages_of_its_own(study: Path) -> None:
    from tasks.graph.matrix import build

    graph = build(study)[Path("pipelines/testbed/my-study")]
    policies = {item.name: item for item in graph.items() if (item.module, item.seed) == ("policy", 0)}
    assert set(policies) == {"brevity", "preferences", "polite"}
    assert "reward_model" not in policies["brevity"].arguments
    assert policies["polite"].arguments["selection"] == "results/testbed/my-study/selection/my-aspects/0/result"
    assert graph.tables == {}, "nothing is published of it"


@pytest.mark.platform
@pytest.mark.timeout(1800)
def test_the_page_gives_a_comparison_table(study: Path) -> None:
    smaller: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    for (page, name), values in {**TINY, ("backbones", "my-model"): {"architecture": smaller}}.items():
        file = study / "params" / "scales" / "testbed" / f"{page}.yaml"
        content = yaml.safe_load(file.read_text())
        content[name] = {**content[name], **values}
        file.write_text(yaml.safe_dump(content, sort_keys=False))
    environment = clean_environment(PYTHONPATH=str(study), COLUMNS="160", OMP_NUM_THREADS="1")

    def rewardsmith(*arguments: str) -> str:
        call = [sys.executable, "-P", "-m", "tasks.command_line", *arguments]
        done = subprocess.run(call, cwd=study, env=environment, capture_output=True, text=True, timeout=1700)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    rewardsmith("run", "my-study", "--seed", "0", "--no-sync")
    table = rewardsmith("table", "my-study")
    for title in ("Brevity", "Preferences", "With politeness"):
        assert title in table
    assert {"holistic", "less", "Brevity,", "95"} <= set(table.split()), (
        "the difference from the first row has a column"
    )
    for metric in ("score/politeness", "kl"):
        assert re.search(rf"^{metric}\b", table, re.MULTILINE), table
    assert list((study / "results" / "testbed" / "my-study" / "policy").glob("*/0/result/metrics.json"))
    selection = study / "results" / "testbed" / "my-study" / "selection" / "my-aspects" / "0" / "result"
    assert set(json.loads((selection / "selection.json").read_text())["aspects"]) == {"politeness"}


def test_a_study_that_was_not_run_says_how_to_run_it(study: Path, tmp_path: Path) -> None:
    from rlhf_core.errors import RecipeError
    from tasks.report.rows_compared import compare_rows

    shutil.copytree(study / "params", tmp_path / "params")
    shutil.copy(study / "params.yaml", tmp_path)
    with pytest.raises(RecipeError, match="no row of my-study has results at scale testbed: rewardsmith run my-study"):
        compare_rows(tmp_path, "testbed", ["my-study"])
