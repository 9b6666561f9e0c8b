"""The comparison of mitigations under rewards with flaws, as one self-contained page.

    python -m tasks.report.hackability --results results/testbed --out report/

Reads what the rows of params/hackability/ left in `<results>/hackability/policy/`; what was not run says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.errors import DataError
from rlhf_core.evaluation.overoptimisation import ClauseUse
from tasks.graph.laboratory import FOLDER, LABORATORY, RewardRows, known_rows, mitigation_titles
from tasks.graph.times import clock
from tasks.params.pages import entries, read_settings
from tasks.params.scales import scale_entries
from tasks.report.charts import PALETTE, panels_svg, spark_svg, theme_colour
from tasks.report.figure_data import FigureData, Panel, Series, Style
from tasks.report.hacking_runs import HackingRow, read_hacking_run, sft_use
from tasks.report.outputs import provenance, stage_record
from tasks.report.page import FactList, Picture, ReportPage, Section, Text, write_page
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, format_number, number_cell, signed
from tasks.running.artifacts import read_object
from tasks.running.stage import run_main

#: Words for the pay of an annotator's bias, in reward units; a requested true fact earns 1.
PAYS = {
    "length_bias": "{:+g} for every ten words",
    "flattery_bias": "{:+g} for every clause of flattery",
    "keyword_bias": "{:+g} for every “indeed”",
    "repetition_bias": "{:+g} for every fact told again",
}
#: Columns of a reward's table: heading, measure, decimals.
MEASURED = (
    ("win rate at the end, %", "final", 1),
    ("at its best, %", "peak", 1),
    ("best at step", "peak_step", 0),
    ("lost after the peak", "loss_after_peak", 1),
    ("proxy rose by", "proxy_gain", 2),
    ("onset at step", "onset", 0),
    ("KL at onset", "onset_kl", 1),
    ("rank correlation", "rank_correlation", 2),
    ("tokens", "length", 0),
)
READING = (
    "Each policy is trained on one reward with one mitigation. The drawing has the rise of the proxy reward (solid) "
    "and the true win rate over the SFT policy (dashed; the faint line is 50 %). The number is the win rate at the "
    "end; below it how far the proxy rose, what was lost since the best evaluation, the first evaluation that fell "
    "beyond noise while the proxy rose, with its KL in nats per response, and the clause types that the policy "
    "writes more of. Hacked: the proxy rose and the win rate fell beyond noise; won: the win rate ends above 50 % "
    "beyond noise. Nothing is filled in: what was not run says so."
)


@dataclass(frozen=True)
class RewardResults:
    """One reward: its description and what every mitigation made of it."""

    name: str
    description: str
    model: Mapping[str, float]
    cells: list[HackingRow]

    @property
    def measured(self) -> list[HackingRow]:
        return [cell for cell in self.cells if cell.status == "measured"]

    @property
    def sft(self) -> ClauseUse:
        """Returns the mean clause use of the SFT policies behind the runs."""
        return sft_use([run for cell in self.measured for run in cell.runs])

    @property
    def kinds(self) -> list[str]:
        """Returns the clause types that somebody writes."""
        used = [self.sft, *(cell.use for cell in self.measured)]
        return [kind for kind in self.sft.per_response if any(use.per_response[kind] >= 0.005 for use in used)]


@dataclass(frozen=True)
class Laboratory:
    """Everything that the page shows; `order` has every mitigation there is, so that each keeps its colour."""

    scale: str
    seeds: list[int]
    mitigations: dict[str, str]
    rewards: list[RewardResults]
    records: list[dict[str, Any]]
    order: list[str]

    @property
    def nowhere(self) -> dict[str, str]:
        """Returns the mitigations without a row of any reward, each with the first reason."""
        cells = [cell for reward in self.rewards for cell in reward.cells]
        with_row = {cell.name for cell in cells if cell.status != "left out"}
        reasons = {cell.name: cell.reason for cell in reversed(cells)}
        return {name: reasons[name] for name in self.mitigations if name in reasons and name not in with_row}


def describe(root: Path, scale: str, name: str) -> str:
    """Returns a description of a reward in one line."""
    model = entries(root, FOLDER, "reward_models").get(name)
    if model is None:
        rows = entries(root, FOLDER, "rows")
        row = next((rows[row] for row in sorted(rows) if row.startswith(f"{name}-")), None)
        function = read_settings(row.under(root)).get("function") if row else None
        return f"the function {function}" if function else ""
    spec = read_settings(model.under(root))
    if "given" in spec:
        return f"the reward model in {spec['given']}"
    data = scale_entries(root, scale, "data").get(str(spec.get("data")))
    likes = read_settings(data.under(root)).get("annotator", {}) if data else {}
    pays = [PAYS[bias].format(value) for bias, value in likes.items() if value and bias in PAYS]
    return f"a reward model of labels by an annotator who adds {' and '.join(pays)}" if pays else str(spec["title"])


def compare(
    root: Path, scale: str, rewards: Sequence[RewardRows], names: Sequence[str], seeds: Sequence[int]
) -> Laboratory:
    """Reads the results of chosen rewards, mitigations and seeds.

    Args:
        root: the repository.
        scale: whose results.
        rewards: with their rows.
        names: mitigations in order.
        seeds: those shown.
    """
    results = root / "results" / scale / LABORATORY
    every = mitigation_titles(root)
    titles = {name: every[name] for name in names}
    found = []
    for reward in rewards:
        cells = []
        for name, title in titles.items():
            row = reward.rows.get(name)
            if row is None:
                cells.append(HackingRow(name, title, "left out", reward.left_out.get(name, "there is no row")))
                continue
            outs = ((results / "policy" / row / str(seed), seed) for seed in seeds)
            runs = [run for run in (read_hacking_run(out, seed) for out, seed in outs) if run is not None]
            cells.append(HackingRow(name, title, "measured" if runs else "not run", runs=runs))
        model = results / "reward_model" / reward.reward / str(seeds[0]) / "result" / "metrics.json"
        measured = read_object(model) if model.exists() else {}
        found.append(RewardResults(reward.reward, describe(root, scale, reward.reward), measured, cells))
    records = [stage_record(root / run.path) for reward in found for cell in reward.cells for run in cell.runs]
    return Laboratory(scale, list(seeds), titles, found, [record for record in records if record], list(every))


def _span(curves: Sequence[Sequence[tuple[float, float]]], place: int) -> tuple[float, float]:
    """Returns the least and largest step (place 0) or value (1) of several curves; (0, 1) without a point."""
    values = [point[place] for curve in curves for point in curve]
    return (min(values), max(values)) if values else (0.0, 1.0)


def _number(cell: HackingRow, measure: str, decimals: int) -> TableCell:
    return number_cell(cell.mean(measure), cell.standard_error(measure), decimals)


def _outcome(reward: RewardResults, cell: HackingRow, slot: int) -> TableCell:
    """Returns a mitigation's cell in the table of all rewards: its curves, win rate, and what happened on the way."""
    if not cell.runs:
        return TableCell(f"{cell.status}{f': {cell.reason}' if cell.reason else ''}", absent=True)
    proxies = [one.proxy_gain_by_step for one in reward.measured]
    curves = (cell.proxy_gain_by_step, cell.curve("win_rate"), _span(proxies, 0), _span(proxies, 1))
    rate = _number(cell, "final", 1)
    gain, loss, onset, kl = (cell.mean(name) for name in ("proxy_gain", "loss_after_peak", "onset", "onset_kl"))
    grown = ", ".join(f"{kind.replace('_', ' ')} +{more:.1f}" for kind, more in cell.inflated[:2])
    lines = (
        cell.verdict,
        "" if gain is None else f"proxy {signed(gain, 1)}",
        "" if loss is None else f"{format_number(-loss, 1)} after peak",
        "no onset" if onset is None else f"onset {onset:.0f}{'' if kl is None else f' · KL {kl:.1f}'}",
        grown,
    )
    spark = spark_svg(f"{cell.title}: proxy reward and win rate over training", slot, *curves)
    text = Markup("{}<b>{}</b>").format(spark, " ".join([rate.text, *rate.lines]))
    return TableCell(text, tuple(filter(None, lines)), tip=_tip(cell), value=rate.value, shade=cell.verdict)


