"""The atlas as one self-contained HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rlhf_core.evaluation.worlds import Effect
from tasks.params.studies import StudySpec
from tasks.params.yaml_files import write_whole
from tasks.report import atlas_markdown
from tasks.report.atlas import WORDS, Atlas, AtlasStudy, read_atlas, runs_of
from tasks.report.atlas_curves import curves_svg
from tasks.report.atlas_drawing import EffectScale, dial_svg, effect_scale, tick_text
from tasks.report.atlas_points import points_of
from tasks.report.atlas_words import amount, interval_text, mean_text, measured, sentence, tested_p, unit
from tasks.report.page import label, render_page, template_text
from tasks.studies.equal_kl import ASSUMED, WHAT_IS_ASSUMED
from tasks.studies.frame import BUDGET_COLUMNS, compared
from tasks.studies.plan import design_of
from tasks.studies.twins import HEADINGS, twin_tests
from tasks.studies.verdicts import OPEN, caveat_groups


def scale_of(study: AtlasStudy) -> EffectScale:
    """Returns the scale on which all effects of a study are drawn."""
    assert study.state is not None
    effects = [finding.effect for finding in study.state.findings if finding.effect is not None]
    values = (value for finding in study.state.findings for value in finding.values.values())
    return effect_scale(effects, study.state.spec.margin, values)


def picture(study: AtlasStudy) -> Markup | None:
    """Returns the primary hypothesis' difference at each level of its dial, or in each cell; None without a number."""
    if study.state is None or study.primary is None or study.primary.effect is None:
        return None
    spec, hypothesis = study.state.spec, study.primary.hypothesis
    points = points_of(study.state, hypothesis)
    rising = {"above": "rises", "below": "falls"}
    claim = hypothesis.side if hypothesis.over is None or hypothesis.weights else rising[hypothesis.side]
    rows, mark = compared(spec, hypothesis), "claim" if tests_claim(spec, study.primary.name) else "expected"
    return Markup(dial_svg(f"{study.name}-dial", hypothesis.says, points, rows, spec.margin, claim, mark))


def curves_picture(study: AtlasStudy) -> Markup | None:
    """Returns gold and proxy rewards over the square root of KL of a complete study; None where no row has them."""
    curves = study.curves
    if not any(one.gold for one in curves):
        return None
    assert study.state is not None
    title = "Proxy reward and true win rate over the square root of KL"
    return Markup(curves_svg(f"{study.name}-kl", title, curves, study.state.spec.kl_targets))


def tests_claim(spec: StudySpec, hypothesis: str) -> bool:
    """Returns whether a hypothesis is one of those by which its study counts for the paper's claim."""
    return spec.claim is not None and hypothesis in spec.claim.tested_by


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
        assumed=ASSUMED,
        bar=bar,
        caveat_groups=caveat_groups,
        curves_picture=curves_picture,
        design_of=design_of,
        interval_text=interval_text,
        label=label,
        mean_text=mean_text,
        measured=measured,
        tested_p=tested_p,
        picture=picture,
        runs_of=runs_of,
        scale_of=scale_of,
        sentence=sentence,
        tests_claim=tests_claim,
        tick_text=tick_text,
        twin_headings=HEADINGS,
        twin_tests=twin_tests,
        shown_metrics=shown_metrics,
        unit=unit,
        what_is_assumed=WHAT_IS_ASSUMED,
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
