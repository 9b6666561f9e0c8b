"""Tasks of lm-evaluation-harness on a policy: the official task file's requests and scores, on the same model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.data.encoding import Encoder, Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.harness.choice import HarnessTask, check_task
from rlhf_core.evaluation.harness.rows import in_columns
from rlhf_core.models.policy import Policy

pytest.importorskip("lm_eval")

#: Rows in the columns of the official data sets, and the same as questions of this project.
COLOURS = ("red", "green", "blue", "white")


Make = Callable[[int], dict[str, Any]]
#: Task, examples, metric with its filter, data set, and a row of a number in both forms.
TASKS: dict[str, tuple[int, str, str, str, Make, Make]] = {
    "arc_challenge": (
        2, "acc_norm", "none", "allenai/ai2_arc",
        lambda i: {
            "id": f"a{i}", "question": f"What colour has thing {i}?", "answerKey": "ABCD"[i % 4],
            "choices": {"text": [f"{c} {i}" for c in COLOURS], "label": list("ABCD")},
        },
        lambda i: {
            "id": f"a{i}", "question": f"What colour has thing {i}?", "choices": [f"{c} {i}" for c in COLOURS],
            "answer": f"{COLOURS[i % 4]} {i}", "answer_index": i % 4, "solution": "",
        },
    ),
    "hellaswag": (
        2, "acc_norm", "none", "Rowan/hellaswag",
        lambda i: {
            "activity_label": "High jump", "ctx_a": f"A boy runs {i} rounds.", "ctx_b": "the boy",
            "endings": [f"jumps {c}." for c in COLOURS], "label": str(i % 4),
        },
        lambda i: {
            "id": f"h{i}", "category": "High jump", "question": f"A boy runs {i} rounds. the boy",
            "choices": [f"jumps {c}." for c in COLOURS], "answer_index": i % 4,
        },
    ),
    "winogrande": (
        2, "acc", "none", "allenai/winogrande",
        lambda i: {
            "sentence": f"Ann gave Bea {i} cups because _ was kind.", "option1": "Ann", "option2": "Bea",
            "answer": str(1 + i % 2),
        },
        lambda i: {
            "id": f"w{i}", "question": f"Ann gave Bea {i} cups because _ was kind.", "choices": ["Ann", "Bea"],
            "answer_index": i % 2,
        },
    ),
    "truthfulqa_mc2": (
        0, "acc", "none", "truthfulqa/truthful_qa",
        lambda i: {
            "question": f"Who is {i}?", "mc1_targets": {"choices": ["A number.", "A man."], "labels": [1, 0]},
            "mc2_targets": {"choices": ["A number.", "A figure.", f"Mr. {i}."], "labels": [1, 1, 0]},
        },
        lambda i: {
            "id": f"t{i}", "question": f"Who is {i}?", "choices": ["A man.", "A number."], "answer_index": 1,
            "mc2_choices": ["A number.", "A figure.", f"Mr. {i}."], "mc2_labels": [1, 1, 0],
        },
    ),
    "mmlu_abstract_algebra": (
        3, "acc", "none", "cais/mmlu",
        lambda i: {
            "question": f"{i} + 1?", "subject": "abstract_algebra", "choices": [str(i + j) for j in range(4)],
            "answer": 1,
        },
        lambda i: {
            "id": f"m{i}", "question": f"{i} + 1?", "subject": "abstract_algebra",
            "choices": [str(i + j) for j in range(4)], "answer_index": 1,
        },
    ),
    "gsm8k": (
        2, "exact_match", "strict-match", "openai/gsm8k",
        lambda i: {"question": f"Ann has {i} cups.", "answer": f"She has <<{i}={i}>>{i}.\n#### {i}"},
        lambda i: {
            "id": f"g{i}", "question": f"Ann has {i} cups.", "solution": f"She has {i}.", "answer": str(i),
            "solution_annotated": f"She has <<{i}={i}>>{i}.",
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    texts = [str(row) for *_, make, _ in TASKS.values() for row in map(make, range(8))]
    return Encoder(train_byte_level_bpe(texts, 420), chat_template("plain"), Limits(prompt=1024, total=2048))


@pytest.fixture(scope="module")
def policy(encoder: Encoder) -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(encoder.tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.3,
        bos_token_id=None, eos_token_id=encoder.eos_id,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config).eval(), pad_id=encoder.pad_id, eos_id=encoder.eos_id)


def splits(task: str) -> dict[str, list[dict[str, Any]]]:
    make = TASKS[task][4]
    return {name: [*map(make, range(n))] for name, n in (("train", 7), ("validation", 5), ("dev", 5), ("test", 4))}


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the list to which every raw result of the harness is added."""
    from rlhf_core.evaluation.harness import evaluation

    real, found = evaluation.simple_evaluate, []

    def keep(**options: Any) -> Any:
        found.append(real(**options))
        return found[-1]

    monkeypatch.setattr(evaluation, "simple_evaluate", keep)
    return found


