"""Alerts reach people whatever dies or fails in between; one process evaluates a model, with what its scale needs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import reevaluate, slots
from rlhf_core.errors import RewardsmithError
from tasks.params.evaluation import ReevaluationSettings, Schedule
from tasks.reevaluation import evaluate as reevaluation
from tasks.running.locks import only_one
from tasks.tracking.models import Registered
from tests.small_repository import PROJECT

MODEL = Registered("segment-policy-a", "3", "champion", "run", "digest", "results/a/result", "policy-a-0")


class Listener:
    """A webhook that remembers what it was told."""

    def __init__(self) -> None:
        self.works = True
        self.posted: list[tuple[str, list[str]]] = []

    def post(self, _: httpx.Client, address: str, seconds: float, json: dict[str, Any]) -> httpx.Response:
        request = httpx.Request("POST", address)
        if self.works:
            self.posted.append((json["version"], [one["text"] for one in json["alerts"]]))
        return httpx.Response(200 if self.works else 500, request=request)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    made = Listener()
    monkeypatch.setenv("REWARDSMITH_WEBHOOK", "http://hook/secret")
    monkeypatch.setattr(reevaluate, "post", made.post)
    monkeypatch.setattr(reevaluate, "emit_event", lambda **_: None)
    return made


def record(root: Path, number: int, *texts: str, version: str = "3") -> None:
    folder = root / "reevaluations" / "segment-policy-a@champion"
    folder.mkdir(parents=True, exist_ok=True)
    alerts = [{"kind": "regression", "text": text} for text in texts]
    content = {"number": number, "version": version, "alerts": alerts}
    (folder / f"{number:06d}.json").write_text(json.dumps(content))


def send(root: Path, listener: Listener) -> tuple[int, list[str]]:
    return reevaluate.send_pending_alerts(root, MODEL)


def test_a_record_of_a_run_that_died_is_sent_by_the_next_and_by_no_other(tmp_path: Path, listener: Listener) -> None:
    record(tmp_path, 1)
    assert send(tmp_path, listener) == (0, [])
    record(tmp_path, 2, "lost 0.2")  # and the run that made it dies
    assert send(tmp_path, listener) == (1, [])
    assert send(tmp_path, listener) == (0, [])
    assert listener.posted == [("3", ["lost 0.2"])]


def test_an_alert_that_the_webhook_did_not_take_is_sent_again(tmp_path: Path, listener: Listener) -> None:
    record(tmp_path, 1)
    send(tmp_path, listener)
    record(tmp_path, 2, "lost 0.2")
    listener.works = False
    count, problems = send(tmp_path, listener)
    assert (count, problems) == (1, ["the webhook did not take the alert: it answered with status 500"])
    record(tmp_path, 3, "lost 0.3")
    listener.works = True
    assert send(tmp_path, listener) == (2, [])
    assert listener.posted == [("3", ["lost 0.2"]), ("3", ["lost 0.3"])]


def test_nothing_is_evaluated_or_added_to_dvc_while_the_records_that_it_names_are_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def refused(_root: Path) -> list[str]:
        raise RewardsmithError("names records that neither DVC's cache nor a remote has")

    record(tmp_path, 1)
    monkeypatch.setattr(reevaluate, "get_run_logger", lambda: logging.getLogger("test"))
    for name in ("refuse_edited_tree", "open_registry"):
        monkeypatch.setattr(reevaluate, name, lambda *_: None)
    for name in ("evaluate", "send_pending_alerts", "track_records"):
        monkeypatch.setattr(reevaluate, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(reevaluate, "read_reevaluation", lambda _path: ReevaluationSettings((), Schedule("0 3 * * *")))
    monkeypatch.setattr(reevaluate, "restore_records", refused)
    with pytest.raises(RewardsmithError, match="names records that neither"):
        reevaluate.reevaluate.fn(models=["segment-policy-a"], root=str(tmp_path))
    assert done == []


def test_a_second_evaluation_of_a_model_is_refused_and_names_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--root", str(tmp_path), "--name", "a", "--alias", "champion", "--version", "1", "--digest", "d"]
    lock = tmp_path / ".work" / "reevaluations" / "a@champion.lock"
    with only_one(lock, "another process evaluates a@champion", "Wait for it"):
        assert reevaluation.main([*call, "--result", "results/a/result"]) == 2
    assert "another process evaluates a@champion (process " in capsys.readouterr().err


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight GPUs and 16 cores, whose evaluations do nothing."""
    monkeypatch.delenv("REWARDSMITH_SLOTS", raising=False)
    monkeypatch.setattr(slots.machine, "cores", lambda: 16)
    monkeypatch.setattr(slots.machine, "gpus", lambda: list("01234567"))
    monkeypatch.setattr(slots.machine, "memory_gb", lambda: 600.0)
    monkeypatch.setattr(reevaluate, "_run", lambda root, settings, model, out, grant: grant)


def granted(path: str) -> slots.Grant:
    """What the model of a result is evaluated with, by this project's parameters."""
    grant: slots.Grant = reevaluate.evaluate.fn(
        PROJECT, PROJECT / "params" / "reevaluation.yaml", replace(MODEL, path=path)
    )
    return grant


def test_a_model_is_evaluated_with_what_its_scale_declares_for_a_policy(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert granted("results/paper/segment/policy/a/0/result") == slots.Grant(16, tuple("01234567"), 512)
    assert granted("results/testbed/segment/policy/a/0/result") == slots.Grant(1, (), 2)
    monkeypatch.setattr(slots.machine, "gpus", lambda: ["0"])
    with pytest.raises(RewardsmithError, match=r"of segment-policy-a@champion needs 8 GPU\(s\), this machine has 1"):
        granted("results/paper/segment/policy/a/0/result")
