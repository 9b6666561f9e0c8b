"""Text coloured by reward, for the page and for the terminal.

Blue pays, vermilion costs, both fade to nothing at 0 (a pair that colour-blind readers tell apart). The scale
is symmetric, so a colour means the same distance from 0 on either side, and it is stated beside the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from rich.text import Text

POSITIVE, NEGATIVE = (0, 114, 178), (213, 94, 0)
STRONGEST = 0.62

Segment = tuple[int, int, float] | Sequence[float]


@dataclass(frozen=True)
class ColouredSpan:
    """A run of tokens that is paid as one: its text, reward (None: no reward), token range, whether it is marked."""

    text: str
    reward: float | None
    start: int
    end: int
    marked: bool = False


def pieces(
    tokens: Sequence[str],
    rewards: Sequence[float | None],
    segments: Sequence[Segment] = (),
    marked: Sequence[bool] | None = None,
) -> list[ColouredSpan]:
    """Returns a response in pieces: its segments where given, single tokens elsewhere.

    Args:
        tokens: texts of the response tokens, which concatenate to the response.
        rewards: [response_len] reward per token; None or NaN where a token has none.
        segments: (first token, end exclusive, reward), in order, without overlap. One without tokens ends on the token
            before it, to whose piece its reward is added.
        marked: [response_len] tokens to underline.
    """

    def single(start: int, end: int) -> list[ColouredSpan]:
        known = (None if reward is None or reward != reward else float(reward) for reward in rewards[start:end])
        return [ColouredSpan(tokens[at], reward, at, at + 1) for at, reward in enumerate(known, start)]

    found: list[ColouredSpan] = []
    position = 0
    for start, end, reward in ((int(start), int(end), float(reward)) for start, end, reward in segments):
        if start == end == position and found:
            found[-1] = replace(found[-1], reward=(found[-1].reward or 0.0) + reward)
            continue
        found += single(position, start)
        found.append(ColouredSpan("".join(tokens[start:end]), reward, start, end))
        position = end
    found += single(position, len(tokens))
    return [replace(one, marked=any(marked[one.start : one.end])) for one in found] if marked else found


def colour_scale(found: Sequence[ColouredSpan]) -> float:
    """Returns the reward of the strongest colour: the largest magnitude, 1 where all are 0 or absent."""
    return max((abs(one.reward) for one in found if one.reward is not None), default=0.0) or 1.0


def _strength(reward: float, scale: float) -> float:
    return min(1.0, abs(reward) / scale) * STRONGEST


def coloured_tokens(found: Sequence[ColouredSpan], scale: float | None = None) -> Markup:
    """Returns HTML spans of a response in pieces; every text is escaped, every span carries its value.

    Args:
        found: the pieces.
        scale: reward of the strongest colour; the response's largest magnitude unless given.
    """
    limit, spans = scale or colour_scale(found), []
    for one in found:
        tip, style = f"token {one.start}: no reward", ""
        if one.reward is not None:
            colour = ",".join(map(str, POSITIVE if one.reward >= 0 else NEGATIVE))
            tip = f"tokens {one.start} to {one.end - 1}: {one.reward:+.3f}"
            style = f"background:rgba({colour},{_strength(one.reward, limit):.3f})"
        span = Markup('<span class="piece{}" title="{}" style="{}">{}</span>')
        spans.append(span.format(" marked" if one.marked else "", tip, style, one.text.replace("\n", "↵\n")))
    return Markup('<span class="coloured">{}</span>').format(Markup("").join(spans))


def scale_legend(scale: float) -> Markup:
    """Returns the colour scale as an HTML line: the two ends and the middle with their rewards."""
    (r1, g1, b1), (r2, g2, b2) = NEGATIVE, POSITIVE
    ramp = (
        f"linear-gradient(90deg, rgba({r1},{g1},{b1},{STRONGEST}), rgba({r1},{g1},{b1},0) 50%, "
        f"rgba({r2},{g2},{b2},0) 50%, rgba({r2},{g2},{b2},{STRONGEST}))"
    )
    return Markup(
        '<span class="scale"><span>{low}</span><span class="ramp" style="background:{ramp}"></span>'
        "<span>{high}</span></span>"
    ).format(low=f"{-scale:+.2f}", high=f"{scale:+.2f}", ramp=ramp)


def coloured_text(found: Sequence[ColouredSpan], *, divided: bool = False) -> Text:
    """Returns a response in pieces for a terminal, with background colours, `divided` by thin bars."""
    limit, text = colour_scale(found), Text()
    for number, one in enumerate(found):
        if divided and number:
            text.append("▏", style="dim")
        line = " underline" if one.marked else ""
        if one.reward is None:
            text.append(one.text, style=f"dim{line}")
            continue
        share = _strength(one.reward, limit) / STRONGEST
        mixed = [round(255 + (c - 255) * share) for c in (POSITIVE if one.reward >= 0 else NEGATIVE)]
        ink = "white" if share > 0.65 else "black"
        text.append(one.text, style=f"{ink} on rgb({mixed[0]},{mixed[1]},{mixed[2]}){line}")
    return text
