"""RLMEC on real questions in short: from `prepare` to a measured policy, with the scale's own teacher, an endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tasks import policy
from tasks.evaluating.solving import harness_accuracies
from tasks.graph.rows import row_addresses
from tasks.params.pages import read_settings
from tasks.params.scales import scale_entries
from tests.tasks.tiny_pipeline import SETTINGS, SUPERVISED, Pipeline

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("questions", "question_tokenizer", "question_sft", "samples", "teacher", "generative_reward_model")
ROWS = {"sft": 24, "sft_validation": 4, "questions": 6, "test": 2}
#: Of each task its data spec, the columns of Table 3 that it fills, and a row that learns from a reward.
TASKS = {
    "mathematics": ("mathematics", {"gsm8k", "gsm8k_strict", "gsm8k_flexible", "math", "svamp"}, "math-13b-without-ir"),
    "multiple_choice": ("questions", {"ecqa", "qasc", "obqa", "arc"}, "qa-13b-without-ir"),
}
OPTIMISER = {"iterations": 1, "rollout_batch": 8, "minibatch": 8, "microbatch": 8, "epochs": 1, "actor_lr": 1.0e-3}


class Teacher(BaseHTTPRequestHandler):
    """Names the first step and answers with the correct solution."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        truth = asked.rpartition("Correct solution: ")[2].partition("\nPrediction: ")[0]
        text = truth if asked.endswith("Correct prediction:") else "[0]"
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        content = json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The endpoint that the scale's `teacher.yaml` names by variables."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Teacher)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("REWARDSMITH_TEACHER_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("REWARDSMITH_TEACHER_MODEL", "teacher")
    monkeypatch.setenv("REWARDSMITH_TEACHER_KEY", "none")
    yield
    server.shutdown()


def committed(kind: str, name: str) -> dict[str, Any]:
    return read_settings(scale_entries(ROOT, "reasoning", kind)[name].under(ROOT))


@pytest.mark.parametrize("task", TASKS)
def test_real_questions_go_all_the_way(
    task: str, real_data: Path, teacher: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, columns, row = TASKS[task]
    changes = {
        "questions": committed("data", spec) | {"directory": str(real_data), "rows": ROWS},
        "question_tokenizer": {"vocabulary": 400, "full_byte_alphabet": True},
        "teacher": committed("stages", "teacher") | {"limits": {"most_edits": 1.0}},
        "generative_reward_model_scale": SETTINGS["generative_reward_model_scale"]
        | {"training": {**SUPERVISED, "batch": 8}, "limits": {"prompt": 1600, "total": 2000}},
    }
    settings = {**SETTINGS, **changes}
    settings["backbone"] = {
        **SETTINGS["backbone"],
        "architecture": {**SETTINGS["backbone"]["architecture"], "max_position_embeddings": 2048},
        "training": {**SUPERVISED, "batch": 8},
    }
    made = Pipeline(tmp_path).write(settings)
    for name in STAGES:
        made.run(name)
    assert made.metrics("teacher")["accepted"] == made.metrics("samples")["erroneous"] > 0
    costs = json.loads((made.out("teacher") / "record" / "costs.json").read_text())
    assert costs["calls"] == costs["output_tokens"] / 5 > 0
    assert "fidelity/auc" not in made.metrics("generative_reward_model"), "the truth about real solutions is not known"
    scale = {"optimiser": OPTIMISER, "checkpoints": 1, "checkpoint_prompts": 2, "rollout_samples": 2}
    made.write({"policy_scale": scale})
    upstream = {"data": "questions", "sft": "question_sft", "samples": "samples", "teacher": "teacher"}
    paths = {name: made.result(run) for name, run in upstream.items()}
    paths |= {
        "token-rewards": made.result("generative_reward_model"),
        "row": row_addresses(ROOT, "rlmec")[row].under(ROOT),
    }
    paths |= {"scale": made.settings("policy_scale"), "evaluation": made.settings("question_evaluation")}
    policy.main(
        [str(word) for name, path in paths.items() for word in (f"--{name}", path)]
        + ["--seed", "0", "--out", str(tmp_path / "policy")]
    )
    for result in (tmp_path / "policy" / "result", made.result("question_sft")):
        metrics = json.loads((result / "metrics.json").read_text())
        assert columns | {"seen", "unseen", "average"} <= set(metrics)
        assert metrics["average"] == pytest.approx(
            sum(metrics[name] for name in columns if not name.startswith("gsm8k_"))
            / sum(not name.startswith("gsm8k_") for name in columns)
        )


def test_the_harness_grades_by_its_two_modes() -> None:
    said = ["4 + 14 = 18\n#### 18", "The answer is 18.", "It is 18 or 19."]
    assert harness_accuracies(["18"] * 3, said) == {
        "gsm8k_strict": pytest.approx(100 / 3),
        "gsm8k_flexible": pytest.approx(200 / 3),
    }
