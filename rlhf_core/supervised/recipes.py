"""Supervised recipes over sampled solutions: what each learns from. `RECIPES` lists them.

A recipe builds weighted sequences (a likelihood is raised, or lowered where a weight is negative) or pairs of a better
and a worse response (DPO); `rlhf_core.supervised.objectives` has the loss of each. Imports nothing heavy: the graph
asks a recipe what it needs.

    sft        ground truths
    rft        the model's own correct solutions; with ground truths, a teacher's or a reward model's rewrites
    coh        Chain of Hindsight: a worse and a better solution behind the words that say so
    dpo        pairs of the preference data, or of correct and wrong solutions of the same pool
    figa       what an edit changed is learned, what it took away is unlearned
    imitation  RLMEC's imitation regularisation alone: rewrites with edit weights

Source: RLMEC, §5.1 and Table 4; Yuan et al. 2023 (RFT), Liu et al. 2023 (CoH), Rafailov et al. 2023 (DPO), Guo et
al. 2023 (FIGA).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from rlhf_core.choices import Choices
from rlhf_core.data.solutions import Row, ground_truths, pairs
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.minimum_editing import edit_weights, mistaken_tokens
from rlhf_core.typed import Checked, above, at_least, check_given, init_fields, one_of

if TYPE_CHECKING:
    from rlhf_core.data.encoding import EncodedSequence, Encoder

#: Material that a recipe may learn from: preference pairs of the data set, sampled solutions, and rewrites of these
#: solutions by a teacher or by a generative reward model.
PREFERENCE, SAMPLES, TEACHER, GENERATED = "preference", "samples", "teacher", "generated"


@dataclass(frozen=True)
class Sources:
    """Training material of supervised recipes.

    Attributes:
        preference: rows {prompt, chosen, rejected} of the data set.
        samples: sampled solutions.
        teacher, generated: accepted rewrites of wrong ones, which change something.
        file: where the preferences or solutions come from, for messages.
    """

    preference: Sequence[Row] = ()
    samples: Sequence[Row] = ()
    teacher: Sequence[Row] = ()
    generated: Sequence[Row] = ()
    file: str | None = None


@dataclass
class Weighted:
    """Sequences with a weight for every response token.

    Attributes:
        sequences: prompts and responses.
        weights: one number per response token; negative ones lower the token's likelihood, 0 leaves it alone.
        too_long: what was left out because the length limit would have cut it.
    """

    sequences: list[EncodedSequence] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    too_long: int = 0

    def add(self, encoder: Encoder, row: Row, response: str, weights: Sequence[float] | None = None) -> None:
        """Adds a response with its weights, 1 on every token unless given; one that would be cut is counted instead."""
        before = encoder.counts.responses_cut
        sequence = encoder.sequence(row, response)
        if encoder.counts.responses_cut > before:
            self.too_long += 1
            return
        self.sequences.append(sequence)
        self.weights.append([1.0] * len(sequence.response) if weights is None else list(weights))


@dataclass
class Preferences:
    """Pairs of encoded responses, DPO's temperature, and the number of pairs that the limits dropped."""

    chosen: list[EncodedSequence]
    rejected: list[EncodedSequence]
    beta: float
    dropped: int = 0


