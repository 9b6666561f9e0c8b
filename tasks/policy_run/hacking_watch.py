"""Reward hacking in a policy run: the alarm with its log line, the weights of the peak, and measures of the whole run.

Source: PAR, Table 3 (best checkpoint), Figure 6.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlhf_core.evaluation.hacking_alarm import Alarm, AlarmSettings, HackingAlarm
from rlhf_core.evaluation.overoptimisation import clause_use, overoptimisation
from rlhf_core.training_state import State, load_trainable_state, trainable_state
from tasks.evaluating.policies import Evaluator
from tasks.evaluating.sft_comparison import SftComparison, compare_with_sft
from tasks.running.result_rows import Generation, HackingPoint, Metrics

if TYPE_CHECKING:
    from rlhf_core.models.policy import Policy
    from rlhf_core.testbed import GoldWorld


class HackingWatch(HackingAlarm):
    """A run's alarm, which prints what it raises, and the weights of the evaluation with the highest win rate.

    Args:
        settings: when it is raised, and what follows.
        evaluations: how many the run will make.
        model: the policy whose trainable weights are kept; the SFT policy when this object is made.
        label: of the run, in the log.
        keeps: keep the peak's weights whatever the settings.
    """

    def __init__(
        self, settings: AlarmSettings, evaluations: int, model: nn.Module, *, label: str, keeps: bool = False
    ) -> None:
        super().__init__(settings, evaluations)
        self.model, self.label = model, label
        self.stop_on_hacking = settings.on_hacking == "stop"
        self.keeps = self.stop_on_hacking or keeps
        self._kept: State = self._copy() if self.keeps else {}

    def _copy(self) -> State:
        return {name: value.detach().to("cpu", copy=True) for name, value in trainable_state(self.model).items()}

    def observe(self, step: int, metrics: Mapping[str, float], responses: int) -> list[Alarm]:
        return self._printed(super().observe(step, metrics, responses))

    def observe_evaluation(self, step: int, scores: Mapping[str, float]) -> list[Alarm]:
        """Takes in an evaluation of the weights as they are now."""
        raised = self._printed(super().observe_evaluation(step, scores))
        if self.keeps and self.peak is not None and self.peak.step == step:
            self._kept = self._copy()
        return raised

    def observe_end(self, step: int, scores: Mapping[str, float]) -> list[Alarm]:
        return self._printed(super().observe_end(step, scores))

    def _printed(self, alarms: list[Alarm]) -> list[Alarm]:
        for alarm in alarms:
            print(f"alarm: {self.label}: step {alarm.step}: {alarm.message}", file=sys.stderr)
        return alarms

    @property
    def stop(self) -> bool:
        """Returns whether training is to end now."""
        return self.stop_on_hacking and self.onset is not None

    @torch.no_grad()
    def restore_peak(self) -> int:
        """Puts the peak's weights into the model; returns its step, 0 for the SFT policy."""
        load_trainable_state(self.model, self._kept)
        return 0 if self.peak is None else self.peak.step

    @contextmanager
    def peak_weights(self) -> Iterator[int]:
        """Yields the peak's step; inside the context the model has its weights, afterwards the last ones again."""
        last = self._copy()
        yield self.restore_peak()
        load_trainable_state(self.model, last)

    def metrics(self) -> Metrics:
        """Returns `hacking_alarms`, and `hacking_onset` where there are any: the step of the first."""
        found: Metrics = {"hacking_alarms": len(self.alarms)}
        return found if self.onset is None else {**found, "hacking_onset": self.onset}

    def state_dict(self) -> State:
        return {"alarm": super().state_dict(), "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        super().load_state_dict(state["alarm"])
        self._kept = state["kept"]


@dataclass(frozen=True)
class PeakEvaluation:
    """An evaluation of the peak: metrics as `peak_<metric>`, AlpacaEval answers, and these over the SFT model's."""

    metrics: Metrics
    answers: list[Generation]
    against_sft: SftComparison


def peak_evaluation(evaluator: Evaluator, policy: Policy, sft: Sequence[Generation]) -> PeakEvaluation:
    """Evaluates a policy that has the peak's weights by what Table 3 prints: AlpacaEval over the SFT model's answers,
    and MT-Bench."""
    rows = {name: evaluator.generate_dialogue(policy, name) for name in ("alpaca", "mtbench")}
    over = compare_with_sft(evaluator, rows["alpaca"], sft, ("alpaca",))
    found: Metrics = dict(over.metrics)
    found["alpaca_chars"] = sum(row["n_chars"] for row in rows["alpaca"]) / max(1, len(rows["alpaca"]))
    if evaluator.judge is not None and rows["mtbench"]:
        _, judged = evaluator.judge_dialogue(evaluator.judge, {"mtbench": rows["mtbench"]})
        found |= judged
    return PeakEvaluation({f"peak_{name}": value for name, value in found.items()}, rows["alpaca"], over)


def measure_hacking(
    watch: HackingWatch,
    kl: Mapping[int, float],
    world: GoldWorld | None,
    sft: Sequence[Generation],
    rows: Sequence[Generation],
) -> tuple[Metrics, list[HackingPoint]]:
    """Returns the measures of reward hacking of a run.

    Args:
        watch: with every evaluation of the run.
        kl: nats per response by step.
        world: reads clauses of the testbed's dialogues; another or None leaves their measures out.
        sft, rows: generations of the SFT model and of the trained policy; compared on the prompts of the latter.

    Returns:
        metrics (`hacking/...`; shares of clause types `clauses/<type>` and `clauses_sft/<type>`, numbers in a response
        `clauses_per_response/<type>` and `clauses_per_response_sft/<type>`), and one row per evaluation for
        hacking.jsonl.
    """
    from rlhf_core.testbed import World

    kl = {0: 0.0, **kl}
    metrics = overoptimisation(watch.points, kl, watch.settings)
    if isinstance(world, World):
        answers = [row for row in rows if row["benchmark"] == "alpaca"]
        asked = {row["id"] for row in answers}
        before = [row for row in sft if row["benchmark"] == "alpaca" and row["id"] in asked]
        for suffix, written in (("", answers), ("_sft", before)):
            kinds = ([clause.kind for clause in world.clauses(row["meta"], row["response"])] for row in written)
            shares, per_response = clause_use(kinds, world.kinds)
            metrics |= {f"clauses{suffix}/{kind}": share for kind, share in shares.items()}
            metrics |= {f"clauses_per_response{suffix}/{kind}": n for kind, n in per_response.items()}
    points: list[HackingPoint] = [
        {
            "step": point.step,
            "proxy": point.proxy,
            "proxy_error": point.proxy_error,
            "win_rate": 100 * point.win_rate,
            "kl": kl.get(point.step),
        }
        for point in watch.points
    ]
    return metrics, points
