"""What *ALARM: Align Language Models via Hierarchical Rewards Modeling* says of its results.

Win rates are of test answers, ties left out, means are of test answers; the selection's are of the initial policy's
greedy and sampled answers to training prompts. Prompts of a win rate count as in Eq. 2: a tie is worth half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.published.row_map import recipe_row
from tasks.report.claims import Claim, Derived, Number, Part, Results, Side, claims_figure, rows_named
from tasks.report.figure_data import FigureData
from tasks.report.matches import Matches
from tasks.report.measurements import Measurement, TableRuns
from tasks.report.outputs import ResultTree, StageOutput

#: The selection of each task, as claims name it.
SELECTIONS = {"selection, QA": "qa", "selection, MT": "mt"}
#: Aspects of each task, the paper's choice first.
ASPECTS = {
    "qa": ("factuality", "relevance", "completeness", "length"),
    "mt": ("grammar", "confidence", "readability", "length"),
}
#: Selection's aspects of which fewer errors are better.
LOWER_IS_BETTER = ("grammar",)
#: Rows of each task that ALARM is held against: the holistic reward, the aspect's, the weighted sum.
BASELINES = {
    "qa": ("qa-holistic", "qa-factuality", "qa-weighted-sum"),
    "mt": ("mt-holistic", "mt-grammar", "mt-weighted-sum"),
}
#: Who says which answer is better, in the page's words.
JUDGES = {
    "holistic": "by the holistic reward",
    "factuality": "by the factuality rate",
    "grammar": "by the grammar error rate",
    "judge": "by the judge",
}
MEANS = {"holistic": "mean holistic reward", "factuality": "mean factuality rate", "grammar": "mean grammar error rate"}
#: Points from 50 % within which two rows tie; the printed ties lie within 1.5 points.
ALIKE = 4.0


def _preferred(aspect: str, row: Mapping[str, Mapping[str, float]]) -> int:
    """1 where the aspect has the greedy answer as the better one, -1 where the sampled one, 0 for a tie."""
    greedy, sampled = (float(row[side][aspect]) for side in ("greedy", "sampled"))
    sign = -1 if aspect in LOWER_IS_BETTER else 1
    return sign * ((greedy > sampled) - (greedy < sampled))


def inconsistency(aspect: str) -> Derived:
    """Percent of decided pairs where an aspect prefers the answer that the holistic reward does not."""

    def read(output: StageOutput) -> Measurement | None:
        value = output.metrics.get(f"inconsistency/{aspect}")
        if value is None:
            return None
        pairs = {str(row["id"]): row for row in output.rows("answers.jsonl")}
        signs = {prompt: (_preferred("holistic", row), _preferred(aspect, row)) for prompt, row in pairs.items()}
        return Measurement(value, {prompt: float(a * b < 0) for prompt, (a, b) in signs.items() if a})

    return read


def greedy_wins(aspect: str) -> Derived:
    """Win rate in percent of greedy over sampled answers by an aspect."""

    def read(output: StageOutput) -> Measurement | None:
        value = output.metrics.get(f"win_rate/{aspect}")
        if value is None:
            return None
        rows = output.rows("answers.jsonl")
        return Measurement(value, {str(row["id"]): 0.5 + 0.5 * _preferred(aspect, row) for row in rows})

    return read


def distance(aspect: str) -> Derived:
    """Points between the win rates of greedy answers by an aspect and by the holistic reward."""

    def read(output: StageOutput) -> float | None:
        own, holistic = (output.metrics.get(f"win_rate/{name}") for name in (aspect, "holistic"))
        return None if own is None or holistic is None else abs(own - holistic)

    return read


_NAMES = sorted({name for names in ASPECTS.values() for name in names})
DERIVED: dict[str, Derived] = {
    **{f"inconsistency of {name}": inconsistency(name) for name in _NAMES},
    **{f"greedy wins by {name}": greedy_wins(name) for name in _NAMES},
    **{f"{name}'s distance from the holistic win rate": distance(name) for name in _NAMES},
}


def _selected(task: str, metric: str, side: Side, among: Sequence[str]) -> list[Part]:
    """The paper's choice on one side of other aspects; `metric` has a place for the aspect's name."""
    row = next(row for row, of in SELECTIONS.items() if of == task)
    chosen, *others = among
    first = Number(row, metric.format(chosen), metric.format(chosen))
    return [Part(first, side, Number(row, metric.format(name), name)) for name in others]


def _wins(row: str, by: str, *others: str) -> list[Part]:
    """A row wins over each of the others."""
    return [Part(_win_rate(row, by, other), "above", 50.0) for other in others]


def _win_rate(row: str, by: str, other: str) -> Number:
    return Number(row, f"wins/{by}/{other}", f"{row} over {other} {JUDGES[by]}")


def _ties(row: str, by: str, other: str) -> Part:
    return Part(_win_rate(row, by, other), "beside", 50.0, ALIKE)


def _mean(row: str, by: str) -> Number:
    return Number(row, f"score/{by}", f"{row}, {MEANS[by]}")


def _means(row: str, by: str, *others: str) -> list[Part]:
    """A row's mean stands above each of the others'."""
    return [Part(_mean(row, by), "above", Number(other, f"score/{by}", other)) for other in others]


def _ablation(task: str, aspect: str) -> str:
    """The row of ALARM with an aspect; the paper's choice is the main row."""
    return f"{task}-alarm" if aspect == ASPECTS[task][0] else f"{task}-alarm-{aspect}"


