"""The flow with a real Prefect server, real DVC and stand-in stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.scheduler import ALARM_EVENT, RunFailed
from tests import small_repository
from tests.chaos import stages, wait_for
from tests.small_repository import PROJECT, change_entry, clean_environment, command

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Path:
    root = small_repository.create(tmp_path_factory.mktemp("finished"), seeds=(0,))
    run_flow(root)
    return root


def run_flow(root: Path, **parameters: Any) -> str:
    from flows.paper import segment

    return str(segment(root=str(root), report=False, sync=False, **parameters))


def calls(root: Path) -> list[list[str]]:
    path = root / ".work" / "calls"
    return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []


def start(root: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """The flow in a process of its own, as `rewardsmith run segment` (or another command) starts it.

    What a shell runs in the background ignores interrupts, and its children do; these listen.
    """
    choice = {"paper": "segment", "report": False, "sync": False}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *(command or ("flows", "paper", json.dumps(choice)))],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(PROJECT), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def let_row(root: Path, row: str, behaviour: str) -> None:
    """Makes the stand-in stages of a row behave so (see `tests.small_repository`)."""
    change_entry(root / "params/segment/rows.yaml", row, notes=f"behaviour: {behaviour}")


def test_after_the_flow_a_second_run_finds_nothing_to_do(finished: Path) -> None:
    ran = calls(finished)
    outs = [line[1] for line in ran]
    assert len(outs) == len(set(outs)) == 11
    assert {(line[2], line[3]) for line in ran} == {("1", "")}, "one thread and no GPU each"
    assert "policy at work" in (finished / ".work/logs/policy-segment-segment-0.log").read_text()
    for words in (("repro",), ("status",)):
        assert "up to date" in command("dvc", *words, root=finished).stdout
    assert run_flow(finished) == "11 current"
    assert calls(finished) == ran


def test_a_run_of_one_row_and_seed_ends_with_the_tables_so_far_and_the_report(tmp_path: Path) -> None:
    from flows.paper import segment

    root = small_repository.create(tmp_path)
    segment(root=str(root), rows=["bandit"], seeds=[0], sync=False)
    ran = [line[0] for line in calls(root)]
    assert ran.count("check") == 1
    assert {"prepare", "tokenizer", "sft", "reward_model", "policy"} <= {*ran}
    assert ran.count("policy") == 1
    assert "segment bandit seed 0" in flow_run_names()
    made = json.loads((root / "results/testbed/segment/tables-so-far/result/tables.json").read_text())
    assert made["seeds"] == [0]
    run = (root / "report/index.html").read_text().split('id="run-segment-policy-bandit-0"')[1].split("</tr>")[0]
    assert "0" * 12 in run, "the commit in the run's record"


def flow_run_names() -> set[str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return {run.name for run in client.read_flow_runs()}


def stages_by_state() -> dict[str, set[str]]:
    """The task runs of the latest flow run, whose own state has the name Alarm where one of theirs has it."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import TaskRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        last, *_ = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC)
        of = TaskRunFilter.model_validate({"flow_run_id": {"any_": [str(last.id)]}})
        found: dict[str, set[str]] = {}
        for run in client.read_task_runs(task_run_filter=of):
            found.setdefault(str(run.state_name), set()).add(run.name)
        assert last.state_name == ("Alarm" if "Alarm" in found else "Completed")
    return found