def requests(result: Any) -> list[tuple[Any, Any]]:
    return [(sample["arguments"], sample["filtered_resps"]) for rows in result["samples"].values() for sample in rows]


@pytest.mark.parametrize("task", TASKS)
def test_requests_examples_and_scores_are_those_of_the_official_task_file(
    task: str, policy: Policy, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from rlhf_core.evaluation.harness.choice import task_files
    from rlhf_core.evaluation.harness.evaluation import measure

    shots, metric, named, *_ = TASKS[task]
    rows = splits(task)
    raw = recorded(monkeypatch)
    choice = HarnessTask(task, metric, named, shots=shots)
    metrics, protocol, _ = measure(
        policy, encoder, choice, lambda _data, _part, split: rows[split], batch=4, limit=None
    )

    published = datasets.DatasetDict({name: datasets.Dataset.from_list(found) for name, found in rows.items()})
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: published)
    official = simple_evaluate(
        model=HFLM(pretrained=policy.model, tokenizer=encoder.tokenizer, batch_size=4),
        tasks=[task],
        task_manager=TaskManager(include_defaults=False, include_path=task_files()[task].parent),
        num_fewshot=shots,
    )
    assert requests(raw[0]) == requests(official)
    assert len(requests(raw[0])) >= 4
    assert metrics[""] == 100 * official["results"][task][f"{metric},{named}"]
    assert (protocol["shots"], protocol["cut"]) == (shots, 0)


@pytest.mark.parametrize("task", TASKS)
def test_a_question_of_this_project_becomes_the_row_of_the_official_data_set(task: str) -> None:
    _, _, _, data_set, make, questions = TASKS[task]
    rows = [*map(make, range(3))]
    assert in_columns([*map(questions, range(3))], data_set, "x.test") == rows
    assert in_columns(rows, data_set, "x.test") == rows


def test_a_row_without_its_field_is_named() -> None:
    rows = [TASKS["arc_challenge"][5](0) for _ in range(2)]
    del rows[1]["choices"]
    with pytest.raises(DataError, match=r"file arc.test, row 2, field 'choices': .*allenai/ai2_arc"):
        in_columns(rows, "allenai/ai2_arc", "arc.test")


@pytest.mark.parametrize(("name", "near"), [("arc_chalenge", "arc_challenge"), ("hellaswagg", "hellaswag")])
def test_an_unknown_task_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(RecipeError, match=rf"task is '{name}', which lm-eval does not have; did you mean .*{near}"):
        check_task(name, "data.tasks.arc")


def test_an_unknown_metric_is_refused_with_the_nearest(policy: Policy, encoder: Encoder) -> None:
    from rlhf_core.evaluation.harness.evaluation import measure

    rows = splits("arc_challenge")
    with pytest.raises(RecipeError, match="has no metric 'acc_nrm,none'; did you mean 'acc_norm,none'"):
        measure(
            policy, encoder, HarnessTask("arc_easy", "acc_nrm", shots=0), lambda _d, _p, split: rows[split], batch=4,
            limit=2,
        )  # fmt: skip


def test_a_chat_template_makes_turns_of_the_examples(
    policy: Policy, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_core.evaluation.harness.evaluation import measure

    rows, raw = splits("gsm8k"), recorded(monkeypatch)
    choice = HarnessTask("gsm8k", "exact_match", "strict-match", shots=1, chat=True)
    _, protocol, _ = measure(policy, encoder, choice, lambda _d, _p, split: rows[split], batch=4, limit=2)
    asked = requests(raw[0])[0][0]
    prompt = str(asked["gen_args_0"]["arg_0"] if isinstance(asked, dict) else asked[0][0])
    assert prompt.startswith("<|user|>Question: Ann has ")
    assert prompt.endswith("Answer:<|assistant|>")
    assert prompt.count("<|assistant|>") == 2
    assert protocol["chat_template"] == "plain"


def test_random_generators_and_training_mode_are_left_as_they_were(policy: Policy, encoder: Encoder) -> None:
    from rlhf_core.evaluation.harness.evaluation import measure

    rows = splits("winogrande")
    states: list[Sequence[Any]] = []
    policy.model.train()
    for _ in range(2):
        numbers = np.random.get_state()  # noqa: NPY002
        states.append((random.getstate(), list(numbers[1]), torch.get_rng_state().tolist()))
        if len(states) == 1:
            measure(
                policy, encoder, HarnessTask("winogrande", shots=0), lambda _d, _p, split: rows[split], batch=4,
                limit=None,
            )  # fmt: skip
    assert states[0] == states[1]
    assert policy.model.training
    policy.model.eval()