def _against_others(task: str, by: str, aspect: str, *others: str) -> list[Part]:
    """ALARM with an aspect has a higher mean win rate against the other aspects than those have (Table 7)."""
    row, metric = _ablation(task, aspect), f"wins/{by}/others"
    first = Number(row, metric, f"{row} against the others {JUDGES[by]}")
    rest = [_ablation(task, name) for name in others]
    return [Part(first, "above", Number(other, metric, other)) for other in rest]


def claims() -> list[Claim]:
    """The paper's claims in its own order: the selection, the methods of both tasks, the ablation of the selection."""
    holistic, aspect, summed = BASELINES["qa"]
    return [
        Claim(
            "Factuality is the aspect that is most consistent with the holistic reward, and chosen",
            "§3.2, Figure 3",
            _selected("qa", "inconsistency of {}", "below", ASPECTS["qa"]),
        ),
        Claim(
            "By factuality greedy answers win nearly as often as by the holistic reward",
            "§3.2, Figure 3",
            _selected("qa", "{}'s distance from the holistic win rate", "below", ASPECTS["qa"]),
        ),
        Claim(
            "Grammar is more consistent with the holistic reward than confidence and readability",
            "§4.2, Figure 4",
            _selected("mt", "inconsistency of {}", "below", ASPECTS["mt"][:3]),
        ),
        Claim(
            "Grammar is more consistent than length, which Table 7 has among the aspects, and chosen",
            "§4.2, Table 7",
            _selected("mt", "inconsistency of {}", "below", ("grammar", "length")),
        ),
        Claim(
            "By grammar greedy answers win more often than by confidence and readability",
            "§4.2, Figure 4",
            _selected("mt", "greedy wins by {}", "above", ASPECTS["mt"][:3]),
        ),
        Claim(
            "QA: ALARM wins by the holistic reward", "§3.4, Table 1", _wins("qa-alarm", "holistic", *BASELINES["qa"])
        ),
        Claim(
            "QA: ALARM wins by the factuality rate",
            "§3.4, Table 1",
            _wins("qa-alarm", "factuality", holistic, aspect, summed),
        ),
        Claim("QA: ALARM wins by the judge", "§3.4, Table 1", _wins("qa-alarm", "judge", holistic, summed)),
        Claim(
            "QA: ALARM ties with one and outperforms another: with each single reward in what that is trained for",
            "§3.4, Table 2",
            [
                _ties("qa-alarm", "holistic", holistic),
                *_wins("qa-alarm", "holistic", aspect),
                _ties("qa-alarm", "factuality", aspect),
                *_wins("qa-alarm", "factuality", holistic),
            ],
        ),
        Claim(
            "QA: ALARM has a higher mean holistic reward than the aspect's and the summed reward",
            "§3.4, Table 2",
            _means("qa-alarm", "holistic", aspect, summed),
        ),
        Claim(
            "QA: ALARM has a higher mean factuality rate than the holistic and the summed reward",
            "§3.4, Table 2",
            _means("qa-alarm", "factuality", holistic, summed),
        ),
        Claim(
            "QA: the weighted sum lies between the two rewards",
            "§3.4, Table 3",
            [
                *_means(holistic, "holistic", summed),
                *_means(summed, "holistic", aspect),
                *_means(aspect, "factuality", summed),
                *_means(summed, "factuality", holistic),
            ],
        ),
        *_translation(),
        *_ablations(),
    ]


