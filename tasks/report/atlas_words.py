"""Findings of studies as sentences and numbers with units."""

from __future__ import annotations

from rlhf_core.evaluation.worlds import Effect
from tasks.params.studies import Hypothesis, StudySpec
from tasks.report.atlas import CellMean
from tasks.report.paper_tables import p_value
from tasks.studies.frame import compared
from tasks.studies.verdicts import NOT_TESTED, StudyFinding

#: The unit of rates in percent.
POINTS = "points"


def unit(spec: StudySpec) -> str:
    """Returns the unit of a metric: points of a rate in percent, such as the average of tasks; else its name."""
    in_percent = any(part in spec.metric for part in ("win_rate", "accuracy")) or spec.metric == "average"
    return POINTS if in_percent else spec.metric


def amount(spec: StudySpec, value: float, *, sign: bool = True) -> str:
    """Returns a number in the unit of a study's metric, with a true minus."""
    digits = 1 if unit(spec) == POINTS else 3
    plus = "+" if sign and value > 0 else ""
    return f"{value + 0.0:{plus}.{digits}f}".replace("-", "−")  # a zero has no sign, a rounded number its own


def interval_text(spec: StudySpec, effect: Effect) -> str:
    """Returns the 95 % interval as '+1.1 to +7.3', nothing without a test."""
    interval = effect.interval()
    return "" if interval is None else f"{amount(spec, interval.lower)} to {amount(spec, interval.upper)}"


def mean_text(mean: CellMean) -> str:
    """Returns a mean over worlds with its interval."""
    if mean.effect is None:
        return "no mean"
    interval = mean.effect.interval()
    shown = "" if interval is None else f" [{interval.lower:.1f}, {interval.upper:.1f}]"
    return f"{mean.effect.estimate:.1f}{shown}"


def measured(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the quantity of a hypothesis in words, such as 'segment less bandit, per level of length'."""
    row, other = compared(spec, hypothesis)
    parts = [f"{row} less {other}"]
    if hypothesis.over is not None:
        parts.append(f"{'contrast over' if hypothesis.weights else 'per level of'} {hypothesis.over}")
    for dial, level in hypothesis.at.items():
        parts.append(f"{dial} {level if isinstance(level, str) else ' and '.join(level)}")
    return ", ".join(parts) + ("" if hypothesis.kl is None else f", at {hypothesis.kl:g} nats")


def _where(hypothesis: Hypothesis) -> str:
    """Returns the levels that a hypothesis is about, and the KL at which rows are compared, in words."""
    levels = {dial: level if isinstance(level, str) else " or ".join(level) for dial, level in hypothesis.at.items()}
    said = [f"where {dial} is {level}" for dial, level in levels.items()]
    said += [] if hypothesis.kl is None else [f"at {hypothesis.kl:g} nats"]
    return "".join(f" {one}" for one in said)


def tested_p(finding: StudyFinding) -> str:
    """Returns the p of a finding, or that it is not tested."""
    return "not tested" if finding.held_back else p_value(finding.p)


def sentence(spec: StudySpec, finding: StudyFinding, *, bare: bool = False) -> str:
    """Returns a finding as one or two sentences: effect, interval (`bare`: without its name), worlds, and what follows
    from the word."""
    if finding.effect is None:
        return f"No effect is shown: {finding.why_no_effect}."
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
    said += _where(finding.hypothesis)
    facts = [f"{effect.worlds} worlds"]
    if effect.interval() is not None:
        facts = [("" if bare else "95 % interval ") + interval_text(spec, effect), tested_p(finding), *facts]
    return f"{said[0].upper()}{said[1:]} ({', '.join(facts)}){_ending(spec, finding)}"


def _ending(spec: StudySpec, finding: StudyFinding) -> str:
    if finding.word == "contradicted":
        return ": the other side than claimed."
    if finding.word == "equivalent" and spec.margin is not None:
        return f": within ±{spec.margin:g} {unit(spec)}, which counts as no difference."
    if finding.word == "over a broken baseline":
        return ". This confirms nothing, since one of the two rows is broken."
    if finding.word == "undecided" and finding.held_back:
        return f". It is {NOT_TESTED}."
    if finding.word == "broken":
        who = "the row that lost" if finding.hypothesis.over is None else "one of the two rows"
        return f". This contradicts nothing, since {who} is broken."
    if finding.word == "undecided" and finding.sees is not None:
        seen = f"{amount(spec, finding.sees, sign=False)} {unit(spec)}"
        return f". These worlds find an effect of {seen} with 80 % power."
    if finding.word == "undecided":
        return f". It is not tested: {finding.why_untested}."
    return "."
