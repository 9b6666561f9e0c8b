"""The command line: quick help, one-line errors, nearest suggestions, exit codes."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from rlhf_core.errors import RecipeError
from tasks import command_line
from tasks.graph.names import split_names, trained_reward_model
from tasks.running.stage import run_main
from tests import small_repository
from tests.command_line import rewardsmith
from tests.small_repository import PROJECT, change_entry, clean_environment

#: Arguments and options of the commands that users have; `adopt` is a command, too.
COMMANDS = {
    "init": "FOLDER --model --data --reward --column --template",
    "run": "NAMES --full --seed --scale --report --no-report --sync --no-sync --pool --remote --verbose -v",
    "worker": "--pool --limit --verbose -v",
    "plan": "NAMES --full --seed --scale --all",
    "rehearse": "NAMES --scale --rows --verbose -v",
    "table": "NAME --scale --demo",
    "compare": "NAMES --scale --seed --metric --out",
    "rows": "PAPER --scale",
    "report": "--scale --out",
    "atlas": "--out",
    "hackability": "--flaw --mitigation --seed --function --gives --reward-model --name --scale --out --train "
    "--no-train --sync --no-sync --verbose -v",
    "try-reward": "FUNCTION --rows --prompts --scale",
    "sync": "PAPER --scale",
    "explain": "--prompt --response --model --rows --seed --scale",
    "bench-reward": "MODEL --data --sets --rows --seed --scale --batch --template --prompt-tokens --total-tokens --out",
    "export": "RESULT FOLDER --data",
    "doctor": "--scale --deepspeed --gpus --gpu-memory",
    "verify": "WHAT",
    "tune": "STUDY --trials --seed --write --keep --verbose -v",
    "graph": "--matrix --scale --check",
    "up": "--prefect-port --mlflow-port",
    "down": "",
    "promote": "NAME --seed --alias",
    "adopt": "NAME",
    "study list": "",
    "study plan": "NAME",
    "study run": "NAME --worlds --pilot --keep --verbose -v",
    "study show": "NAME",
}


def started(*arguments: str, root: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "tasks.command_line", *arguments],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(PROJECT), COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_repository.create(tmp_path_factory.mktemp("repository"))


def test_help_comes_at_once_and_names_every_command() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = started("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command.split()[0]} " in done.stdout
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert processor < 1.0, "processor seconds: other work on the machine does not count"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, tasks.command_line; heavy = {'torch', 'mlflow', 'prefect', 'dvc', 'pandas', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_keeps_its_options(command: str) -> None:
    done = CliRunner().invoke(command_line.commands, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.output
    found: Any = typer.main.get_group(command_line.commands)
    for word in command.split():
        found = found.commands[word]
    names = {name if name.startswith("-") else name.upper() for one in found.params for name in one.opts}
    assert names | {name for one in found.params for name in one.secondary_opts} >= set(COMMANDS[command].split())


#: Wrong words and the line that refuses them.
REFUSED = {
    "run bandti": "error: unknown paper or row 'bandti'; did you mean 'bandit'?",
    "plan bandti": "error: unknown paper or row 'bandti'; did you mean 'bandit'?",
    "explain --prompt Hi --response Hello.": "; none is trained yet: rewardsmith run",
    "sync segmint": "error: unknown paper 'segmint'; did you mean 'segment'?",
    "worker --pool=": "the name is empty",
    "run --pool=": "the name is empty",
    "run --remote=": "the name is empty",
    "run --remote team": "it goes with --pool",
    **{f"{words} --scale testbett": "error: unknown scale 'testbett'; did you mean 'testbed'?"
       for words in ("sync segment", "table segment/1", "report", "plan", "run bandit")},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_one_line_with_the_nearest_name(repository: Path, words: str) -> None:
    done = rewardsmith(*words.split(), root=repository)
    assert done.returncode == 2
    assert REFUSED[words] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_two_papers_have_asks_for_its_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for paper in ("segment", "sentence"):
        Path("results/testbed", paper, "reward_model/token/0/result").mkdir(parents=True)
    with pytest.raises(RecipeError, match="name one of: segment/token, sentence/token"):
        trained_reward_model("token", 0, "testbed")
    found = trained_reward_model("sentence/token", 0, "testbed")
    assert found == Path("results/testbed/sentence/reward_model/token/0/result")


def test_a_model_that_is_trained_at_other_seeds_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in ("7", "10"):
        Path("results/testbed/demo/reward_model/whole", seed, "result").mkdir(parents=True)
    for model in ("whole", "demo/whole"):
        with pytest.raises(RecipeError, match=f"'{model}' is not trained at seed 0; --seed is one of: 7, 10"):
            trained_reward_model(model, 0, "testbed")


@pytest.mark.parametrize(
    "words",
    [
        ["rows"], ["report"], ["verify"], ["try-reward", "mine:brevity"], ["graph"], ["run"],
        ["compare", "bandit"], ["hackability"], ["atlas"], ["explain", "--prompt", "Hi", "--response", "Hello."],
        ["study", "list"], ["study", "plan", "gate"], ["tune", "gate"],
    ],
)  # fmt: skip
def test_another_folder_is_refused_by_every_command_that_needs_the_repository(tmp_path: Path, words: list[str]) -> None:
    done = rewardsmith(*words, root=tmp_path)
    assert (done.returncode, done.stderr.split(" in ")[0]) == (2, "error: no params.yaml"), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reward_is_tried_on_given_rows_in_any_folder(tmp_path: Path) -> None:
    (tmp_path / "tried_anywhere.py").write_text(
        "def brevity(batch):\n    return [-len(text) for text in batch.texts]\n"
    )
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Say {i}.", "response": "a" * i}) + "\n" for i in range(1, 5))
    )
    done = rewardsmith("try-reward", "tried_anywhere:brevity", "--prompts", "pairs.jsonl", root=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_path_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    monkeypatch.setattr(command_line, "commands", taken.mkdir)
    for run in (command_line.app, lambda: run_main(lambda _: (taken / "below").mkdir())):
        with pytest.raises(SystemExit) as stopped:
            run()
        assert stopped.value.code == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith(f"error: file {taken}")
        assert error.endswith("Check the path and its permissions")


def test_a_plan_is_a_table_of_stages_and_a_line_of_counts_and_writes_nothing(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    done = rewardsmith("plan", root=root)
    assert not (root / "pipelines").exists(), "plain `dvc status` would list a matrix as never run"
    heading, *stages, summary = done.stdout.splitlines()
    assert heading.split() == ["stage", "what", "expected", "why"]
    assert len(stages) == 20
    assert re.fullmatch(r"policy-segment-bandit-0 +run +\? +it has not run here *", stages[-5])
    assert re.fullmatch(r"20 run; disk: unknown size \(nothing .*\) in the cache, \d+ GiB free", summary)


@pytest.mark.parametrize(
    ("names", "paper", "rows"),
    [
        ([], "suite", []),
        (["all"], "suite", []),
        (["bandit", "dpo"], "segment", ["bandit", "dpo"]),
        (["segment"], "segment", []),
        (["segment", "segment"], "segment", ["segment"]),
        (["demo/par"], "demo", ["par"]),
        (["par", "par/par"], "par", ["par"]),
        (["token"], "segment", ["token"]),
        (["sentence", "token"], "sentence", ["token"]),
        (["sentence/token", "sentence"], "sentence", ["token", "sentence"]),
    ],
)
def test_names_are_papers_and_rows(names: list[str], paper: str, rows: list[str]) -> None:
    assert split_names(PROJECT, names) == (paper, rows)


def test_rows_of_several_papers_or_unknown_ones_are_refused() -> None:
    for names, message in (
        (["demo/par", "par/vanilla"], "rows of several papers at once: demo, par"),
        (["demo/parr"], "unknown paper or row 'demo/parr'; did you mean 'demo/par'"),
        (["nowhere/phi3-mini"], "unknown paper or row 'nowhere/phi3-mini'"),
    ):
        with pytest.raises(RecipeError, match=message):
            split_names(PROJECT, names)


def test_graph_check_tells_by_its_exit_code(repository: Path) -> None:
    assert rewardsmith("graph", "--check", root=repository).returncode == 0
    version = repository / "tasks" / "sft.py"
    before = version.read_text()
    version.write_text(before.replace("VERSION = 1", "VERSION = 2"))
    try:
        assert rewardsmith("graph", "--check", root=repository).returncode == 1
    finally:
        version.write_text(before)


@pytest.mark.platform
def test_plan_says_what_runs_and_what_is_up_to_date(finished_copy: Path) -> None:
    assert rewardsmith("plan", root=finished_copy).stdout.strip() == "20 up to date"
    change_entry(finished_copy / "params/segment/rows.yaml", "bandit", title="changed")
    done = rewardsmith("plan", root=finished_copy)
    assert "input params/segment/rows.yaml:bandit modified" in done.stdout
    assert "4 run, 16 up to date; about" in done.stdout


@pytest.mark.platform
@pytest.mark.usefixtures("prefect_server")
def test_run_shows_progress_and_ends_with_the_exit_code(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    options = ("--seed", "0", "--no-report", "--no-sync")
    done = started("run", "all", *options, root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[ 12/12] " in done.stdout
    assert "pipelines/testbed/segment/dvc.yaml:policy-segment-dpo-0 ran in" in done.stdout
    assert "12 ran" in done.stdout.splitlines()
    again = started("run", "all", *options, root=root)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "12 current"), again.stderr
    change_entry(root / "params/segment/rows.yaml", "dpo", notes="behaviour: crash")
    done = started("run", "dpo", "--full", *options, root=root)
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert "Traceback" not in done.stderr