def events(name: str) -> list[str]:
    """The resources of the server's events of a name."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.request("POST", "/events/filter", json={"filter": {"event": {"name": [name]}}}).json()["events"]
    return [event["resource"]["prefect.resource.name"] for event in found]


def test_a_row_that_fails_alarms_or_stops_is_told_apart(tmp_path: Path) -> None:
    """One row fails for good and another passes at its second try; then the first one alarms, and then it stops."""
    root = small_repository.create(tmp_path, demo=("bandit", "segment"), seeds=(0,))
    rang, out = "policy-segment-bandit-0", "results/testbed/segment/policy/bandit/0"
    failures = root / ".work/failures"
    let_row(root, "bandit", "data-error")
    let_row(root, "segment", "flaky")
    with pytest.raises(RunFailed, match=r"exit code 2: file x\.jsonl, row 3, field 'prompt': empty"):
        run_flow(root)
    outs = [line[1] for line in calls(root)]
    assert outs.count(out) == 1, "a data error is not tried again"
    assert outs.count("results/testbed/segment/policy/segment/0") == 2, "what may pass is"
    assert not [each for each in outs if "tables" in each]
    failure = json.loads((failures / f"{rang}.json").read_text())
    assert (failure["exit_code"], failure["retry"]) == (2, False)
    assert not (root / out / "result").exists()

    let_row(root, "bandit", "alarm")
    first, *alarms = run_flow(root).splitlines()
    assert first.endswith(", 1 with an alarm")
    assert alarms == [f"ALARM {rang}: kl at step 3; kl is 9, above 8"]
    assert not list(failures.iterdir())
    wait_for(lambda: events(ALARM_EVENT) == [rang], 60)
    assert stages_by_state()["Alarm"] == {rang}, "an automation can wait for the state's name, too"
    assert run_flow(root).splitlines() == ["11 current, 1 with an alarm", *alarms]

    let_row(root, "bandit", "stop")
    assert "1 of them stopped" in run_flow(root)
    before = len(calls(root))
    assert run_flow(root) == "11 current, 1 of them stopped"
    assert len(calls(root)) == before
    assert "up to date" in command("dvc", "repro", root=root).stdout


def test_a_killed_run_goes_on_and_ends_like_an_uninterrupted_one(finished: Path, tmp_path: Path) -> None:
    root = small_repository.create(tmp_path / "tree", seeds=(0,))
    environment = {"PREFECT_API_URL": "", "PREFECT_HOME": str(tmp_path / "prefect")}
    process = start(root, STAND_IN_SECONDS="3", **environment)
    wait_for(lambda: len(calls(root)) >= 3)
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("uvicorn" in child.cmdline() for child in family), "its temporary server"
    process.kill()
    process.wait()
    assert stages(root), "the killed scheduler's stages are still running"
    again = start(root, **environment)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert not psutil.wait_procs(family, timeout=30)[1], "the next run ends what the killed one left"
    for path in sorted(finished.glob("results/**/result/metrics.json")):
        assert (root / path.relative_to(finished)).read_bytes() == path.read_bytes()
    assert "up to date" in command("dvc", "repro", root=root).stdout


def test_unreadable_lock_is_rebuilt_without_training(finished: Path) -> None:
    before = len(calls(finished))
    lock = finished / "dvc.lock"
    lock.write_text(lock.read_text()[:700] + "\n{")  # some cuts leave a file that DVC still reads
    run_flow(finished)
    assert len(calls(finished)) == before
    assert len(list((finished / ".work/set-aside").iterdir())) == 1
    assert "up to date" in command("dvc", "status", "dvc.yaml", root=finished).stdout


def test_an_interrupt_of_the_terminal_ends_a_run_in_a_line(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path, demo=("bandit",), seeds=(0,))
    environment = {"PREFECT_API_URL": "", "PREFECT_HOME": str(tmp_path / "prefect")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tasks.command_line", "run", "segment", "--no-report", "--no-sync"],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(PROJECT), STAND_IN_SECONDS="60", **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: calls(root))
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("uvicorn" in child.cmdline() for child in family)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    said = "interrupted; run the same command again to continue: a stage with a checkpoint goes on from there"
    assert output.splitlines()[-1] == said
    assert "Traceback" not in output
    assert len(output.splitlines()) < 10, output
    assert not psutil.wait_procs(family, timeout=30)[1]


@pytest.mark.platform
@pytest.mark.parametrize(("refused", "status"), [("tables", 0), ("policy", 1)], ids=["well", "with a failure"])
def test_a_run_whose_server_was_killed_ends_as_its_stages_ended(tmp_path: Path, refused: str, status: int) -> None:
    root = small_repository.create(tmp_path / "tree", demo=("bandit",), seeds=(0,))
    (root / ".work").mkdir(exist_ok=True)
    (root / ".work" / f"refuse-{refused}").touch()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tasks.command_line", "run", "segment/bandit", "--no-report", "--no-sync"],
        cwd=root,
        env=clean_environment(
            PYTHONPATH=str(PROJECT), STAND_IN_SECONDS="1", PREFECT_API_URL="", PREFECT_HOME=str(tmp_path / "prefect"),
            PREFECT_CLIENT_MAX_RETRIES="0",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: calls(root))
    for child in psutil.Process(process.pid).children(recursive=True):
        if "uvicorn" in child.cmdline():
            child.kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == status, output
    assert "Traceback" not in output
    assert "Error logging" not in output
    assert output.count("note: the Prefect server has gone") == 1
    assert output.count("\nerror: ") == status
    assert output.count("\n7 ran\n") == 1 - status
    assert bool(list(root.glob("results/**/policy/**/metrics.json"))) != bool(status)