def _translation() -> list[Claim]:
    """Tables 4 to 6."""
    _, aspect, summed = BASELINES["mt"]
    return [
        *(
            Claim(f"MT: ALARM wins {JUDGES[by]}", "§4.4, Tables 4 and 5", _wins("mt-alarm", by, *BASELINES["mt"]))
            for by in ("holistic", "grammar", "judge")
        ),
        Claim(
            "MT: ALARM has the highest mean holistic reward",
            "§4.4, Table 5",
            _means("mt-alarm", "holistic", *BASELINES["mt"]),
        ),
        Claim(
            "MT: yet its mean grammar error rate is above those of the aspect's and the summed reward",
            "§4.4, Table 5",
            _means("mt-alarm", "grammar", aspect, summed),
        ),
    ]


def _ablations() -> list[Claim]:
    """Table 7."""
    return [
        *(
            Claim(
                f"{task.upper()}: the aspect that is chosen leads by the holistic reward",
                "§5, Table 7",
                _against_others(task, "holistic", *names),
            )
            for task, names in ASPECTS.items()
        ),
        Claim(
            "QA: by the judge factuality is ahead of completeness and length",
            "§5, Table 7",
            _against_others("qa", "judge", "factuality", "completeness", "length"),
        ),
        Claim(
            "QA: by the holistic reward relevance is behind factuality, by the judge ahead",
            "§5, Table 7",
            [
                *_against_others("qa", "holistic", "factuality", "relevance"),
                *_against_others("qa", "judge", "relevance", "factuality"),
            ],
        ),
        Claim(
            "MT: the aspect that is chosen leads by the judge",
            "§5, Table 7",
            _against_others("mt", "judge", *ASPECTS["mt"]),
        ),
    ]


def results_of(tree: ResultTree, made: Sequence[Claim]) -> Results:
    """The runs that claims name, each read once."""
    outputs: dict[str, Mapping[int, StageOutput]] = {
        row: tree.outputs("alarm", "selection", SELECTIONS[row])
        if row in SELECTIONS
        else tree.of(recipe_row("alarm", row))
        for row in {*rows_named(made), *(row for rows in BASELINES.values() for row in rows)}
    }
    tasks = {_ablation(task, name): task for task, names in ASPECTS.items() for name in names}
    return Results(TableRuns(outputs, {}), DERIVED, Matches(outputs, tree.root, tasks))


def paper_claims(tree: ResultTree) -> FigureData:
    """What the paper says and whether it was borne out."""
    made = claims()
    return claims_figure(
        made,
        results_of(tree, made),
        numbers="Numbers are win rates in percent, means over seeds, unless named otherwise; a tie is worth half to a "
        "prompt.",
        alike=f"Two rows tie when the 90 % interval of the win rate over seeds lies within {ALIKE:g} points of 50 %.",
        needs="the rows of Tables 1 and 4 and the selections",
    )
