"""Text coloured by reward, for the page and for the terminal.

Blue pays, vermilion costs, both fade to nothing at 0 (a pair that colour-blind readers tell apart). The scale
is symmetric, so a colour means the same distance from 0 on either side, and it is stated beside the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape
from rich.text import Text

from rlhf_core.errors import DataError

POSITIVE, NEGATIVE = (0, 114, 178), (213, 94, 0)
STRONGEST = 0.62

Segment = tuple[int, int, float] | Sequence[float]


@dataclass(frozen=True)
class ColouredSpan:
    """A run of tokens that is paid as one: its text, reward (None: no reward), token range, and whether it is
    marked."""

    text: str
    reward: float | None
    start: int
    end: int
    marked: bool = False

    @property
    def tooltip(self) -> str:
        tokens = f"token {self.start}" if self.end == self.start + 1 else f"tokens {self.start} to {self.end - 1}"
        return f"{tokens}: no reward" if self.reward is None else f"{tokens}: {self.reward:+.3f}"


def pieces(
    tokens: Sequence[str], rewards: Sequence[float | None], segments: Sequence[Segment] | None = None
) -> list[ColouredSpan]:
    """Returns the response in pieces: its segments where given, single tokens elsewhere.

    Args:
        tokens: texts of the response tokens, which concatenate to the response.
        rewards: [response_len] reward per token; None or NaN where a token has none.
        segments: (first token, end exclusive, reward), in order, without overlap. One without tokens ends on the token
            before it, to whose piece its reward is added.

    Raises:
        DataError: rewards of another length, or segments that overlap or leave the response.
    """
    if len(rewards) != len(tokens):
        raise DataError(f"{len(rewards)} rewards for {len(tokens)} tokens", field="rewards")
    found: list[ColouredSpan] = []
    position = 0
    for start, end, reward in segments or ():
        start, end = int(start), int(end)
        if start == end == position and found:
            found[-1] = replace(found[-1], reward=(found[-1].reward or 0.0) + float(reward))
            continue
        if not position <= start < end <= len(tokens):
            raise DataError(
                f"segment {start}:{end} does not fit {len(tokens)} tokens after {position}", field="segments"
            )
        found += _single(tokens, rewards, position, start)
        found.append(ColouredSpan("".join(tokens[start:end]), float(reward), start, end))
        position = end
    return found + list(_single(tokens, rewards, position, len(tokens)))


def _single(tokens: Sequence[str], rewards: Sequence[float | None], start: int, end: int) -> Iterator[ColouredSpan]:
    for index in range(start, end):
        reward = rewards[index]
        known = None if reward is None or reward != reward else float(reward)
        yield ColouredSpan(tokens[index], known, index, index + 1)


def _marked(found: Sequence[ColouredSpan], marked: Sequence[bool] | None) -> Sequence[ColouredSpan]:
    """Returns the pieces, those with a marked token marked."""
    if marked is None:
        return found
    return [replace(piece, marked=any(marked[piece.start : piece.end])) for piece in found]


def colour_scale(found: Sequence[ColouredSpan]) -> float:
    """Returns the reward of the strongest colour: the largest magnitude, 1 where all are 0 or absent."""
    return max((abs(p.reward) for p in found if p.reward is not None), default=0.0) or 1.0


def strongest_reward(
    tokens: Sequence[str], rewards: Sequence[float | None], segments: Sequence[Segment] | None = None
) -> float:
    """Returns the reward of the strongest colour of a response in pieces."""
    return colour_scale(pieces(tokens, rewards, segments))


def _strength(reward: float, scale: float) -> float:
    return min(1.0, abs(reward) / scale) * STRONGEST


def coloured_tokens(
    tokens: Sequence[str],
    rewards: Sequence[float | None],
    segments: Sequence[Segment] | None = None,
    *,
    scale: float | None = None,
    marked: Sequence[bool] | None = None,
) -> Markup:
    """Returns HTML spans of a response coloured by reward; every text is escaped, every span carries its value.

    Args:
        tokens, rewards, segments: as in `pieces`.
        scale: reward of the strongest colour; the response's largest magnitude unless given.
        marked: [response_len] tokens to underline.
    """
    found = _marked(pieces(tokens, rewards, segments), marked)
    limit = scale or colour_scale(found)
    spans = []
    for piece in found:
        style = ""
        if piece.reward is not None:
            red, green, blue = POSITIVE if piece.reward >= 0 else NEGATIVE
            style = f' style="background:rgba({red},{green},{blue},{_strength(piece.reward, limit):.3f})"'
        text = escape(piece.text.replace("\n", "↵\n"))
        kind = "piece marked" if piece.marked else "piece"
        spans.append(f'<span class="{kind}" title="{escape(piece.tooltip)}"{style}>{text}</span>')
    return Markup('<span class="coloured">' + "".join(spans) + "</span>")


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


def coloured_text(
    tokens: Sequence[str],
    rewards: Sequence[float | None],
    segments: Sequence[Segment] | None = None,
    *,
    scale: float | None = None,
    marked: Sequence[bool] | None = None,
) -> Text:
    """Returns the same for a terminal: a rich Text with background colours, segments divided by a thin bar."""
    found = _marked(pieces(tokens, rewards, segments), marked)
    limit = scale or colour_scale(found)
    text = Text()
    for number, piece in enumerate(found):
        if segments and number:
            text.append("▏", style="dim")
        line = " underline" if piece.marked else ""
        if piece.reward is None:
            text.append(piece.text, style=f"dim{line}")
            continue
        share = _strength(piece.reward, limit) / STRONGEST
        mixed = [round(255 + (c - 255) * share) for c in (POSITIVE if piece.reward >= 0 else NEGATIVE)]
        ink = "white" if share > 0.65 else "black"
        text.append(piece.text, style=f"{ink} on rgb({mixed[0]},{mixed[1]},{mixed[2]}){line}")
    return text
