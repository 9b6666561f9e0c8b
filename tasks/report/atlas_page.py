"""The atlas as one self-contained HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rlhf_core.evaluation.worlds import Effect
from tasks.params.yaml_files import write_whole
from tasks.report import atlas_markdown
from tasks.report.atlas import OPEN, WORDS, Atlas, AtlasStudy, CellMean, points_of, read_atlas, runs_of
from tasks.report.atlas_drawing import EffectScale, dial_svg, effect_scale, tick_text
from tasks.report.atlas_words import amount, interval_text, measured, sentence, unit
from tasks.report.page import label, p_value, render_page, template_text
from tasks.studies.budgets import BUDGET_COLUMNS
from tasks.studies.caveats import compared


def scale_of(study: AtlasStudy) -> EffectScale:
    """Returns the scale on which all effects of a study are drawn."""
    assert study.state is not None
    effects = [finding.effect for finding in study.state.findings if finding.effect is not None]
    return effect_scale(effects, study.state.spec.margin)


def picture(study: AtlasStudy) -> Markup | None:
    """Returns the primary hypothesis' difference at each level of its dial, or in each cell; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    points = points_of(study.state, hypothesis)
    if len(points) < 2:
        return None
    rising = {"above": "rises", "below": "falls"}
    claim = hypothesis.side if hypothesis.over is None or hypothesis.weights else rising[hypothesis.side]
    rows = compared(spec, hypothesis)
    return Markup(dial_svg(f"{study.name}-dial", hypothesis.says, points, rows, spec.margin, claim))


def mean_text(mean: CellMean) -> str:
    """Returns a mean over worlds with its interval."""
    if mean.effect is None:
        return "no mean"
    interval = mean.effect.interval()
    shown = "" if interval is None else f" [{interval.lower:.1f}, {interval.upper:.1f}]"
    return f"{mean.effect.estimate:.1f}{shown}"


def bar(scale: EffectScale, effect: Effect) -> tuple[float, float]:
    """Returns the left end and the width of an interval in percent of a scale."""
    interval = effect.interval()
    if interval is None:
        return scale.share(effect.estimate), 0.0
    left = scale.share(interval.lower)
    return left, scale.share(interval.upper) - left


def shown_metrics(study: AtlasStudy) -> Sequence[str]:
    """Returns the study's metric and the others that its page shows."""
    return () if study.spec is None else (study.spec.metric, *study.spec.shows)


def render(atlas: Atlas) -> str:
    """Returns the page as a string."""
    return render_page(
        "atlas.html.j2",
        atlas=atlas,
        own_style=template_text("atlas.css.j2"),
        words=WORDS,
        open_word=OPEN,
        budget_columns=BUDGET_COLUMNS,
        amount=amount,
        bar=bar,
        interval_text=interval_text,
        label=label,
        mean_text=mean_text,
        measured=measured,
        p_value=p_value,
        picture=picture,
        runs_of=runs_of,
        scale_of=scale_of,
        sentence=sentence,
        tick_text=tick_text,
        shown_metrics=shown_metrics,
        unit=unit,
    )


def write_atlas(root: Path, out: Path) -> Path:
    """Writes `<out>/atlas.html` and `<out>/atlas.md`, each whole or not at all; returns the page's path.

    Raises:
        DataError: there is no study.
    """
    atlas = read_atlas(root)
    for name, text in (("atlas.md", atlas_markdown.render(atlas)), ("atlas.html", render(atlas))):
        write_whole(out / name, text)
    return out / "atlas.html"