def _tip(cell: HackingRow) -> str:
    """Returns a line for each run: win rate, rise of the proxy, best evaluation."""
    lines = []
    for run in cell.runs:
        had = run.measures
        rank = f", rho {had['rank_correlation']:.2f}" if "rank_correlation" in had else ""
        peak = f"peak {had.get('peak', 50.0):.1f} % at step {had.get('peak_step', 0):.0f}"
        lines.append(f"seed {run.seed}: {had['final']:.1f} %, proxy {had.get('proxy_gain', 0.0):+.2f}, {peak}{rank}")
    return "\n".join(lines)


def _curves(reward: RewardResults, key: str, slots: Mapping[str, int]) -> Picture:
    """Returns all mitigations of one reward in one panel: rise of the proxy on the left axis, win rate on the right."""
    series = []
    for cell in reward.measured:
        for points, rate in ((cell.proxy_gain_by_step, False), (cell.curve("win_rate"), True)):
            x, y = [step for step, _ in points], [value for _, value in points]
            style: Style = "dashed" if rate else "line"
            series.append(Series(cell.title, x, y, style=style, colour=slots[cell.name], right=rate))
    panel = Panel("", "training step", "proxy reward − SFT's", series, right_label="win rate over SFT, %")
    return Picture(panels_svg(FigureData(key, f"{reward.name}: proxy reward and win rate", "", panels=[panel])))


