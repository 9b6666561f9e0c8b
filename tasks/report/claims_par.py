"""What *Reward Shaping to Mitigate Reward Hacking in RLHF* says of its results, as comparisons of measured numbers.

True win rates over the SFT model stand where the paper has its judge's. Falling after the peak is the best evaluation's
weights against the last ones, on all test prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.published.row_map import recipe_row
from tasks.report.claims import Claim, Number, Part, Results, claims_figure, rows_named
from tasks.report.figure_data import FigureData
from tasks.report.measurements import TableRuns
from tasks.report.outputs import ResultTree, StageOutput

#: Points of win rate within which two numbers count as alike; the printed peaks of Table 3 lie within 3.8 points.
ALIKE = 4.0
#: The SFT model that the rows of each prefix start from.
BACKBONES = {"": "gemma2-2b", "llama3-": "llama3-8b", "hh-": "gemma2-2b-hh", "llama3-hh-": "llama3-8b-hh"}
SETTINGS = {
    "llama3-": ("8a", "Llama3-8B, Ultrafeedback-Binarized"),
    "hh-": ("8b", "Gemma2-2B, HH-RLHF"),
    "llama3-hh-": ("8c", "Llama3-8B, HH-RLHF"),
}
WIN_RATE, PEAK = "win_rate_vs_sft", "peak_win_rate_vs_sft"
FAILING = ("odin", "reg", "meanstd", "clip", "lsc")
HOLDING = ("par", "minmax", "warm")


def _end(row: str) -> Number:
    return Number(row, WIN_RATE, row)


def _above(row: str, *others: str) -> list[Part]:
    """A row ends above each of the others."""
    return [Part(_end(row), "above", _end(other)) for other in others]


def _wins(*rows: str) -> list[Part]:
    return [Part(_end(row), "above", 50.0) for row in rows]


def _falls(*rows: str) -> list[Part]:
    """Rows that end below their best evaluation."""
    return [Part(Number(row, PEAK, f"{row} at its best"), "above", Number(row, WIN_RATE, "at the end")) for row in rows]


def _holds(*rows: str) -> list[Part]:
    """Rows that end where they were at their best, or above."""
    return [
        Part(Number(row, PEAK, f"{row} at its best"), "beside", Number(row, WIN_RATE, "at the end"), ALIKE)
        for row in rows
    ]


def _alike(row: str, other: str, metric: str = WIN_RATE) -> Part:
    return Part(Number(row, metric, row), "beside", Number(other, metric, other), ALIKE)


def critic_loss(output: StageOutput) -> float | None:
    """Mean critic loss over the updates of a run."""
    values = [float(row["value_loss"]) for row in output.history if row.get("value_loss") is not None]
    return sum(values) / len(values) if values else None


def calibration_gap(output: StageOutput) -> float | None:
    """Mean distance of preference score and true win rate over the evaluations of a run, in points."""
    rows = [row for row in output.rows("checkpoints.jsonl") if row.get("preference_score") is not None]
    gaps = [abs(100 * float(row["preference_score"]) - float(row["win_rate_vs_sft"])) for row in rows]
    return sum(gaps) / len(gaps) if gaps else None


DERIVED = {"critic_loss": critic_loss, "calibration_gap": calibration_gap}


def _proxy(row: str) -> Number:
    return Number(row, "proxy_reward", f"{row}, proxy")


def _gap(row: str) -> Number:
    return Number(row, "calibration_gap", f"{row}, gap")


def claims() -> list[Claim]:
    """The paper's claims in its own order, the ordering of the methods first."""
    losses = [Number(row, "critic_loss", f"{row}, critic loss") for row in ("vanilla", "par")]
    return [
        Claim(
            "PAR ends highest of all methods",
            "§4.4, Table 1",
            _above("par", "minmax", "warm", "lsc", *(name for name in FAILING if name != "lsc"), "vanilla"),
        ),
        Claim(
            "Min-max and WARM come next",
            "§4.4, Table 1",
            [part for row in ("minmax", "warm") for part in _above(row, *FAILING, "vanilla")],
        ),
        Claim(
            "Vanilla PPO collapses: it gives back what it had gained and ends below the SFT model",
            "§4.4, Table 1",
            [*_falls("vanilla"), Part(_end("vanilla"), "below", 50.0)],
        ),
        Claim("ODIN, Reg, Meanstd, Clip and LSC fail to prevent hacking", "Figure 5", _falls(*FAILING)),
        Claim("PAR, Minmax and WARM end above the SFT model", "Figure 5", _wins(*HOLDING)),
        Claim(
            "The proxy rewards of PAR and Minmax stay below those of Vanilla, Meanstd, Clip and LSC",
            "§4.4, Figure 5",
            [
                Part(_proxy(row), "below", _proxy(other))
                for row in ("par", "minmax")
                for other in ("vanilla", "meanstd", "clip", "lsc")
            ],
        ),
        Claim(
            "PAR does not improve the best evaluation: peaks are alike",
            "§10.4, Table 3",
            [_alike("par", row, PEAK) for row in ("vanilla", "warm", *FAILING, "minmax")],
        ),
        Claim("The critic's loss is smaller under PAR", "Figure 2", [Part(losses[0], "above", losses[1])]),
        Claim(
            "A larger KL coefficient raises the win rate and lowers the proxy",
            "§4.2, Figure 3",
            [*_above("kl0_1", "kl0_01"), Part(_proxy("kl0_1"), "below", _proxy("kl0_01"))],
        ),
        Claim("A lower ceiling raises the win rate", "§4.2, Figure 3", _above("ceil3_0", "ceil5_0")),
        Claim("PAR ends above the larger KL coefficient", "§4.2, Figure 3", _above("par-2-epochs", "kl0_1")),
        Claim(
            "Over two epochs PAR ends highest",
            "§4.5, Figure 3",
            _above("par-2-epochs", "minmax-2-epochs", "warm-2-epochs", "vanilla-2-epochs"),
        ),
        Claim("PAR keeps its best win rate over two epochs", "§4.5, Figure 3", _holds("par-2-epochs")),
        Claim("Min-max and WARM do not over two epochs", "§4.5, Figure 3", _falls("minmax-2-epochs", "warm-2-epochs")),
        Claim(
            "Centred functions end above uncentred ones",
            "§4.3, Figure 4a",
            [*_above("par", "sigmoid"), *_above("tanh-centered", "tanh")],
        ),
        Claim("SgFc falls late and ends below PAR", "§4.3, Figure 4a", [*_falls("sgfc"), *_above("par", "sgfc")]),
        Claim("A single reference reward suffices", "§4.5, Figure 6a", [_alike("par-ref1", "par")]),
        Claim("Without references the sigmoid is worse", "§4.5, Figure 6a", _above("par-ref1", "sigmoid")),
        Claim(
            "WARM, ODIN and Reg are worse calibrated than PAR",
            "§4.6, Figure 6b",
            [Part(_gap(row), "above", _gap("par")) for row in ("warm", "odin", "reg")],
        ),
        Claim(
            "Linear shapings leave GRPO as it is",
            "§11.2, Figure 7",
            [_alike(row, "grpo-vanilla") for row in ("grpo-meanstd", "grpo-minmax")],
        ),
        Claim("PAR is better than no shaping in GRPO", "§5, Figure 7", _above("grpo-par", "grpo-vanilla")),
        Claim("No shaping changes online DPO", "§5, §11.1", [_alike("online-dpo-par", "online-dpo")]),
        *(
            Claim(
                f"PAR ends above the SFT model and above vanilla PPO: {title}",
                f"§10, Figure {figure}",
                [*_wins(f"{prefix}par"), *_above(f"{prefix}par", f"{prefix}vanilla")],
            )
            for prefix, (figure, title) in SETTINGS.items()
        ),
    ]


def _prefix(row: str) -> str:
    return next(prefix for prefix in sorted(BACKBONES, key=len, reverse=True) if row.startswith(prefix))


def results_of(tree: ResultTree, made: Sequence[Claim]) -> Results:
    """The runs that claims name, each read once."""
    rows = rows_named(made)
    models = {prefix: tree.outputs("shared", "sft", name) for prefix, name in BACKBONES.items()}
    outputs = {row: tree.of(recipe_row("par", row)) for row in rows}
    return Results(TableRuns(outputs, {row: models[_prefix(row)] for row in rows}), DERIVED)


def paper_claims(tree: ResultTree) -> FigureData:
    """What the paper says and whether it was borne out."""
    made = claims()
    return claims_figure(
        made,
        results_of(tree, made),
        numbers="Numbers are true win rates over the SFT model in percent, means over seeds, unless named otherwise.",
        alike="Two numbers are alike when the 90 % interval of their difference over seeds lies within "
        f"{ALIKE:g} points.",
        needs="the rows of Tables 1 and 3",
    )