class SupervisedRecipe(Protocol):
    """Settings of a recipe: the `Sources` that it reads, and the text that the trained policy's answers begin with."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    @property
    def opening(self) -> str: ...

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted | Preferences:
        """Returns the examples to learn from."""


def _distinct_correct(samples: Iterable[Row]) -> list[Row]:
    """Returns the correct predictions, each one once per question."""
    found: dict[tuple[str, str], Row] = {}
    for sample in samples:
        if sample["correct"]:
            found.setdefault((sample["question_id"], sample["prediction"]), sample)
    return list(found.values())


def rewritten(rewrites: Sequence[Row], encoder: Encoder, *, gamma: float, phi: float) -> Weighted:
    """Rewrites to imitate, each token weighted by whether the edit made it. Source: RLMEC, Eq. 8 and 9."""
    made = Weighted()
    for item in rewrites:
        source, target = (encoder.sequence(item, item[text]).response for text in ("prediction", "rewrite"))
        made.add(encoder, item, item["rewrite"], edit_weights(source, target, gamma=gamma, phi=phi))
    return made


@dataclass(frozen=True)
class Dpo(Checked):
    """Direct preference optimisation.

    Args:
        beta: temperature.
        pairs: 'preference' of the data set, or 'samples': correct and wrong solutions of the same question.
    """

    beta: Annotated[float, above(0)]
    pairs: Annotated[str, one_of((PREFERENCE, SAMPLES))] = PREFERENCE
    opening = ""

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.pairs,)

    def examples(self, sources: Sources, encoder: Encoder) -> Preferences:
        from rlhf_core.data.encoding import whole_pairs

        rows: Sequence[Row] = sources.preference if self.pairs == PREFERENCE else pairs(sources.samples)
        if not rows:
            raise DataError(
                "no question has both a correct and a wrong solution",
                remedy="Sample more solutions per question, or at a higher temperature",
            )
        chosen, rejected = ([encoder.sequence(row, row[side]) for row in rows] for side in ("chosen", "rejected"))
        whole = whole_pairs(chosen, rejected, encoder.eos_id, file=sources.file)
        return Preferences(whole.chosen, whole.rejected, self.beta, whole.dropped)


@dataclass(frozen=True)
class Sft:
    """Supervised fine-tuning on the ground truths of the sampled questions."""

    needs = (SAMPLES,)
    opening = ""

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted:
        made = Weighted()
        for sample in ground_truths(sources.samples):
            made.add(encoder, sample, sample["solution"])
        return made


@dataclass(frozen=True)
class Rft(Checked):
    """Rejection sampling fine-tuning: the model's own correct solutions, each distinct one once.

    Args:
        additional: 'ground_truth', 'teacher' or 'generated' solutions beside them, or none.
    """

    additional: Annotated[str, one_of(("ground_truth", TEACHER, GENERATED))] | None = None
    opening = ""

    @property
    def needs(self) -> tuple[str, ...]:
        return (SAMPLES, self.additional) if self.additional in (TEACHER, GENERATED) else (SAMPLES,)

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted:
        made = Weighted()
        for sample in _distinct_correct(sources.samples):
            made.add(encoder, sample, sample["prediction"])
        if self.additional == "ground_truth":
            for sample in ground_truths(sources.samples):
                made.add(encoder, sample, sample["solution"])
        elif self.additional is not None:
            for item in sources.teacher if self.additional == TEACHER else sources.generated:
                made.add(encoder, item, item["rewrite"])
        return made


@dataclass(frozen=True)
class ChainOfHindsight(Checked):
    """Chain of Hindsight: correct solutions behind `good`, alone, and after a wrong one behind `bad`.

    Words are not learned, solutions are; answers are then asked for behind `good`. Source: Liu et al. 2023, §3.

    Args:
        good, bad: the words; the tokenizer must know their letters.
    """

    good: str = "Good:"
    bad: str = "Bad:"
    needs = (SAMPLES,)

    @property
    def opening(self) -> str:
        return f"{self.good}\n"

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted:
        from rlhf_core.data.encoding import EncodedSequence
        from rlhf_core.data.templates import encode_text

        def tokens(text: str) -> list[int]:
            ids = encode_text(encoder.tokenizer, text)
            if str(encoder.tokenizer.decode(ids)) != text:
                raise RecipeError(f"coh: the tokenizer cannot spell {text!r}; choose other words for good and bad")
            return ids

        made, good, bad = Weighted(), tokens(f"{self.good}\n"), tokens(f"{self.bad}\n")
        chains = [(row, [(good, row["prediction"])]) for row in _distinct_correct(sources.samples)]
        chains += [(row, [(bad, f"{row['rejected']}\n"), (good, row["chosen"])]) for row in pairs(sources.samples)]
        for row, links in chains:
            prompt, response, weights = encoder.prompt(row), list[int](), list[float]()
            for words, solution in links:
                learned = encode_text(encoder.tokenizer, solution)
                response += [*words, *learned]
                weights += [0.0] * len(words) + [1.0] * len(learned)
            if len(prompt) + len(response) + 1 > encoder.limits.total:
                made.too_long += 1
                continue
            made.sequences.append(EncodedSequence(prompt, [*response, encoder.eos_id]))
            made.weights.append([*weights, 1.0])
        return made


@dataclass(frozen=True)
class Figa(Checked):
    """Fine-grained imitation: tokens that the edit made are learned, tokens that it took away are unlearned.

    Args:
        alpha: weight of inserted and replaced tokens of the rewrite.
        beta: weight by which deleted and replaced tokens of the prediction are lowered.
        gamma: weight of the rewrite's other tokens.

    Source: Guo et al. 2023, Eq. 3 to 5.
    """

    alpha: Annotated[float, above(0)] = 1.0
    beta: Annotated[float, at_least(0)] = 0.5
    gamma: Annotated[float, at_least(0)] = 0.0
    needs = (SAMPLES, TEACHER)
    opening = ""

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted:
        made = rewritten(sources.teacher, encoder, gamma=self.alpha, phi=self.gamma / self.alpha)
        for item in sources.teacher if self.beta else ():
            source, target = (encoder.sequence(item, item[text]).response for text in ("prediction", "rewrite"))
            mistaken = mistaken_tokens(source, target)
            made.add(encoder, item, item["prediction"], [-self.beta if wrong else 0.0 for wrong in mistaken])
        return made


@dataclass(frozen=True)
class ImitationOnly(Checked):
    """Imitation of a generative reward model's rewrites of wrong solutions, without a reward.

    Args:
        gamma: weight of inserted and replaced tokens.
        phi: the other tokens weigh phi * gamma.

    Source: RLMEC, Eq. 8 and 9; Table 4.
    """

    gamma: Annotated[float, at_least(0)] = 1.0
    phi: Annotated[float, at_least(0)] = 0.5
    needs = (SAMPLES, GENERATED)
    opening = ""

    def examples(self, sources: Sources, encoder: Encoder) -> Weighted:
        return rewritten(sources.generated, encoder, gamma=self.gamma, phi=self.phi)


#: Every supervised recipe by the `kind` of a row's optimiser.
RECIPES: Choices[type[Any]] = Choices(
    "supervised recipe",
    {
        "dpo": Dpo,
        "sft": Sft,
        "rft": Rft,
        "coh": ChainOfHindsight,
        "figa": Figa,
        "imitation": ImitationOnly,
    },
    needs=("needs", "opening", "examples"),
    dataclasses=True,
)


def needs_of(kind: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the sources that a recipe with these options reads; missing or wrong numbers are ignored."""
    needs: tuple[str, ...] = _by_words(kind, options).needs
    return needs


def opening_of(kind: str, options: Mapping[str, Any]) -> str:
    """Returns the text that answers begin with after training by a recipe with these options, '' for none."""
    return str(_by_words(kind, options).opening)


def _by_words(kind: str, options: Mapping[str, Any]) -> Any:
    """Returns a recipe whose options are the given texts, and numbers in place of those without a default."""
    cls = RECIPES[kind]
    words = {name: value for name, value in options.items() if isinstance(value, str) and name in init_fields(cls)}
    check_given(cls, words)
    needed = {
        name: 1.0
        for name, field in init_fields(cls).items()
        if field.default is MISSING and field.default_factory is MISSING and name not in words
    }
    return cls(**words, **needed)