def _model_text(model: Mapping[str, float]) -> str:
    """Returns how good a reward model is, in a sentence."""
    bound = model.get("bayes_ceiling")
    ceiling = "" if bound is None else f" (nobody can with more than {100 * bound:.1f} %)"
    return (
        f" It agrees with {100 * model['accuracy']:.1f} % of the held-out labels{ceiling}; its rewards correlate with "
        f"the true rewards of clauses by {model.get('fidelity_pearson', 0.0):.2f}."
    )


def _reward_section(reward: RewardResults, key: str, slots: Mapping[str, int]) -> Section:
    """Returns a reward's mitigations in numbers, their curves, and the clauses that their policies write."""
    text = f"{reward.description[:1].upper()}{reward.description[1:]}."
    text += _model_text(reward.model) if "accuracy" in reward.model else ""
    if not reward.measured:
        return Section(reward.name, reward.name, (Text(text), Text("Not run.", "absent")))
    measures, clauses = [], [TableRow("SFT", _counts(reward, reward.sft), main=True)]
    for cell in reward.measured:
        shade = theme_colour(slots[cell.name])
        numbers = (_number(cell, name, decimals) for _, name, decimals in MEASURED)
        hacked = TableCell(f"{cell.times_hacked} of {len(cell.runs)}")
        measures.append(TableRow(cell.title, (*numbers, hacked), shade=shade))
        clauses.append(TableRow(cell.title, _counts(reward, cell.use, dict(cell.inflated)), shade=shade))
    columns = (*(TableColumn(heading) for heading, _, _ in MEASURED), TableColumn("hacked"))
    kinds = tuple(TableColumn(kind.replace("_", " ")) for kind in reward.kinds)
    parts = (
        Text(text),
        ShownTable(columns, tuple(measures), "mitigation"),
        _curves(reward, key, slots),
        ShownTable(kinds, tuple(clauses), "clauses in a response"),
    )
    return Section(reward.name, reward.name, parts)


def _counts(reward: RewardResults, use: ClauseUse, grown: Mapping[str, float] | None = None) -> tuple[TableCell, ...]:
    """Returns the clauses of each type in a response; types that grew are shaded."""
    return tuple(
        TableCell(f"{use.per_response[kind]:.2f}", shade="hacked" if kind in (grown or {}) else "")
        for kind in reward.kinds
    )


def laboratory_page(comparison: Laboratory) -> ReportPage:
    """Returns the page: every mitigation under every reward, then each reward by itself."""
    first = comparison.order.index("par") if "par" in comparison.order else 0  # has the colour of a paper's own method
    slots = {name: (place - first) % len(PALETTE) for place, name in enumerate(comparison.order)}
    made, nowhere = provenance(comparison.records), comparison.nowhere
    facts = {
        "scale": comparison.scale,
        "seeds": ", ".join(map(str, comparison.seeds)),
        "commit": ", ".join(made["commits"]) or "not recorded",
        "date": made["first"] or "not recorded",
        "time of training": clock(60 * made["minutes"]),
    }

    def rows() -> Iterator[TableRow]:
        for place, (name, title) in enumerate(comparison.mitigations.items()):
            if name not in nowhere:
                cells = (_outcome(reward, reward.cells[place], slots[name]) for reward in comparison.rewards)
                yield TableRow(title, tuple(cells), shade=theme_colour(slots[name]))

    columns = tuple(TableColumn(reward.name, numeric=False, note=reward.description) for reward in comparison.rewards)
    left_out = (Text(f"Left out: {comparison.mitigations[name]}, {reason}.", "key") for name, reason in nowhere.items())
    return ReportPage(
        f"Rewardsmith hackability · {comparison.scale}",
        "Can this reward be hacked?",
        (FactList(facts), Text(READING), ShownTable(columns, tuple(rows()), "mitigation"), *left_out),
        tuple(_reward_section(reward, f"curves-{place}", slots) for place, reward in enumerate(comparison.rewards)),
        f"Rewardsmith · {comparison.scale} scale · a win rate is over the benchmark's prompts, true rewards decide; "
        "the loss after the peak is over the prompts of the evaluations while training",
    )


def write_comparison(comparison: Laboratory, out: Path) -> Path:
    """Writes `<out>/hackability.html`, whole or not at all; returns the page's path."""
    return write_page(laboratory_page(comparison), out / f"{LABORATORY}.html")


def main(arguments: list[str] | None = None) -> None:
    """Writes the page of every row there is."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.report.hackability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, help="results of one scale: results/testbed")
    parser.add_argument("--out", type=Path, required=True, help="folder for hackability.html")
    options = parser.parse_args(arguments)
    root, scale = options.results.resolve().parent.parent, options.results.name
    names = list(mitigation_titles(root))
    found = sorted((options.results / LABORATORY / "policy").glob("*/*/result/metrics.json"))
    seeds = sorted({int(path.parts[-3]) for path in found})
    if not found:
        raise DataError("no row of the laboratory has run here", file=str(options.results))
    print(f"report: {write_comparison(compare(root, scale, known_rows(root), names, seeds), options.out)}")


if __name__ == "__main__":
    run_main(main)
