"""A scale: the stages that rows, reward models and selections need there, from the pages of params/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.recipe import referenced_models
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.supervised.recipes import SAMPLES, TEACHER
from tasks.graph.items import SHARED, Input, Item
from tasks.graph.rows import (
    ModelSpec,
    RowSpec,
    TypedEntry,
    compared_rows,
    generative_of,
    model_named,
    models_of,
    paper_folder,
    read_rows,
    selection_of,
    sentence_model,
    solutions_of,
)
from tasks.graph.typed_settings import PAPER_PAGES, TypedSettings, typed_settings
from tasks.params.backbone import BackboneSpec
from tasks.params.data import drawn_by_seed
from tasks.params.pages import Address, page_files, read_settings
from tasks.params.reward_model import GivenSpec
from tasks.params.row_parser import ROW_KINDS
from tasks.params.scales import DEFAULT_SCALE, STAGES, scale_entries, scale_folder, scale_names, scale_pages

P = ParamSpec("P")
T = TypeVar("T")


def _once(method: Callable[P, T]) -> Callable[P, T]:
    """Makes a stage of an entry and a seed once; many rows read it."""

    @wraps(method)
    def made(*given: P.args, **options: P.kwargs) -> T:
        scale, entry, seed = cast("tuple[Scale, Any, int]", given[:3])
        key = (method.__name__, getattr(entry, "path", entry), seed)
        if key not in scale._made:
            scale._made[key] = method(*given, **options)
        return cast(T, scale._made[key])

    return made


class Scale:
    """The stages behind a row at one scale.

    Attributes:
        asked: names of settings in its stages.yaml that stages looked for.
    """

    def __init__(self, root: Path, name: str, settings: TypedSettings | None = None) -> None:
        self.root, self.name, self.settings = root, name, settings or typed_settings(root)
        self.results = f"results/{name}"
        self._entries: dict[str, dict[str, Address]] = {}
        self._items: dict[str, Item] = {}
        self._made: dict[tuple[str, str, int], Any] = {}
        self.asked: set[str] = set()

    def _of(self, kind: str) -> dict[str, Address]:
        """Returns entries of a kind by name, found once."""
        if kind not in self._entries:
            self._entries[kind] = scale_entries(self.root, self.name, kind)
        return self._entries[kind]

    def has(self, row: RowSpec) -> bool:
        """Returns whether a row is meant for this scale: its backbone is here and, at other scales than the testbed, so
        are the data, references and evaluation that it and its reward models name beside the backbone's."""
        wanted: list[tuple[str, str | None]] = [("backbones", row.backbone)]
        if self.name != DEFAULT_SCALE:
            wanted += [("evaluation", getattr(row.spec, "evaluation", None))]
            try:
                specs = [model.spec for model in models_of(self.settings, row)]
            except (RecipeError, DataError):
                specs = []  # `row` refuses it
            for spec in specs:
                wanted += [("data", spec.data), (STAGES, spec.references and f"references-{spec.references}")]
        return all(name is None or name in self._of(kind) for kind, name in wanted)

    def _chosen(self, kind: str, name: str, field_: str, where: str, *, prefix: str = "") -> Address:
        """Returns the scale's entry that an entry of a page names.

        Args:
            kind: of the scale's entries.
            name: as it is named.
            field_: where it is named, for messages.
            where: address of what names it.
            prefix: of the names that may be given, which leave it out.
        """
        known = self._of(kind)
        if prefix + name in known:
            return known[prefix + name]
        at = {scale: scale_entries(self.root, scale, kind) for scale in scale_names(self.root)}
        others = [scale for scale, names in at.items() if prefix + name in names]
        fitting = known or {one for names in at.values() for one in names}
        near = hint(name, sorted(one.removeprefix(prefix) for one in fitting if one.startswith(prefix)), more=3)
        lacks = f"scale {self.name} does not have (scale {others[0]} has)" if others else "no scale has"
        raise RecipeError(f"{where}: {field_} is '{name}', which {lacks}{near if known else f'; add a {kind}.yaml'}")

    def stage_settings(self, stage: str, *names: str) -> Address:
        """Returns a stage's settings: of the first name that has its own (`<stage>-<name>`), else everybody's
        (`<stage>`).

        Raises:
            RecipeError: the scale has none.
        """
        known, asked = self._of(STAGES), [*(f"{stage}-{own}" for own in names), stage]
        self.asked |= {*asked}
        found = next((known[name] for name in asked if name in known), None)
        if found is None:
            raise RecipeError(
                f"{scale_folder(self.name) / STAGES}.yaml: '{stage}' is missing; it sets the sizes of that stage, "
                "which rows at this scale need"
            )
        return found

    def _item(self, module: str, name: str, seed: int | None, owner: str = SHARED, /, **inputs: Input) -> Item:
        """Returns a stage; the object of before, where it was made before."""
        kind = "data" if module == "prepare" else module
        out = f"{self.results}/{owner}/{kind}/{name}" + ("" if seed is None else f"/{seed}")
        made = Item(module, name, inputs, out, owner, seed)
        known = self._items.setdefault(out, made)
        return known if known == made else made

    # --- what rows share ---------------------------------------------------------------------------------------------

    @_once
    def backbone(self, name: str, seed: int, where: str) -> Item:
        """Returns the SFT model of a backbone, which the entry at `where` names."""
        at = self._chosen("backbones", name, "backbone", where)
        spec: BackboneSpec = self.settings.get(at)
        data = self._drawn(spec.data, self._chosen("data", spec.data, "data", at), seed)
        words = self._chosen("tokenizers", spec.tokenizer, "tokenizer", at)
        tokenizer = self._item("tokenizer", spec.tokenizer, data.seed, spec=words, data=data)
        seed = seed if spec.seed is None else spec.seed
        evaluation = self._chosen("evaluation", spec.evaluation, "evaluation", at)
        return self._item("sft", name, seed, spec=at, evaluation=evaluation, data=data, tokenizer=tokenizer, seed=seed)

    def _drawn(self, name: str, spec: Address, seed: int) -> Item:
        """Returns a data set: of generated data the draw of a seed, of real data the one that all seeds share.

        Seed 0's draw is the one that the settings describe, and its stage has no seed in its name.
        """
        if seed and drawn_by_seed(read_settings(spec.under(self.root))):
            return self._item("prepare", name, seed, spec=spec, world=seed)
        return self._item("prepare", name, None, spec=spec)

    def entropies(self, sft: Item, seed: int) -> Item:
        """Returns the SFT model's entropies on its data."""
        return self._item(
            "entropies", sft.name, seed, spec=self.stage_settings("entropies"), data=sft.item("data"), sft=sft
        )

    def segmenter(self, data: Item, name: str, where: str) -> Item:
        """Returns a SaT model, with the sentences that it finds in the data."""
        spec = self._chosen("segmenters", name, "segmenter.model", where)
        return self._item("segmenter", f"{name}-{data.name}", data.seed, spec=spec, data=data)

    def pool(self, row: RowSpec, seed: int) -> Item:
        """Returns the greedy and sampled responses of a row's backbone."""
        sft, scale = self.backbone(row.backbone, seed, row.path), self.stage_settings("pool")
        return self._item("pool", row.backbone, seed, scale=scale, data=sft.item("data"), sft=sft, seed=seed)

    # --- reward models -----------------------------------------------------------------------------------------------

    @_once
    def reward_model(self, spec: ModelSpec, seed: int) -> Item | str:
        """Returns a reward model, a user's own by its folder."""
        if isinstance(spec.spec, GivenSpec):
            return spec.spec.given
        made = self._material(spec, seed)
        members = tuple(self.reward_model(member, seed) for member in spec.members)
        averaged: dict[str, Input] = {"reward_model": members} if members else {}
        settings = self._training("reward_model", spec, spec.spec.data or self._data_of(spec, seed).name)
        return self._item(
            "reward_model", spec.name, seed, spec.paper, spec=spec.path, scale=settings, **made, **averaged, seed=seed
        )

    @_once
    def normaliser(self, spec: ModelSpec, seed: int) -> Item:
        """Returns the normalisers of a reward model."""
        made, model = self._material(spec, seed), self.reward_model(spec, seed)
        scale = self.stage_settings("normaliser")
        return self._item("normaliser", spec.name, seed, spec.paper, scale=scale, **made, reward_model=model)

    @_once
    def references(self, spec: ModelSpec, seed: int) -> Item:
        """Returns the SFT model's reference responses scored by a reward model."""
        sft, scale = self.backbone(spec.backbone, seed, spec.path), self.stage_settings("references")
        if (name := spec.spec.references) is not None:
            self.asked.add(f"references-{name}")
            scale = self._chosen(STAGES, name, "references", spec.path, prefix="references-")
        made: dict[str, Input] = {"data": sft.item("data"), "sft": sft, "reward_model": self.reward_model(spec, seed)}
        made |= self._sentences(spec.segmenters, sft.item("data"), spec.path)
        return self._item("references", spec.name, seed, spec.paper, scale=scale, **made, seed=seed)

    def _data_of(self, spec: TypedEntry, seed: int) -> Item:
        return self.backbone(spec.backbone, seed, spec.path).item("data")

    @_once
    def _material(self, spec: ModelSpec, seed: int) -> dict[str, Input]:
        """Returns what a reward model learns from and what its segments are cut by."""
        sft = self.backbone(spec.backbone, seed, spec.path)
        made: dict[str, Input] = {"data": sft.item("data"), "sft": sft}
        if (data := spec.spec.data) is not None:
            made["data"] = self._drawn(data, self._chosen("data", data, "data", spec.path), seed)
        if spec.trained is not None and spec.trained.pairs == SAMPLES:
            made["data"] = self._item(
                "solution_pairs", sft.name, seed, data=sft.item("data"), samples=self.samples(sft, seed)
            )
        if any(segmenter_class(one).needs_entropies for one in spec.segmenters):
            made["entropies"] = self.entropies(sft, seed)
        return made | self._sentences(spec.segmenters, sft.item("data"), spec.path)

    def _sentences(self, segmenters: Sequence[Mapping[str, Any]], data: Item, where: str) -> dict[str, Input]:
        """Returns the sentences that segmenters read, empty where they read none."""
        name = sentence_model(segmenters, where)
        return {} if name is None else {"sentences": self.segmenter(data, name, where)}

    def _training(self, stage: str, spec: TypedEntry, data: str) -> Address:
        """Returns training settings: of one reward model, else of a paper's on the data, of the paper, of the scale."""
        return self.stage_settings(stage, f"{spec.paper}-{spec.name}", f"{spec.paper}-{data}", spec.paper)

    # --- sampled solutions -------------------------------------------------------------------------------------------

    def samples(self, sft: Item, seed: int) -> Item:
        """Returns the stage that draws solutions from an SFT model."""
        spec = self.stage_settings("samples")
        return self._item("samples", sft.name, seed, spec=spec, data=sft.item("data"), sft=sft, seed=seed)

    def teacher(self, sft: Item, seed: int) -> Item:
        """Returns a teacher's rewrites of an SFT model's wrong solutions."""
        spec, drawn = self.stage_settings("teacher"), self.samples(sft, seed)
        return self._item("teacher", sft.name, seed, spec=spec, data=sft.item("data"), sft=sft, samples=drawn)

    def generative_reward_model(self, spec: TypedEntry, sft: Item, seed: int) -> Item:
        """Returns a generative reward model with what it says of an SFT model's samples.

        It starts from its own backbone and learns from the teacher of the one whose samples it scores.
        """
        own, taught = self.backbone(spec.backbone, seed, spec.path), self.teacher(sft, seed)
        name = spec.name if spec.backbone == sft.name else f"{spec.name}-for-{sft.name}"
        scale = self._training("generative_reward_model", spec, own.item("data").name)
        made: dict[str, Input] = {"spec": spec.path, "scale": scale, "data": own.item("data"), "sft": own}
        made |= {"samples": taught.item("samples"), "teacher": taught}
        return self._item("generative_reward_model", name, seed, spec.paper, **made, seed=seed)

    # --- selections --------------------------------------------------------------------------------------------------

    def aspects(self, spec: TypedEntry) -> tuple[Address, ...]:
        """Returns addresses of a selection's aspects at this scale."""
        named = enumerate(spec.spec.aspects)
        return tuple(self._chosen("aspects", name, f"aspects[{place}]", spec.path) for place, name in named)

    @_once
    def selection(self, spec: TypedEntry, seed: int) -> Item:
        """Returns a selection of aspects."""
        holistic = model_named(self.settings, spec.path, spec.paper, spec.spec.holistic, "holistic")
        sft, files = self.backbone(spec.backbone, seed, spec.path), self.aspects(spec)
        data = sft.item("data")
        made: dict[str, Input] = {
            "spec": spec.path,
            "scale": self.stage_settings("selection", data.name),
            "aspect": files,
            "data": data,
            "sft": sft,
            "reward_model": self.reward_model(holistic, seed),
        }
        if models := tuple(self._aspect_model(spec.paper, file, seed) for file in files if self._model_of(file)):
            made["aspect_model"] = models
        return self._item("selection", spec.name, seed, spec.paper, **made, seed=seed)

    def _model_of(self, aspect: Address) -> str | None:
        name: str | None = self.settings.get(aspect).model
        return name

    def _aspect_model(self, paper: str, aspect: Address, seed: int) -> Item:
        """Returns the trained model behind an aspect."""
        known, name = self.settings.entries(paper, "aspect_models"), str(self._model_of(aspect))
        if name not in known:
            raise RecipeError(f"{aspect}: unknown aspect model '{name}'{hint(name, sorted(known), more=3)}")
        sft = self.backbone(self.settings.get(known[name]).backbone, seed, known[name])
        made: dict[str, Input] = {"spec": known[name], "scale": self.stage_settings("aspect_model")}
        return self._item("aspect_model", name, seed, paper, **made, data=sft.item("data"), sft=sft, seed=seed)

    # --- rows --------------------------------------------------------------------------------------------------------

    def row(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns a row's stage of one seed, last, and everything above it."""
        last = _STAGES[ROW_KINDS[row.kind].work](self, row, seed)
        if ROW_KINDS[row.kind].work != "name":
            last = replace(last, after=(self.check(row.paper),))
        return last.with_all_above()

    def check(self, paper: str) -> Item:
        """Returns the stage that checks every setting of a paper at this scale, and depends on all their pages."""
        out = f"{self.results}/{paper}/check"
        if out not in self._items:
            rows = read_rows(self.root, paper, self.settings)[0].values()
            named = [name for row in rows for name in row.reward_models]
            owners = {paper, *(name.rpartition("/")[0] or paper for name in named)}
            folders = [self.root / paper_folder(owner) for owner in sorted(owners)]
            pages = [file for folder in folders for kind in PAPER_PAGES for file in page_files(folder, kind)]
            after = [*(page.relative_to(self.root) for page in pages), *scale_pages(self.root, self.name)]
            made: dict[str, Input] = {"results": self.results, "paper": paper}
            self._items[out] = Item("check", "", made, out, paper, after=tuple(path.as_posix() for path in after))
        return self._items[out]

    def training(self, row: RowSpec, seed: int) -> Item:
        """Returns the stage that trains a row's policy."""
        recipe, models = row.spec, models_of(self.settings, row)
        needed = referenced_models(recipe)
        referenced = [model for model, name in zip(models, row.reward_models, strict=True) if name in needed]
        selection, generative = selection_of(self.settings, row), generative_of(self.settings, row)
        solutions = solutions_of(row, models, generative)
        sft = self.backbone(row.backbone, seed, row.path)
        data = sft.item("data")
        settings = self.policy_settings(row, data.name)
        self._check_models(row, models, referenced)
        evaluation = recipe.evaluation and self._chosen("evaluation", recipe.evaluation, "evaluation", row.path)
        made: dict[str, Input] = {"row": row.path, "scale": settings}
        made |= {"evaluation": evaluation or sft.inputs["evaluation"], "data": data, "sft": sft}
        segmenters = [part.readout.segmenter for part in recipe.components if part.readout is not None]
        segmenters += [one for model in models for one in model.segmenters]
        if any(segmenter_class(one).needs_entropies for one in segmenters):
            made["entropies"] = self.entropies(sft, seed)
        if (sentences := sentence_model(segmenters, row.path)) is not None:
            made["sentences"] = self.segmenter(self._data_of(models[0], seed), sentences, models[0].path)
        if models:
            fitted = tuple(self.normaliser(spec, seed) for spec in models)
            made["reward_model"] = tuple(self.reward_model(spec, seed) for spec in models)
            made["normaliser"] = fitted
        if selection is not None:
            chosen = self.selection(selection, seed)
            made |= {"selection": chosen, "holistic": chosen.inputs["reward_model"]}
            if "aspect_model" in chosen.inputs:
                made["aspect_model"] = chosen.inputs["aspect_model"]
        if referenced:
            made["references"] = tuple(self.references(spec, seed) for spec in referenced)
        if solutions:
            made["samples"] = self.samples(sft, seed)
        if TEACHER in solutions:
            made["teacher"] = self.teacher(sft, seed)
        if generative is not None:
            made["token_rewards"] = self.generative_reward_model(generative, sft, seed)
        policy = self._item("policy", row.name, seed, row.paper, **made, seed=seed)
        return policy if selection is None else replace(policy, reads=self.aspects(selection))

    def policy_settings(self, row: RowSpec, data: str) -> Address:
        """Returns sizes of a row's optimiser: those for one data set, else everybody's."""
        field_ = "optimiser.kind" if row.spec.settings is None else "settings"
        name = row.spec.settings or str(row.spec.optimiser["kind"])
        if (of_data := f"{name}-{data}") in self._of("policy"):
            return self._of("policy")[of_data]
        return self._chosen("policy", name, field_, row.path)

    def measuring(self, row: RowSpec, seed: int) -> Item:
        """Returns the stage that measures a row's reward model by a benchmark, or by the best of N responses of the
        row's backbone."""
        (spec,) = models = models_of(self.settings, row)
        settings = self.stage_settings(row.kind)
        drawn = ROW_KINDS[row.kind].needs_pool
        if not drawn and spec.backbone != row.backbone:
            raise RecipeError(
                f"{row.path}: backbone is '{row.backbone}', but reward model '{spec.name}' is of '{spec.backbone}', on "
                "whose data it is measured; name the same backbone"
            )
        sft = self.backbone(spec.backbone, seed, spec.path)
        made: dict[str, Input] = {"scale": settings, **self._material(spec, seed), "data": sft.item("data")}
        made["reward_model"] = self.reward_model(spec, seed)
        if drawn:
            self._check_models(row, models)
            made["pool"] = self.pool(row, seed)
        return self._item(row.kind, row.name, seed, row.paper, **made)

    def comparing(self, row: RowSpec, seed: int) -> Item:
        """Returns the stage that compares the policies of several rows."""
        judged, *_ = compared = compared_rows(self.settings, row)
        if row.backbone != judged.backbone:
            raise RecipeError(
                f"{row.path}: backbone is '{row.backbone}', but policy '{judged.name}' is of '{judged.backbone}'; name "
                "the same backbone"
            )
        policies = tuple(self.row(other, seed)[-1] for other in compared)
        data = policies[0].item("data")
        for other in policies:
            if other.item("data") != data:
                raise RecipeError(
                    f"{row.path}: '{other.name}' answers the prompts of data '{other.item('data').name}', but "
                    f"'{judged.name}' those of '{data.name}'; compare policies on the same data"
                )
        made: dict[str, Input] = {"row": row.path, "scale": self.stage_settings(row.kind)}
        return self._item(row.kind, row.name, seed, row.paper, **made, data=data, policies=policies)

    def _words(self, entry: TypedEntry) -> str:
        """Returns the identity of a backbone's tokenizer: the source that it is loaded from, else its name."""
        at = self._chosen("backbones", entry.backbone, "backbone", entry.path)
        name = self.settings.get(at).tokenizer
        return str(self.settings.get(self._chosen("tokenizers", name, "tokenizer", at)).source or name)

    def _check_models(self, row: RowSpec, models: Sequence[ModelSpec], referenced: Sequence[ModelSpec] = ()) -> None:
        """Refuses reward models that do not read the row's tokens, or whose references another model wrote; a Hugging
        Face classifier reads texts."""
        for spec in models:
            names = [self._words(own) for own in (row, spec)]
            other = f"{row.path}: backbone is '{row.backbone}' but reward model '{spec.name}' is of '{spec.backbone}'"
            own_words = isinstance(spec.spec, GivenSpec) and is_hub_classifier(self.root / spec.spec.given)
            if names[0] != names[1] and not own_words:
                words = " and ".join(map(repr, names))
                raise RecipeError(f"{other}, and their tokenizers at scale {self.name} are {words}")
            if spec in referenced and spec.backbone != row.backbone:
                raise RecipeError(f"{other}; its shaping needs a reward model of the row's backbone")


#: The last stage of a row, by the work of its kind.
_STAGES: dict[str, Callable[[Scale, RowSpec, int], Item]] = {
    "train": Scale.training,
    "measure": Scale.measuring,
    "compare": Scale.comparing,
    "name": lambda scale, row, seed: scale.backbone(row.backbone, seed, row.path),
}
