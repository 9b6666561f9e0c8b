"""A project of the user's own: a folder with settings, pairs and code, in which `rewardsmith run` works at once.

Everything is checked before the folder is made: model, pairs and reward. `tasks/commands/project/` has the files'
templates.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.data.dialogue import dialogue_key, prompt_messages
from rlhf_core.data.jsonl import BadRow
from rlhf_core.data.schemas import Record, record_type
from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.models.device import Device
from rlhf_core.published import printed_tables
from tasks.commands.project_sizes import found_device, project_sizes
from tasks.data_specs.pair_columns import ALIASES
from tasks.data_specs.pair_dialogues import COMMON_BEGINNING
from tasks.data_specs.pair_formats import NO_PREFERENCE, prompt_remedy, read_pairs, split_by_prompt
from tasks.graph.code_dependencies import module_files
from tasks.graph.dvc_files import ON_CPU, STAGES, matrix_folders
from tasks.graph.dvc_files import write as write_graph
from tasks.graph.items import SHARED
from tasks.graph.names import ALL, DEMO_ALL, DEMO_PAPER, SUITE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TEMPLATES = Path(__file__).parent / "project"
#: The name of a project's scale.
SCALE = "local"
#: Files of a project by template, without those of rows.
_SCALE_PAGES = ("aspects", "backbones", "data", "evaluation", "policy", "stages", "tokenizers")
_ROW_PAGES = ("rows", "reward_models", "selections")
#: Stages that take the device; the others read files.
_ON_DEVICE = tuple(stage for stage in STAGES if stage not in (*ON_CPU, "prepare", "second_judge"))
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_TAKEN = (*printed_tables.PAPERS, SHARED, SUITE, ALL, DEMO_ALL, DEMO_PAPER, "scales")
#: Words in the name of a file of held-out pairs.
_HELD_OUT = re.compile(r"(?:^|[._-])(?:test|eval|valid|validation|dev)(?:[._-]|$)")
#: Share of the prompts that is held out where no file is of held-out pairs, and the most of them.
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 1000
#: The largest tolerated share of bad rows of a file, and the fewest pairs.
MAX_BAD_SHARE, LEAST_PAIRS = 0.1, 20
#: Pairs of which is told how many the limits destroy.
CUT_LOOKED_AT = 1000
#: Pairs whose responses a reward is tried on.
TRIED = 4


@dataclass
class GatheredPairs:
    """Preference pairs of all files: good records, bad rows by file, columns that are not read, and lines on each file
    with format and counts."""

    train: list[Record] = field(default_factory=list)
    test: list[Record] = field(default_factory=list)
    bad: dict[Path, list[BadRow]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def checked_name(folder: Path) -> str:
    """Returns the name of a project's study: that of its folder.

    Raises:
        RecipeError: a folder that exists, or a name that rows cannot have.
    """
    if os.path.lexists(folder):
        raise RecipeError(f"{folder} exists; init makes a new folder: give another name, or remove this one")
    if not _NAME.fullmatch(folder.name):
        raise RecipeError(
            f"the project's name is '{folder.name}'; it has letters, digits, '-' and '_' and begins with one of the "
            "first two"
        )
    if folder.name in _TAKEN:
        raise RecipeError(f"the project's name is '{folder.name}', which the package uses itself; give another one")
    if not folder.resolve().parent.is_dir():
        raise RecipeError(f"{folder.parent} is not a folder; make it first")
    return folder.name


def gathered_pairs(files: Sequence[Path], columns: Mapping[str, str]) -> GatheredPairs:
    """Returns the pairs of all files, split into those to train on and held-out ones.

    Raises:
        DataError: an unknown format, too many bad rows, or too few pairs.
    """
    from rlhf_core.data.quarantine import find_faults

    kind, pairs, seen = record_type("preference"), GatheredPairs(), set[str]()
    for file in files:
        found, lines, unread = read_pairs(file, columns)
        bad = sorted([*lines.broken, *find_faults(lines.rows, kind)], key=lambda row: row.row)
        wrong = [row for row in bad if row.reason != NO_PREFERENCE]
        if len(wrong) > MAX_BAD_SHARE * (total := len(lines.rows) + len(lines.broken)):
            first, unnamed = wrong[0], found == COMMON_BEGINNING and wrong[0].field == "prompt"
            raise DataError(
                first.reason, file=str(file), row=first.row, field=first.field or None,
                remedy=f"{len(wrong)} of {total} rows are not pairs as '{found}' has them ({_reasons(wrong)}). "
                f"{prompt_remedy(file, columns) if unnamed else 'Correct them'}",
            )  # fmt: skip
        left_out = {row.row for row in bad}
        good = [record for number, record in lines.rows if number not in left_out]
        for record in good:
            while record["id"] in seen:
                record["id"] = f"{file.stem}-{record['id']}"
            seen.add(record["id"])
        held_out = _HELD_OUT.search(file.name.lower()) is not None
        (pairs.test if held_out else pairs.train).extend(good)
        pairs.notes.append(f"pairs   {file}: {found}, {len(good)} pairs" + (" held out" if held_out else ""))
        pairs.unread += [name for name in unread if name not in pairs.unread]
        if unread:
            pairs.notes.append(f"unread  {file}: {', '.join(unread)}")
        if bad:
            pairs.bad[file] = bad
            pairs.notes.append(f"bad     {file}: {len(bad)} rows left out ({_reasons(bad)}), in data/quarantine/")
    if not pairs.test:
        pairs.train, pairs.test = split_by_prompt(pairs.train, HELD_OUT_SHARE, MOST_HELD_OUT)
    trained_on = set(map(dialogue_key, pairs.train))
    if overlap := sum(dialogue_key(row) in trained_on for row in pairs.test):
        pairs.notes.append(f"overlap {overlap} of {len(pairs.test)} held-out pairs ask prompts that are trained on")
    if len(pairs.train) < LEAST_PAIRS:
        prompts = len({str(row["prompt"]) for row in (*pairs.train, *pairs.test)})
        raise DataError(
            f"{len(pairs.train)} pairs to train on beside {len(pairs.test)} held out, of {prompts} prompts, which are "
            "kept apart", file=str(files[0]),
            remedy=f"Give at least {LEAST_PAIRS}; some thousands teach a reward model something",
        )  # fmt: skip
    return pairs


def _reasons(bad: Sequence[BadRow]) -> str:
    """Returns the most frequent reasons with their counts."""
    counts = Counter(f"{row.field}: {row.reason}" if row.field else row.reason for row in bad)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common(3))


def checked_model(model: str, template: str) -> tuple[str, PreTrainedModel, Any]:
    """Returns a model's folder or hub id as settings have it, its shapes, and its tokenizer.

    Raises:
        DataError: a folder without configuration, whole weights or tokenizer, or a model that the hub does not have.
        RecipeError: a model that is not a language model or is quantised, an architecture that does not run here, no
            chat template, or one that does not fit the tokenizer.
    """
    from huggingface_hub import is_offline_mode
    from transformers import AutoConfig

    from rlhf_core.data.templates import chat_template
    from rlhf_core.data.tokenizers import add_pad_token
    from rlhf_core.models.folders import check_parts
    from rlhf_core.models.hub_folder import check_architecture_runs, check_kind, check_weights
    from rlhf_core.models.loading import load_tokenizer, on_meta

    folder, named = Path(model).expanduser(), chat_template(template)
    local = folder.exists() or model.startswith((".", "/", "~"))
    if local:
        check_parts(folder)
        model = str(folder.resolve())
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        check_kind(config, model)
        shapes = on_meta(config)
    except (OSError, ValueError) as error:
        problem = f"no language model can be loaded ({str(error).strip().splitlines()[0][:200]})"
        remedy = (
            f"Give a folder, or a hub id{' with HF_HUB_OFFLINE=0' if is_offline_mode() else ''} of a language model"
        )
        if "custom code" in problem or "trust_remote_code" in problem:
            remedy = "Code from the hub is never run: give a model whose class transformers has"
        raise DataError(problem, file=model, remedy=remedy) from None
    if local:
        check_weights(folder, config)
    check_architecture_runs(config, model)
    tokenizer = load_tokenizer(model)
    if template == "tokenizer" and not getattr(tokenizer, "chat_template", None):
        raise RecipeError(
            f"model {model}: the tokenizer has no chat template; name the form of dialogues, as in --template llama3, "
            "or give a model that was tuned on dialogues"
        )
    try:
        add_pad_token(tokenizer, named)
        named.check_tokenizer(tokenizer)
    except RecipeError as error:
        raise RecipeError(f"model {model}: {error}") from None
    return model, shapes, tokenizer


def make_project(
    folder: Path,
    model: str,
    files: Sequence[Path],
    reward: str | None = None,
    columns: Mapping[str, str] | None = None,
    template: str = "tokenizer",
    device: Device | None = None,
) -> None:
    """Makes a project and prints what is in it and what to do next.

    Args:
        folder, model, files: the new folder, the model's folder or hub id, files of preference pairs.
        reward: `module:function`, None for a learned reward alone.
        columns: {our field: their column}.
        template: chat template; `tokenizer` is the model's own.
        device: that stages train on; None finds it.

    Raises:
        DataError, RecipeError, NumericsError: what cannot be used, before anything is written.
    """
    from rlhf_core.data.encoding import Encoder, Limits, whole_pairs
    from rlhf_core.data.templates import chat_template
    from rlhf_core.models.loading import trainable
    from tasks.scoring.texts import text_batch, try_reward

    name, pairs = checked_name(folder), gathered_pairs(files, columns or {})
    place, shapes, tokenizer = checked_model(model, template)
    parameters, device = trainable(shapes), device or found_device()
    sizes = project_sizes(shapes.config, parameters, device)
    limits = Limits(sizes["prompt_tokens"], sizes["total_tokens"])
    encoder = Encoder(tokenizer, chat_template(template), limits)
    roles = {tuple(each["role"] for each in prompt_messages(row)): row for row in (*pairs.test, *pairs.train)}
    for row in roles.values():
        encoder.sequence(row, row["chosen"])  # the template may refuse the dialogue
    looked_at = pairs.train[:CUT_LOOKED_AT]
    chosen, rejected = ([encoder.sequence(row, row[side]) for row in looked_at] for side in ("chosen", "rejected"))
    if dropped := whole_pairs(chosen, rejected, encoder.eos_id, file=str(files[0])).dropped:
        pairs.notes.append(
            f"cut     {dropped} of the first {len(looked_at)} pairs have answers that are equal or empty within "
            f"{limits.total} tokens; they are left out"
        )
    gives, rows = None, ("learned", "par", "dpo")
    if reward is not None:
        tried = [(row, row[side]) for row in pairs.train[:TRIED] for side in ("chosen", "rejected")]
        gives = try_reward(reward, text_batch(encoder, [row for row, _ in tried], [text for _, text in tried])).gives
        rows = ("learned", "own", "both")
    values = {
        "name": name, "scale": SCALE, "model": json.dumps(place), "template": template, "reward": reward,
        "gives": gives, "credit": "as_is" if gives == "tokens" else "last_token", "device": device,
        "parameters": f"{parameters:,}", "pairs": f"{len(pairs.train):,}", "tests": f"{len(pairs.test):,}",
        "unread": json.dumps(pairs.unread) if pairs.unread else None, "stages": _ON_DEVICE, **sizes,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder.resolve().parent, prefix=f".{name}-") as staged:
        _write(Path(staged) / name, values, pairs)
        (Path(staged) / name).rename(folder)
    print(f"model   {model}, {parameters:,} parameters, on {device}", *pairs.notes, sep="\n")
    print(f"data    {len(pairs.train)} pairs to train on, {len(pairs.test)} held out")
    print(f"rows    {', '.join(rows)}: {folder}/params/{name}/rows.yaml; sizes: {folder}/params/scales/{SCALE}/")
    print(
        "Next:", f"cd {folder}", f"rewardsmith plan {name} --seed 0", f"rewardsmith run {name} --seed 0",
        f"rewardsmith compare {' '.join(f'{name}/{row}' for row in rows)}", sep="\n  ",
    )  # fmt: skip


def _write(root: Path, values: Mapping[str, Any], pairs: GatheredPairs) -> None:
    """Writes a project's files into a folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from rlhf_core.data.quarantine import write_quarantine
    from tasks.running.artifacts import write_jsonl

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    places = {f"params/scales/{SCALE}/{page}.yaml": f"{page}.yaml.j2" for page in _SCALE_PAGES}
    places |= {f"params/{values['name']}/{page}.yaml": f"{page}.yaml.j2" for page in _ROW_PAGES}
    places |= {"params.yaml": "params.yaml.j2", ".gitignore": "gitignore.j2", ".dvcignore": "dvcignore.j2"}
    for place, template in places.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(environment.get_template(template).render(values).rstrip() + "\n", encoding="utf-8")
    (root / "data").mkdir()
    for split, records in (("train", pairs.train), ("test", pairs.test)):
        write_jsonl(root / "data" / f"pairs.{split}.jsonl", records)
    for file, bad in pairs.bad.items():
        write_quarantine(root / "data" / "quarantine" / f"{file.name}.quarantine.jsonl", str(file), bad)
    reward = values["reward"]
    for own in sorted(module_files(Path.cwd(), reward.partition(":")[0])) if reward else ():
        (root / own).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(own, root / own)
    write_graph(root, matrix_folders(SCALE, values["name"]))
    _begin_tracking(root)


