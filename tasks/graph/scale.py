"""A scale: the stages that rows, reward models and selections need there, from the pages of params/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.supervised.recipes import TEACHER
from tasks.graph.items import SHARED, Argument, Item, result_of
from tasks.graph.rows import PAGES, ModelSpec, RowSpec, SelectionSpec, TypedEntry, paper_folder, read_rows
from tasks.graph.typed_settings import TYPES, TypedSettings, typed_settings
from tasks.params.backbone import BackboneSpec
from tasks.params.data import drawn_by_seed
from tasks.params.pages import Address, page_files, read_settings
from tasks.params.row_parser import ROW_KINDS
from tasks.params.scales import STAGES, scale_entries, scale_folder, scale_names, scale_pages
from tasks.params.settings import DEFAULT_SCALE


class Scale:
    """The stages behind a row at one scale.

    Attributes:
        asked: names of settings in its stages.yaml that stages looked for.
    """

    def __init__(self, root: Path, name: str, settings: TypedSettings | None = None) -> None:
        self.root, self.name, self.settings = root, name, settings or typed_settings(root)
        self.results = f"results/{name}"
        self._entries: dict[str, dict[str, Address]] = {}
        self._checks: dict[str, Item] = {}
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
            for model in row.reward_models:
                wanted += [("data", model.data), (STAGES, model.references and f"references-{model.references}")]
        return all(name is None or name in self._of(kind) for kind, name in wanted)

    def _chosen(self, kind: str, name: str, field_: str, where: str, *, prefix: str = "") -> Address:
        """Returns the scale's entry that an entry of a page names.

        Args:
            kind: of the scale's entries.
            name: as it is named.
            field_: where it is named, for messages.
            where: address of what names it.
            prefix: of the names that may be given, which leave it out.

        Raises:
            RecipeError: no scale has such an entry, or this one has not.
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

    def _item(self, module: str, name: str, seed: int | None, owner: str = SHARED, /, **arguments: Argument) -> Item:
        kind = "data" if module == "prepare" else module
        out = f"{self.results}/{owner}/{kind}/{name}" + ("" if seed is None else f"/{seed}")
        return Item(module, name, arguments, out, owner, seed)

    def backbone(self, name: str, seed: int, where: str) -> list[Item]:
        """Returns the data, tokenizer and the SFT model of a backbone, which the entry at `where` names."""
        at = self._chosen("backbones", name, "backbone", where)
        spec: BackboneSpec = self.settings.get(TYPES["sft", "spec"], at)
        prepare = self._drawn(spec.data, self._chosen("data", spec.data, "data", at), seed)
        made = {"data": result_of(prepare)}
        of_tokenizer = self._chosen("tokenizers", spec.tokenizer, "tokenizer", at)
        tokens = self._item("tokenizer", spec.tokenizer, prepare.seed, spec=of_tokenizer, **made)
        made["tokenizer"] = result_of(tokens)
        tuned = seed if spec.seed is None else spec.seed
        evaluation = self._chosen("evaluation", spec.evaluation, "evaluation", at)
        return [
            prepare, tokens, self._item("sft", name, tuned, spec=at, evaluation=evaluation, **made, seed=tuned)
        ]  # fmt: skip

    def _drawn(self, name: str, spec: Address, seed: int) -> Item:
        """Returns a data set: of generated data the draw of a seed, of real data the one that all seeds share.

        Seed 0's draw is the one that the settings describe, and its stage has no seed in its name.
        """
        if seed and drawn_by_seed(read_settings(spec.under(self.root))):
            return self._item("prepare", name, seed, spec=spec, world=seed)
        return self._item("prepare", name, None, spec=spec)

    def entropies(self, base: list[Item], seed: int) -> Item:
        """Returns the SFT model's entropies on the data."""
        prepare, _, sft = base
        spec = self.stage_settings("entropies")
        return self._item("entropies", sft.name, seed, spec=spec, data=result_of(prepare), sft=result_of(sft))

    def segmenter(self, base: list[Item], name: str, where: str) -> Item:
        """Returns a SaT model, with the sentences that it finds in the data."""
        spec, data = self._chosen("segmenters", name, "segmenter.model", where), base[0]
        return self._item("segmenter", f"{name}-{data.name}", data.seed, spec=spec, data=result_of(data))

    def reward_model(self, spec: ModelSpec, seed: int) -> list[Item]:
        """Returns a reward model and its normalisers, after everything that they need."""
        base = self.backbone(spec.backbone, seed, spec.path)
        above = [*base, *self._own_data(spec, seed)]
        made: dict[str, Argument] = {"data": result_of(base[0] if spec.data is None else above[-1])}
        made["sft"] = result_of(base[2])
        if spec.samples:
            above += self.solution_pairs(base, seed)
            made["data"] = result_of(above[-1])
        if spec.entropies:
            above.append(self.entropies(base, seed))
            made["entropies"] = result_of(above[-1])
        if spec.segmenter is not None:
            above.append(self.segmenter(base, spec.segmenter, spec.path))
            made["sentences"] = result_of(above[-1])
        data = spec.data or base[0].name
        members = [self._trained(member, seed, data, made) for member in spec.merge]
        averaged: dict[str, Argument] = {"reward_model": tuple(map(result_of, members))} if members else {}
        above += members
        if spec.given is None:
            above.append(self._trained(spec, seed, data, made | averaged))
        made["reward_model"] = spec.given or result_of(above[-1])
        calibration = self.stage_settings("normaliser")
        fitted = self._item("normaliser", spec.name, seed, spec.paper, scale=calibration, **made)
        return [*above, fitted]

    def _settings(self, module: str, spec: ModelSpec, data: str) -> Address:
        """Returns training settings: of one reward model, else of a paper's on the data, of the paper, of the scale."""
        return self.stage_settings(module, f"{spec.paper}-{spec.name}", f"{spec.paper}-{data}", spec.paper)

    def _trained(self, spec: ModelSpec, seed: int, data: str, made: Mapping[str, Argument]) -> Item:
        """Returns the stage of one reward model, from what is made for it."""
        settings = self._settings("reward_model", spec, data)
        given: dict[str, Argument] = {"spec": spec.path, "scale": settings, **made}
        return self._item("reward_model", spec.name, seed, spec.paper, **given, seed=seed)

    def _own_data(self, spec: ModelSpec, seed: int) -> list[Item]:
        """Returns the data set of a reward model that learns from other pairs than its backbone's data has."""
        if spec.data is None:
            return []
        return [self._drawn(spec.data, self._chosen("data", spec.data, "data", spec.path), seed)]

    def samples(self, base: list[Item], seed: int) -> Item:
        """Returns the stage that draws solutions from the SFT model."""
        prepare, _, sft = base
        spec = self.stage_settings("samples")
        return self._item("samples", sft.name, seed, spec=spec, data=result_of(prepare), sft=result_of(sft), seed=seed)

    def solution_pairs(self, base: list[Item], seed: int) -> list[Item]:
        """Returns pairs of right and wrong solutions, after the samples."""
        drawn = self.samples(base, seed)
        made = {"data": result_of(base[0]), "samples": result_of(drawn)}
        return [drawn, self._item("solution_pairs", base[2].name, seed, **made)]

    def teacher(self, base: list[Item], seed: int) -> list[Item]:
        """Returns a teacher's rewrites of wrong solutions, after the samples."""
        prepare, _, sft = base
        drawn, spec = self.samples(base, seed), self.stage_settings("teacher")
        made = {"data": result_of(prepare), "sft": result_of(sft), "samples": result_of(drawn)}
        return [drawn, self._item("teacher", sft.name, seed, spec=spec, **made)]

    def generative_reward_model(self, spec: ModelSpec, base: list[Item], seed: int) -> list[Item]:
        """Returns a generative reward model with what it says of a backbone's samples, after everything that it needs.

        It starts from its own backbone and learns from the teacher of the one whose samples it scores.
        """
        own, taught = self.backbone(spec.backbone, seed, spec.path), self.teacher(base, seed)
        name = spec.name if spec.backbone == base[2].name else f"{spec.name}-for-{base[2].name}"
        made = {"data": result_of(own[0]), "sft": result_of(own[2])}
        made |= {"samples": result_of(taught[0]), "teacher": result_of(taught[1])}
        scale = self._settings("generative_reward_model", spec, own[0].name)
        model = self._item(
            "generative_reward_model", name, seed, spec.paper, spec=spec.path, scale=scale, **made, seed=seed
        )
        return [*own, *taught, model]

    def solutions(self, row: RowSpec, base: list[Item], seed: int) -> tuple[list[Item], dict[str, Argument]]:
        """Returns the stages of the sampled solutions that a row reads, and the arguments that name their results."""
        above: list[Item] = []
        made: dict[str, Argument] = {}
        if row.solutions:
            above = self.teacher(base, seed)[: 2 if TEACHER in row.solutions else 1]
            made = {item.module: result_of(item) for item in above}
        if row.generative is not None:
            above += self.generative_reward_model(row.generative, base, seed)
            made["token_rewards"] = result_of(above[-1])
        return above, made

    def references(self, spec: ModelSpec, seed: int) -> list[Item]:
        """Returns the SFT model's reference responses scored by a reward model, after everything that they need."""
        above = self.reward_model(spec, seed)
        made: dict[str, Argument] = {"data": result_of(above[0]), "sft": result_of(above[2])}
        made["reward_model"] = above[-1].arguments["reward_model"]
        if spec.segmenter is not None:
            made["sentences"] = above[-1].arguments["sentences"]
        scale = self.stage_settings("references")
        if spec.references is not None:
            self.asked.add(f"references-{spec.references}")
            scale = self._chosen(STAGES, spec.references, "references", spec.path, prefix="references-")
        return [*above, self._item("references", spec.name, seed, spec.paper, scale=scale, **made, seed=seed)]

    def measuring(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns the stage that measures a row's reward model, last, after everything that it needs.

        It is a benchmark, or the best of N responses of the row's backbone.
        """
        (spec,) = row.reward_models
        settings = self.stage_settings(row.kind)
        drawn = ROW_KINDS[row.kind].needs_pool
        if not drawn and spec.backbone != row.backbone:
            raise RecipeError(
                f"{row.path}: backbone is '{row.backbone}', but reward model '{spec.name}' is of '{spec.backbone}', on "
                "whose data it is measured; name the same backbone"
            )
        *above, fitted = self.reward_model(spec, seed)
        made: dict[str, Argument] = {"scale": settings, "data": result_of(above[0]), "sft": result_of(above[2])}
        named = ("entropies", "sentences", "reward_model")
        made |= {name: fitted.arguments[name] for name in named if name in fitted.arguments}
        if drawn:
            self._check_models(row)
            above = [*above, *self.pool(row, seed)]
            made["pool"] = result_of(above[-1])
        return [*above, self._item(row.kind, row.name, seed, row.paper, **made)]

    def comparing(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns the stage that compares the policies of several rows, last, after everything that it needs."""
        judged = row.policies[0]
        if row.backbone != judged.backbone:
            raise RecipeError(
                f"{row.path}: backbone is '{row.backbone}', but policy '{judged.name}' is of '{judged.backbone}'; name "
                "the same backbone"
            )
        parts = [self.row(other, seed) for other in row.policies]
        for other, items in zip(row.policies, parts, strict=True):
            if items[0] != parts[0][0]:
                raise RecipeError(
                    f"{row.path}: '{other.name}' answers the prompts of data '{items[0].name}', but "
                    f"'{row.policies[0].name}' those of '{parts[0][0].name}'; compare policies on the same data"
                )
        made: dict[str, Argument] = {"row": row.path, "scale": self.stage_settings(row.kind)}
        made |= {"data": result_of(parts[0][0]), "policies": tuple(result_of(items[-1]) for items in parts)}
        above = [item for items in parts for item in items]
        return [*above, self._item(row.kind, row.name, seed, row.paper, **made)]

    def pool(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns the greedy and sampled responses of a row's backbone, after the backbone."""
        base = self.backbone(row.backbone, seed, row.path)
        made: dict[str, Argument] = {"scale": self.stage_settings("pool"), "data": result_of(base[0])}
        return [*base, self._item("pool", row.backbone, seed, **made, sft=result_of(base[2]), seed=seed)]

    def policy_settings(self, row: RowSpec, data: str) -> Address:
        """Returns sizes of a row's optimiser: those for one data set, else everybody's."""
        if (of_data := f"{row.settings}-{data}") in self._of("policy"):
            return self._of("policy")[of_data]
        field_ = "optimiser.kind" if row.spec.settings is None else "settings"
        return self._chosen("policy", row.settings, field_, row.path)

    def aspects(self, spec: SelectionSpec) -> tuple[Address, ...]:
        """Returns addresses of a selection's aspects at this scale."""
        named = enumerate(spec.spec.aspects)
        return tuple(self._chosen("aspects", name, f"aspects[{place}]", spec.path) for place, name in named)

    def selection(self, spec: SelectionSpec, seed: int) -> list[Item]:
        """Returns a selection of aspects, after everything that it needs."""
        base = self.backbone(spec.backbone, seed, spec.path)
        files = self.aspects(spec)
        holistic = self.reward_model(spec.holistic, seed)
        models = self.aspect_models(spec.paper, files, seed)
        made: dict[str, Argument] = {
            "spec": spec.path,
            "scale": self.stage_settings("selection", base[0].name),
            "aspect": files,
            "data": result_of(base[0]),
            "sft": result_of(base[2]),
            "reward_model": holistic[-1].arguments["reward_model"],
        }
        if models:
            made["aspect_model"] = tuple(result_of(items[-1]) for items in models)
        above = [*base, *holistic, *(item for items in models for item in items)]
        return [*above, self._item("selection", spec.name, seed, spec.paper, **made, seed=seed)]

    def aspect_models(self, paper: str, files: tuple[Address, ...], seed: int) -> list[list[Item]]:
        """Returns the trained models behind aspects, each after everything that it needs."""
        known, found = self.settings.entries(paper, "aspect_models"), []
        for file in files:
            name = self.settings.get(TYPES["selection", "aspect"], file).model
            if name is None:
                continue
            if name not in known:
                raise RecipeError(f"{file}: unknown aspect model '{name}'{hint(name, sorted(known), more=3)}")
            spec = known[name]
            base = self.backbone(self.settings.get(TYPES["aspect_model", "spec"], spec).backbone, seed, spec)
            made = {"data": result_of(base[0]), "sft": result_of(base[2])}
            scale = self.stage_settings("aspect_model")
            found.append(
                [*base, self._item("aspect_model", name, seed, paper, spec=spec, scale=scale, **made, seed=seed)]
            )
        return found

    def _words(self, entry: TypedEntry) -> str:
        """Returns the identity of a backbone's tokenizer: the source that it is loaded from, else its name."""
        at = self._chosen("backbones", entry.backbone, "backbone", entry.path)
        name = self.settings.get(TYPES["sft", "spec"], at).tokenizer
        of_tokenizer = self._chosen("tokenizers", name, "tokenizer", at)
        return str(self.settings.get(TYPES["tokenizer", "spec"], of_tokenizer).source or name)

    def _check_models(self, row: RowSpec) -> None:
        """Refuses reward models that do not read the row's tokens, or whose references another model wrote; a Hugging
        Face classifier reads texts."""
        for spec in row.reward_models:
            names = [self._words(own) for own in (row, spec)]
            other = f"{row.path}: backbone is '{row.backbone}' but reward model '{spec.name}' is of '{spec.backbone}'"
            own_words = spec.given is not None and is_hub_classifier(self.root / spec.given)
            if names[0] != names[1] and not own_words:
                words = " and ".join(map(repr, names))
                raise RecipeError(f"{other}, and their tokenizers at scale {self.name} are {words}")
            if spec in row.references and spec.backbone != row.backbone:
                raise RecipeError(f"{other}; its shaping needs a reward model of the row's backbone")

    def check(self, paper: str) -> Item:
        """Returns the stage that checks every setting of a paper at this scale, and depends on all their pages."""
        if paper not in self._checks:
            rows = read_rows(self.root, paper)[0].values()
            owners = {paper, *(model.paper for row in rows for model in row.reward_models)}
            folders = [self.root / paper_folder(owner) for owner in sorted(owners)]
            pages = [file for folder in folders for kind in PAGES for file in page_files(folder, kind)]
            after = [*(page.relative_to(self.root) for page in pages), *scale_pages(self.root, self.name)]
            made: dict[str, Argument] = {"results": self.results, "paper": paper}
            out = f"{self.results}/{paper}/check"
            self._checks[paper] = Item("check", "", made, out, paper, after=tuple(path.as_posix() for path in after))
        return self._checks[paper]

    def row(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns a row's stage of one seed, last, and everything above it."""
        items = _STAGES[ROW_KINDS[row.kind].work](self, row, seed)
        if ROW_KINDS[row.kind].work == "name":
            return items
        check = self.check(row.paper)
        return [*items[:-1], check, replace(items[-1], after=(result_of(check),))]

    def training(self, row: RowSpec, seed: int) -> list[Item]:
        """Returns the stage that trains a row's policy, last, after everything that it needs."""
        above = base = self.backbone(row.backbone, seed, row.path)
        prepare, _, sft = base
        settings = self.policy_settings(row, prepare.name)
        self._check_models(row)
        evaluation = row.spec.evaluation and self._chosen("evaluation", row.spec.evaluation, "evaluation", row.path)
        made: dict[str, Argument] = {
            "row": row.path,
            "scale": settings,
            "evaluation": evaluation or sft.arguments["evaluation"],
            "data": result_of(prepare),
            "sft": result_of(sft),
        }
        models = [self.reward_model(spec, seed) for spec in row.reward_models]
        if row.entropies:
            above = [*above, self.entropies(base, seed)]
            made["entropies"] = result_of(above[-1])
        if row.segmenter is not None:
            scorer = row.reward_models[0]
            scored = self.backbone(scorer.backbone, seed, scorer.path)
            above = [*above, *scored, self.segmenter(scored, row.segmenter, row.path)]
            made["sentences"] = result_of(above[-1])
        if row.reward_models:
            above = [*above, *(item for items in models for item in items)]
            made["reward_model"] = tuple(str(items[-1].arguments["reward_model"]) for items in models)
            made["normaliser"] = tuple(result_of(items[-1]) for items in models)
        if row.selection is not None:
            chosen = self.selection(row.selection, seed)
            above = [*above, *chosen]
            made["selection"] = result_of(chosen[-1])
            made["holistic"] = chosen[-1].arguments["reward_model"]
            if "aspect_model" in chosen[-1].arguments:
                made["aspect_model"] = chosen[-1].arguments["aspect_model"]
        if row.references:
            centers = [self.references(spec, seed)[-1] for spec in row.references]
            above = [*above, *centers]
            made["references"] = tuple(map(result_of, centers))
        further, arguments = self.solutions(row, base, seed)
        above, made = [*above, *further], made | arguments
        policy = self._item("policy", row.name, seed, row.paper, **made, seed=seed)
        return [*above, policy if row.selection is None else replace(policy, reads=self.aspects(row.selection))]


#: Stages behind a row, by the work of its kind.
_STAGES: dict[str, Callable[[Scale, RowSpec, int], list[Item]]] = {
    "train": Scale.training,
    "measure": Scale.measuring,
    "compare": Scale.comparing,
    "name": lambda scale, row, seed: scale.backbone(row.backbone, seed, row.path),
}
