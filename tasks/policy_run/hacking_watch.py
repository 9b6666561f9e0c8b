"""Reward hacking in a policy run: the alarm's log line, the weights of the peak, and the measures of
the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlhf_core.evaluation.hacking_alarm import Alarm, AlarmSettings, HackingAlarm
from rlhf_core.evaluation.overoptimisation import clause_use, overoptimisation
from rlhf_core.training_state import State, load_trainable_state, trainable_state
from tasks.running.result_rows import Generation, HackingPoint, Metrics

if TYPE_CHECKING:
    from rlhf_core.testbed.judge import GoldWorld


class HackingWatch:
    """A run's alarm, and the weights of its peak where they are kept: the evaluation with the highest win rate.

    Args:
        settings: when it is raised, and what follows.
        evaluations: how many the run will make.
        model: the policy whose trainable weights are kept; the SFT policy when this object is made.
        label: of the run, in the log.
        keeps: keep the peak's weights whatever the settings.
    """

    def __init__(
        self,
        settings: AlarmSettings,
        evaluations: int,
        model: nn.Module,
        *,
        label: str,
        keeps: bool = False,
    ) -> None:
        self.settings, self.model, self.label = settings, model, label
        self.alarm = HackingAlarm(settings, evaluations)
        self.stop_on_hacking = settings.on_hacking == "stop"
        self.keeps = self.stop_on_hacking or keeps
        self._kept: State = self._copy() if self.keeps else {}

    def _copy(self) -> State:
        return {name: value.detach().to("cpu", copy=True) for name, value in trainable_state(self.model).items()}

    def observe(self, step: int, metrics: dict[str, float], responses: int) -> None:
        """Takes in a step's metrics."""
        self._log(self.alarm.observe(step, metrics, responses))

    def observe_evaluation(self, step: int, scores: dict[str, float]) -> None:
        """Takes in an evaluation of the weights as they are now."""
        self._log(self.alarm.observe_evaluation(step, scores))
        if self.keeps and self.alarm.peak is not None and self.alarm.peak.step == step:
            self._kept = self._copy()

    def observe_end(self, step: int, scores: dict[str, float]) -> None:
        """Takes in the final evaluation on all test prompts, after a step."""
        self._log(self.alarm.observe_end(step, scores))

    def _log(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            print(f"alarm: {self.label}: step {alarm.step}: {alarm.message}", file=sys.stderr)

    @property
    def stop(self) -> bool:
        """Returns whether training is to end now."""
        return self.stop_on_hacking and self.alarm.onset is not None

    @torch.no_grad()
    def restore_peak(self) -> int:
        """Puts the peak's weights into the model; returns its step, 0 for the SFT policy."""
        load_trainable_state(self.model, self._kept)
        return 0 if self.alarm.peak is None else self.alarm.peak.step

    @contextmanager
    def peak_weights(self) -> Iterator[int]:
        """Yields the peak's step; inside the context the model has its weights, afterwards the last ones again."""
        last = self._copy()
        yield self.restore_peak()
        load_trainable_state(self.model, last)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the alarms, for alarms.jsonl."""
        return [asdict(alarm) for alarm in self.alarm.alarms]

    def metrics(self) -> Metrics:
        """Returns `hacking_alarms`, and `hacking_onset` where there are any: the step of the first."""
        onset = self.alarm.onset
        found: Metrics = {"hacking_alarms": len(self.alarm.alarms)}
        return found if onset is None else {**found, "hacking_onset": onset}

    def state_dict(self) -> State:
        return {"alarm": self.alarm.state_dict(), "kept": self._kept}

    def load_state_dict(self, state: State) -> None:
        self.alarm.load_state_dict(state["alarm"])
        self._kept = state["kept"]


def measure_hacking(
    alarm: HackingAlarm,
    kl: Mapping[int, float],
    world: GoldWorld | None,
    sft: Sequence[Generation],
    rows: Sequence[Generation],
) -> tuple[Metrics, list[HackingPoint]]:
    """Returns the measures of reward hacking of a run.

    Args:
        alarm: with every evaluation of the run.
        kl: nats per response by step.
        world: reads clauses of the testbed's dialogues; another or None leaves their measures out.
        sft, rows: generations of the SFT model and of the trained policy; compared on the prompts of the latter.

    Returns:
        metrics (`hacking/...`; shares of clause types `clauses/<type>` and `clauses_sft/<type>`, numbers in a response
        `clauses_per_response/<type>` and `clauses_per_response_sft/<type>`), and one row per evaluation for
        hacking.jsonl.
    """
    kl = {0: 0.0, **kl}
    metrics = overoptimisation(alarm.points, kl, alarm.settings)
    from rlhf_core.testbed import KINDS, World

    if isinstance(world, World):
        answers = [row for row in rows if row["benchmark"] == "alpaca"]
        asked = {row["id"] for row in answers}
        before = [row for row in sft if row["benchmark"] == "alpaca" and row["id"] in asked]
        for suffix, written in (("", answers), ("_sft", before)):
            told = ([clause.kind for clause in world.clauses(row["meta"], row["response"])] for row in written)
            used = clause_use(told, KINDS)
            metrics |= {f"clauses{suffix}/{kind}": share for kind, share in used.shares.items()}
            metrics |= {f"clauses_per_response{suffix}/{kind}": n for kind, n in used.per_response.items()}
    points: list[HackingPoint] = [
        {
            "step": point.step,
            "proxy": point.proxy,
            "proxy_error": point.proxy_error,
            "win_rate": 100 * point.win_rate,
            "kl": kl.get(point.step),
        }
        for point in alarm.points
    ]
    return metrics, points