def _begin_tracking(root: Path) -> None:
    """Makes a folder a repository of git and DVC.

    Raises:
        RecipeError: git is missing, or one of them fails.
    """
    if shutil.which("git") is None:
        raise RecipeError("git is not installed; a project is a repository of git and DVC: install git")
    dvc = [sys.executable, "-m", "dvc"]
    quiet = {**os.environ, "DVC_NO_ANALYTICS": "true"}
    for words in (["git", "init", "-q"], [*dvc, "init", "-q"], [*dvc, "config", "core.analytics", "false"]):
        done = subprocess.run(words, cwd=root, env=quiet, capture_output=True, text=True)
        if done.returncode != 0:
            raise RecipeError(f"{' '.join(words[-3:])} failed: {done.stderr.strip()}")


def parse_columns(stated: Sequence[str]) -> dict[str, str]:
    """Returns {our field: their column} of texts such as `chosen=better`.

    Raises:
        RecipeError: a text of another form, or an unknown field.
    """
    columns, known = {}, tuple(ALIASES)
    for text in stated:
        ours, _, theirs = text.partition("=")
        if not theirs:
            raise RecipeError(f"--column is '{text}'; write it as chosen=their_name")
        if ours not in known:
            raise RecipeError(f"--column is '{text}': unknown field '{ours}'{hint(ours, known)}")
        columns[ours] = theirs
    return columns
