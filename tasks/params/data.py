"""Settings of data: dialogues and preference pairs, long-form questions, translation; see `tasks.prepare`.

`data_spec` reads a file of params/scales/<scale>/data/: its `source` says which of these it is, a `task` that it is of
questions (`tasks.params.questions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Annotated, Any, ClassVar, Literal, Self

from rlhf_core.data.selection import HubSet, PreferenceFilter
from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.benchmark_names import CODE_BENCHMARKS, DIALOGUE_BENCHMARKS
from rlhf_core.evaluation.harness.choice import HarnessTask
from rlhf_core.testbed.annotator import check_annotator
from rlhf_core.testbed.responses import PADDINGS
from rlhf_core.testbed.rewards import Dials
from rlhf_core.typed import Checked, Count, InnerShare, Seed, Share, Size, accepted_by, between, one_of, typed
from tasks.params.parts import CLAUSES, DIALOGUES, FACTS, LONG_FORM, PAIRS, TRUE_REWARDS
from tasks.params.questions import DataSpec, QuestionsSpec, WorldNumber, seed_of_world

#: The largest tolerated share of bad rows of a file.
BadShare = Annotated[float, between(0, 1, open_high=True)]


def day(value: str | date) -> date:
    """Returns the day that a settings file names, as in 2024-08-01.

    Raises:
        RecipeError: not a date.
    """
    try:
        return value if isinstance(value, date) else date.fromisoformat(value)
    except ValueError:
        raise RecipeError("it must be a date such as 2024-08-01") from None


Day = Annotated[str | date, accepted_by(day)]


@dataclass(frozen=True)
class DrawnSpec(DataSpec):
    """Settings that specs of generated data share; `Rows`, a dataclass, names the sizes of the sets.

    Args:
        annotator: `Annotator` of preference pairs; `temperature: calibrated` finds the temperature at which the Bayes
            ceiling is `ceiling`.
        world: number of a world, whose seeds `of_world` makes of those given.
    """

    Rows: ClassVar[type[Any]]
    provides: ClassVar[tuple[str, ...]] = (PAIRS, TRUE_REWARDS)

    world_seed: Seed
    seed: Seed
    annotator: Mapping[str, Any]
    rows: Mapping[str, int]
    world: WorldNumber | None = field(default=None, kw_only=True)

    def _check_together(self) -> None:
        super()._check_together()
        check_annotator(self.annotator)
        typed(self.Rows, self.rows, "rows")

    def of_world(self, number: int) -> Self:
        """Returns the spec of one of many worlds: facts, draws and label noise follow from the world's number.

        World 0 has the seeds of the spec. Specs that differ in a seed differ in every world.
        """
        return replace(
            self,
            world=None,
            world_seed=seed_of_world(number, self.world_seed),
            seed=seed_of_world(number, self.seed),
            annotator={**self.annotator, "seed": seed_of_world(number, self.annotator.get("seed", 0))},
        )


@dataclass(frozen=True)
class DrawnRows(Checked):
    """Rows of each set that the testbed generates for every kind of data."""

    sft: Count
    sft_validation: Count
    prompts: Count
    preference_train: Count
    preference_validation: Count
    preference_ood: Count
    benchmark: Count


@dataclass(frozen=True)
class WorldRows(DrawnRows):
    """Rows of each set of dialogues and tasks; `benchmark`, `choices` and `functions` for each of several."""

    tasks: Size
    choices: Size
    arithmetic: Size
    functions: Size


@dataclass(frozen=True)
class WorldSpec(DrawnSpec):
    """Dialogues and tasks of the testbed; `source` is 'testbed'.

    Args:
        follow_up_share: share of SFT examples that are second turns.
        baseline_quality: quality in [0, 1] of a benchmark's baseline answers; without one they are the expert's.
        padding: shares of compared responses that are padded, as in {flattery: 0.4}; of one kind at most.
        wrong_share: share of wrong solutions among the task examples.
    """

    Rows = WorldRows
    provides = (PAIRS, TRUE_REWARDS, CLAUSES, DIALOGUES)

    follow_up_share: Share
    baseline_quality: Mapping[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], Share]
    padding: Mapping[Annotated[str, one_of(PADDINGS)], Annotated[float, between(0, 1, open_low=True)]] = field(
        default_factory=dict
    )
    dials: Dials = field(default_factory=Dials)
    wrong_share: Annotated[float, between(0, 1, open_high=True)] = 0.1

    def _check_together(self) -> None:
        super()._check_together()
        if len(self.padding) > 1:
            raise RecipeError(f"padding names {', '.join(self.padding)}; compared responses are padded with one kind")


@dataclass(frozen=True)
class Filters(PreferenceFilter):
    """Filters of pairs of real data, and the tokenizer that counts their tokens (hub id or folder)."""

    tokenizer: str | None = None

    def _check_together(self) -> None:
        super()._check_together()
        if self.tokenizer is None:
            raise RecipeError("'tokenizer' is missing; name the one that counts tokens, by hub id or folder")


@dataclass(frozen=True, kw_only=True)
class ReadSpec(DataSpec):
    """Settings that specs of real data share.

    Args:
        validation_share: share of the training rows (of dialogues, of the pairs), from the end, kept for validation.
        benchmark_rows: the most held-out items of a benchmark.
        directory: folder of the data; without one, the environment variable REWARDSMITH_DATA names it.
        max_bad_share: the largest tolerated share of bad rows of a file.
    """

    provides: ClassVar[tuple[str, ...]] = (PAIRS,)

    validation_share: InnerShare
    benchmark_rows: Count
    directory: str | None = None
    max_bad_share: BadShare = 0.1


@dataclass(frozen=True, kw_only=True)
class RealSpec(ReadSpec):
    """Real data from a folder or from Hugging Face; `source` is 'directory' or 'huggingface'.

    Args:
        preference: names of the preference sets; their splits `train` and `test` are read.
        prompts: names of prompt sets for policy training; without one, the training pairs' prompts.
        benchmarks: {benchmark: name of a set whose split `test` holds its items, or prompts with the baseline's
            responses}; without one, `alpaca` is made of held-out prompts and their chosen responses.
        references: {benchmark: name of a set whose split `test` holds the baseline's answers}, where the benchmark's
            own rows do not have them.
        official_items: {benchmark: items of the published one}, where it is not the default one (Arena-Hard v2.0: 750).
        tasks: {column of tables: task of lm-evaluation-harness}.
        code: {column: name of a set whose split `test` has its questions}: of kind code for EvalPlus' columns, of which
            `mbpp_plus` and `humaneval_plus` run their `plus_tests`, which hold the base tests, too; rows in
            LiveCodeBench's own columns for `livecode`.
        livecode_window: {from, to} of LiveCodeBench's contests, both days included; without one, all questions.
        filters: of the pairs, and the `tokenizer` (hub id or folder) that counts their tokens.
        alpaca_calibration: AlpacaEval's published `df_gamed.csv`, a path or hub address, where the benchmark `alpaca`
            is the published one against its baseline; without it, no length-controlled win rate over it is measured.
        unread: columns of the pairs' own files that `rewardsmith init` left out, for the record.
        held_out: prompts of the pairs' test split in the benchmark `held_out`, 0 for none; an optimiser's
            `checkpoint_benchmark` can name it.
    """

    preference: tuple[str, ...]
    prompts: tuple[str, ...] = ()
    benchmarks: Mapping[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], str] = field(default_factory=dict)
    references: Mapping[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], str] = field(default_factory=dict)
    official_items: Mapping[Annotated[str, one_of(DIALOGUE_BENCHMARKS)], Count] = field(default_factory=dict)
    tasks: Mapping[str, HarnessTask] = field(default_factory=dict)
    code: Mapping[Annotated[str, one_of(tuple(CODE_BENCHMARKS))], str] = field(default_factory=dict)
    livecode_window: Mapping[Literal["from", "to"], Day] = field(default_factory=dict)
    sets: Mapping[str, HubSet] = field(default_factory=dict)
    filters: Filters | None = None
    alpaca_calibration: str | None = None
    unread: tuple[str, ...] = ()
    held_out: Size = 0

    def _check_together(self) -> None:
        super()._check_together()
        if self.alpaca_calibration and "alpaca" not in self.benchmarks:
            raise RecipeError("'alpaca_calibration' needs the benchmark 'alpaca', which 'benchmarks' does not name")
        if (self.source == "huggingface") != bool(self.sets):
            raise RecipeError(f"source '{self.source}' with {len(self.sets)} sets: 'sets' belong to huggingface")
        if self.directory and self.source != "directory":
            raise RecipeError(f"'directory' does not fit source '{self.source}'")
        if not self.preference:
            raise RecipeError("'preference' names no set")
        self._check_window()
        for name in (*self.references, *self.official_items):
            if name not in self.benchmarks:
                raise RecipeError(f"'{name}' is not among the benchmarks{hint(name, self.benchmarks)}")
        named = (
            *self.preference,
            *self.prompts,
            *self.benchmarks.values(),
            *self.references.values(),
            *self.code.values(),
        )
        for name in named if self.sets else ():
            if name not in self.sets:
                raise RecipeError(f"'{name}' is not among the sets{hint(name, self.sets)}")

    def _check_window(self) -> None:
        if self.livecode_window and "livecode" not in self.code:
            raise RecipeError("'livecode_window' needs the column 'livecode', which 'code' does not name")
        first, last = self.window
        if first is not None and last is not None and first > last:
            raise RecipeError(f"livecode_window is empty: from {first} is after to {last}")

    @property
    def window(self) -> tuple[date | None, date | None]:
        """Returns the first and the last day of LiveCodeBench's window, None for an end that is open."""
        first, last = (self.livecode_window.get(end) for end in ("from", "to"))
        return (None if first is None else day(first), None if last is None else day(last))


@dataclass(frozen=True)
class LongFormRows(DrawnRows):
    """Rows of each set of long-form questions that the testbed generates."""

    labelled_train: Count
    labelled_validation: Count


@dataclass(frozen=True)
class LongFormWorldSpec(DrawnSpec):
    """Long-form questions of the testbed; `source` is 'testbed-longform'.

    Args:
        aspect_errors: share of each aspect's training labels that are wrong; validation labels are right.
    """

    Rows = LongFormRows
    provides = (PAIRS, TRUE_REWARDS, CLAUSES, LONG_FORM, FACTS)

    aspect_errors: Mapping[
        Annotated[str, one_of(("relevance", "factuality", "completeness"))], Annotated[float, between(0, 0.5)]
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LongFormDirectorySpec(ReadSpec):
    """QA-Feedback from a folder; `source` is 'directory-longform'.

    Args:
        questions: name of the set of kind feedback.
        preference: name of its preference set.
        context_chars: passages are cut at a sentence so that the context has at most so many characters.
    """

    provides = (PAIRS, LONG_FORM)

    questions: str
    preference: str
    context_chars: Count


@dataclass(frozen=True)
class TranslationWorldSpec(DrawnSpec):
    """Translation of the testbed; `source` is 'testbed-translation'."""

    Rows = DrawnRows


@dataclass(frozen=True, kw_only=True)
class TranslationDirectorySpec(ReadSpec):
    """Parallel sentences from a folder; `source` is 'directory-translation', bad rows are also those of another
    language.

    Args:
        sets: names of the sets; their splits `train` and `test` are read.
        preference_pairs: damaged copies of training references that stand in for preferences.
        source_lang, target_lang: every row must be of this direction.
        max_chars: longer sentences, on either side, are left out and counted.
    """

    sets: tuple[str, ...]
    preference_pairs: Count
    source_lang: str = "es"
    target_lang: str = "en"
    max_chars: Count = 400

    def _check_together(self) -> None:
        super()._check_together()
        if not self.sets:
            raise RecipeError("'sets' names no set")


#: The typed settings of each source of data.
DATA_SPECS: Mapping[str, type[Any]] = {
    "testbed": WorldSpec,
    "directory": RealSpec,
    "huggingface": RealSpec,
    "testbed-longform": LongFormWorldSpec,
    "directory-longform": LongFormDirectorySpec,
    "testbed-translation": TranslationWorldSpec,
    "directory-translation": TranslationDirectorySpec,
}


def benchmarks_of(data: Any) -> tuple[str, ...]:
    """Returns the dialogue benchmarks that data has."""
    if isinstance(data, WorldSpec):
        return ("alpaca", "arena", "ood", "mtbench")
    if isinstance(data, QuestionsSpec):
        return ()
    if not isinstance(data, RealSpec):
        return ("alpaca",)
    return (tuple(data.benchmarks) or ("alpaca",)) + (("held_out",) if data.held_out else ())


def rows_of(data: Any, name: str) -> int | None:
    """Returns the most rows that a set of data has; None where that is not known before the data is read."""
    if isinstance(data, DrawnSpec):
        return data.rows.get(name)
    if isinstance(data, QuestionsSpec):
        return getattr(data.rows, name, None)
    return data.benchmark_rows if name == "benchmark" and isinstance(data, ReadSpec) else None


def drawn_by_seed(values: Mapping[str, Any]) -> bool:
    """Returns whether each seed of a row draws a data set anew: generated data whose settings name no world.

    Args:
        values: settings of the data set; wrong ones are not refused here.
    """
    kind = DATA_SPECS.get(str(values.get("source")))
    generated = values.get("source") == "testbed" if "task" in values else kind and issubclass(kind, DrawnSpec)
    return bool(generated) and values.get("world") is None


def settings_of_world(values: Mapping[str, Any], world: int | None, where: str) -> Mapping[str, Any]:
    """Returns settings of a data set in the world of a seed; None for the world that they describe.

    Raises:
        RecipeError: data that is not drawn by seed.
    """
    if world is None:
        return values
    if not drawn_by_seed(values):
        stated = f"world is {values['world']}" if values.get("world") is not None else "the data is not generated"
        raise RecipeError(
            f"{where}: {stated}, but the stage is given --world {world}; dvc.yaml is older than params/: run "
            "`rewardsmith graph`, then the stage again"
        )
    return {**values, "world": world}


def data_spec(values: Mapping[str, Any], where: str) -> DataSpec:
    """Returns the typed data spec of a file's mapping."""
    source = values.get("source")
    if "task" not in values and (not isinstance(source, str) or source not in DATA_SPECS):
        raise RecipeError(f"{where}: source is {source!r}{hint(source, DATA_SPECS)}")
    spec: DataSpec = typed(QuestionsSpec if "task" in values else DATA_SPECS[str(source)], values, where)
    if isinstance(spec, DrawnSpec | QuestionsSpec) and spec.source != "directory":
        world = spec.of_world(spec.world or 0)  # refuses seeds that another world would have, too
        return spec if spec.world is None else world
    return spec
