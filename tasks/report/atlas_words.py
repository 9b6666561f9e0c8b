"""Findings of studies as sentences and numbers with units."""

from __future__ import annotations

from rlhf_core.evaluation.worlds import Effect
from tasks.params.studies import Hypothesis, StudySpec
from tasks.report.page import p_value
from tasks.studies.caveats import compared
from tasks.studies.verdicts import StudyFinding

#: The unit of rates in percent.
POINTS = "points"


def unit(spec: StudySpec) -> str:
    """Returns the unit of a study's metric: points of a rate in percent, else the metric's name."""
    return POINTS if "win_rate" in spec.metric or "accuracy" in spec.metric else spec.metric


def amount(spec: StudySpec, value: float, *, sign: bool = True) -> str:
    """Returns a number in the unit of a study's metric, with a true minus."""
    digits = 1 if unit(spec) == POINTS else 3
    rounded = round(value, digits) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def interval_text(spec: StudySpec, effect: Effect) -> str:
    """Returns the 95 % interval as '+1.1 to +7.3', nothing without a test."""
    interval = effect.interval()
    return "" if interval is None else f"{amount(spec, interval.lower)} to {amount(spec, interval.upper)}"


def measured(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the quantity of a hypothesis in words, such as 'segment less bandit, per level of length'."""
    row, other = compared(spec, hypothesis)
    if hypothesis.over is None:
        at = ", ".join(f"{dial} {level}" for dial, level in hypothesis.at.items())
        return f"{row} less {other}" + (f", {at}" if at else "")
    return f"{row} less {other}, {'contrast over' if hypothesis.weights else 'per level of'} {hypothesis.over}"


def sentence(spec: StudySpec, finding: StudyFinding) -> str:
    """Returns a finding as one or two sentences: effect, interval, worlds, and what follows from the word."""
    if finding.effect is None:
        return f"No effect is shown: {finding.refused}."
    row, other = compared(spec, finding.hypothesis)
    effect, over = finding.effect, finding.hypothesis.over
    size = f"{amount(spec, abs(effect.estimate), sign=False)} {unit(spec)}"
    if over is None:
        said = f"{row} is {size} {'above' if effect.estimate >= 0 else 'below'} {other}"
    elif finding.hypothesis.weights:
        said = f"the contrast of {row} less {other} over {over} is {amount(spec, effect.estimate)} {unit(spec)}"
    else:
        grows = "grows" if effect.estimate >= 0 else "shrinks"
        said = f"the lead of {row} over {other} {grows} by {size} for each level of {over}"
    facts = [f"{effect.worlds} worlds"]
    if effect.interval() is not None:
        facts = [f"95 % interval {interval_text(spec, effect)}", p_value(finding.p), *facts]
    return f"{said[0].upper()}{said[1:]} ({', '.join(facts)}){_ending(spec, finding)}"


def _ending(spec: StudySpec, finding: StudyFinding) -> str:
    if finding.word == "contradicted":
        return ": the other side than claimed."
    if finding.word == "equivalent" and spec.margin is not None:
        return f": a difference within ±{spec.margin:g} {unit(spec)}, which counts as none."
    if finding.word == "over a broken baseline":
        return ". This confirms nothing, since one of the two rows is broken."
    if finding.word == "undecided" and finding.sees is not None:
        seen = f"{amount(spec, finding.sees, sign=False)} {unit(spec)}"
        return f". These worlds find an effect of {seen} with a power of 80 %; a smaller one may be missed."
    if finding.word == "undecided":
        return f". It is not tested: {finding.effect.reason if finding.effect else finding.refused}."
    return "."
