"""One task of lm-evaluation-harness on a policy: the harness renders, scores and aggregates; nothing is redone here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np
import torch
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.harness.choice import DISTRIBUTION, HarnessTask
from rlhf_core.evaluation.harness.tasks import GivenRows, RowsOf
from rlhf_core.models.policy import Policy

#: Seed with which examples are drawn: the harness's default.
EXAMPLES_SEED = 1234


class PolicyModel(HFLM):  # type: ignore[misc]
    """A policy as the harness sees a model.

    Requests in a chat template are rendered by the policy's own; generation also ends at its end of a response. In a
    run of several processes every process computes all requests.
    """

    def __init__(self, policy: Policy, encoder: Encoder, batch: int) -> None:
        super().__init__(pretrained=policy.model, tokenizer=encoder.tokenizer, batch_size=batch)
        self.encoder = encoder
        self.cut = 0

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        self._count_cut(["".join(request.args) for request in requests], self.max_length + 1)
        return super().loglikelihood(requests, disable_tqdm=True)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        self._count_cut([request.args[0] for request in requests], self.max_length - self.max_gen_toks)
        return super().generate_until(requests, disable_tqdm=True)

    def _count_cut(self, texts: Sequence[str], longest: int) -> None:
        """Counts the requests that the harness cuts on the left, since they are longer than the model's positions."""
        self.cut += sum(len(self.tok_encode(text)) > longest for text in texts)

    @property
    def eot_token_id(self) -> int:
        return self.encoder.eos_id

    @property
    def tokenizer_name(self) -> str:
        return self.encoder.template.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.encoder.template.name if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise RecipeError("a task that opens the answer itself cannot be put into a chat template; set chat: false")
        return self.encoder.template.render(self.encoder.tokenizer, chat_history)


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Restores random generators and training mode, which the harness sets."""
    python, training = random.getstate(), model.training
    numbers = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        model.train(training)


def measure(
    policy: Policy, encoder: Encoder, choice: HarnessTask, rows_of: RowsOf, *, batch: int, limit: int | None
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    """Returns what a task measures of a policy: metrics, protocol and samples.

    Metrics are the metric and its standard error in percent, under '' and '_se', and those of the task's other filters
    under '_<filter>'; the protocol is how it was measured, in plain data; samples are {id, by: {filter: right},
    response or None} of each question.

    Args:
        policy: evaluated in place, unchanged.
        encoder: its tokenizer and chat template.
        choice: the task.
        rows_of: gives its rows.
        batch: requests in a batch.
        limit: the most questions of each task file, None for all.

    Raises:
        RecipeError: a metric or filter that the task does not have.
    """
    manager = GivenRows(rows_of, choice.shots).manager(choice.task)
    with undisturbed(policy.model), torch.no_grad():
        model = PolicyModel(policy, encoder, batch)
        found = simple_evaluate(
            model=model,
            tasks=[choice.task],
            task_manager=manager,
            num_fewshot=choice.shots,
            limit=limit,
            apply_chat_template=choice.chat,
            fewshot_as_multiturn=choice.chat,
            fewshot_random_seed=EXAMPLES_SEED,
            bootstrap_iters=100,
        )
    assert found is not None
    values = found["results"][choice.task]
    asked = f"{choice.metric},{choice.filter}"
    if asked not in values:
        known = [name for name in values if "," in name and "_stderr" not in name]
        raise RecipeError(f"task {choice.task} has no metric '{asked}'{hint(asked, known)}")
    protocol = {**_protocol(found, choice, encoder), "cut": model.cut}
    return _metrics(values, choice), protocol, _samples(found)


def _metrics(values: Mapping[str, Any], choice: HarnessTask) -> dict[str, float]:
    metrics = {"": 100 * float(values[f"{choice.metric},{choice.filter}"])}
    error = values.get(f"{choice.metric}_stderr,{choice.filter}")
    if isinstance(error, float) and math.isfinite(error):
        metrics["_se"] = 100 * error
    for name, value in values.items():
        metric, _, other = name.partition(",")
        if metric == choice.metric and other not in ("", choice.filter):
            metrics[f"_{other.replace('-', '_')}"] = 100 * float(value)
    return metrics


def _protocol(found: Mapping[str, Any], choice: HarnessTask, encoder: Encoder) -> dict[str, Any]:
    shots = set(found["n-shot"].values())
    tokenizer = encoder.tokenizer
    bos = tokenizer.bos_token_id is not None and tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    return {
        "task": choice.task,
        "version": found["versions"].get(choice.task),
        "harness": f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}",
        "metric": choice.metric,
        "filter": choice.filter,
        "shots": shots.pop() if len(shots) == 1 else sorted(shots),
        "examples_seed": EXAMPLES_SEED,
        "chat_template": encoder.template.name if choice.chat else None,
        "bos": bos,
        "rows": sum(count["effective"] for count in found["n-samples"].values()),
    }


def _samples(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each question: right by the task's first metric, with the text that was generated, if any."""
    rows: dict[str, dict[str, Any]] = {}
    for task, samples in found["samples"].items():
        for sample in samples:
            row = rows.setdefault(f"{task}/{sample['doc_id']}", {"response": None, "by": {}})
            row["by"][sample["filter"]] = float(sample[sample["metrics"][0]])
            answer = sample["resps"][0][0]
            if isinstance(answer, str):
                row["response"] = answer
    return [{"id": name, **row} for name, row in rows.items()]
