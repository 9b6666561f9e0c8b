"""Parts common to all kinds of data spec: the sets that the stage `prepare` writes, and the folder of real data."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import QuarantineSummary, Screening
from rlhf_core.data.sources import DirectorySource, HuggingFaceSource, Source
from rlhf_core.errors import DataError
from rlhf_core.testbed.annotator import CALIBRATED
from tasks.params.data import DrawnSpec, RealSpec
from tasks.running.artifacts import digest

#: Directory that a `directory` source reads when its spec names none.
DATA_VARIABLE = "REWARDSMITH_DATA"

#: Columns of preference pairs that stages read.
READ_COLUMNS = (
    "id", "source", "prompt", "chosen", "rejected", "messages", "history", "score_chosen", "score_rejected",
)  # fmt: skip
#: Rows of each file, by name without `.jsonl`.
Sets = dict[str, list[dict[str, Any]]]


def benchmark_row(row: Mapping[str, Any], turns: list[str], baseline: list[str], metas: list[Any]) -> dict[str, Any]:
    """Returns one benchmark item: user turns, the baseline's answer per turn, and what the gold judge knows of each."""
    history = {"messages": row["messages"]} if row.get("messages") is not None else {}
    return {"id": row["id"], "turns": turns, "baseline": baseline, "metas": metas, "source": row["source"], **history}


def with_prompt(row: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Returns a row that asks a prompt of this project's making, without the messages of another one."""
    return {name: value for name, value in row.items() if name not in ("messages", "history")} | {"prompt": prompt}


def pair_example(row: Mapping[str, Any], clauses: Sequence[Any] = ()) -> dict[str, Any]:
    """Returns a pair's chosen response as an example that reward models colour, with its true clauses where known."""
    kept = {"id": row["id"], "prompt": row["prompt"], "response": row["chosen"]}
    return kept | {"kind": "normal", "true_clauses": list(clauses)}


def drawn_sets(world: Any, spec: DrawnSpec, version: int, *shares: float) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets that every world of the testbed draws alike, and facts about them for data.json; `shares` are of
    its SFT examples.

    The facts are the Bayes ceiling of each split and the annotator where its temperature is found by calibration.
    """
    from rlhf_core.testbed import annotator_of, bayes_ceiling

    seed, rows, annotator = spec.seed, spec.rows, annotator_of(spec.annotator, world)
    pairs = {
        split: world.preference_pairs(rows[f"preference_{split}"], seed + offset, annotator, draw)
        for split, draw, offset in (("train", "train", 0), ("validation", "train", 1), ("ood", "ood", 2))
    }
    ceilings = {split: bayes_ceiling(drawn, annotator) for split, drawn in pairs.items()}
    calibrated = {"annotator": asdict(annotator)} if spec.annotator.get("temperature") == CALIBRATED else {}
    sets = {
        "sft": world.sft_examples(rows["sft"], seed, *shares),
        "sft.validation": world.sft_examples(rows["sft_validation"], seed + 1, *shares),
        "prompts": world.prompts(rows["prompts"], seed, "train"),
        **{f"preference.{split}": drawn for split, drawn in pairs.items()},
        "examples": [pair_example(row, row["meta"]["chosen_clauses"]) for row in pairs["validation"][:8]],
    }
    return sets, {"world": {"version": version, "seed": spec.world_seed}, **calibrated, "bayes_ceiling": ceilings}


def alpaca_calibration(file: str, items: Sequence[Mapping[str, Any]], first: int) -> list[dict[str, Any]]:
    """Returns AlpacaEval's published calibration rows (`df_gamed.csv`) under the ids of a benchmark's items.

    Args:
        file: a path, or a hub address such as hf://datasets/tatsu-lab/alpaca_eval/df_gamed.csv.
        items: the benchmark, whose ids end in the instruction's number.
        first: the number of the first instruction in these ids; the file counts from 0.

    Raises:
        DataError: a file that cannot be read, or that says nothing of an item.
    """
    from rlhf_core.evaluation.length_controlled import official_index, read_calibration_rows

    ids = {official_index(item["id"]) - first: str(item["id"]) for item in items}
    frame = read_calibration_rows(file)
    known = frame[frame["index"].isin(list(ids))]
    missing = sorted(set(ids) - set(known["index"].tolist()))
    if missing:
        raise DataError(
            f"no calibration row for {len(missing)} of {len(ids)} instructions, the first is '{ids[missing[0]]}'",
            file=file, field="index", remedy="Use the benchmark's published instructions, or leave the file out",
        )  # fmt: skip
    return [
        {
            "id": ids[int(row["index"])],
            "preference": None if row["preference"] != row["preference"] else float(row["preference"]),
            "std_delta_len": float(row["std_delta_len"]),
            "instruction_difficulty": float(row["instruction_difficulty"]),
            "not_gamed_baseline": bool(row["not_gamed_baseline"]),
        }
        for row in known.to_dict("records")
    ]


def data_directory(named: str | None) -> Path:
    """Returns the folder of real data: the one that a data spec names, else that of REWARDSMITH_DATA.

    Raises:
        DataError: neither names one.
    """
    root = named or os.environ.get(DATA_VARIABLE)
    if not root:
        raise DataError(
            "the data spec names no directory",
            remedy=f"Set the environment variable {DATA_VARIABLE} to the folder with <name>.<split>.jsonl.gz files",
        )
    return Path(root)


def open_directory(named: str | None, quarantine: Path, max_bad_share: float) -> DirectorySource:
    """Returns the sets of the folder of real data, whose bad rows go to `quarantine`."""
    return DirectorySource(data_directory(named), Screening(quarantine, max_bad_share))


def source_of(spec: RealSpec, quarantine: Path) -> DirectorySource | HuggingFaceSource:
    """Returns the sets of a spec's folder or hub, whose bad rows go to `quarantine`."""
    if spec.source == "huggingface":
        return HuggingFaceSource(spec.sets, Screening(quarantine, spec.max_bad_share))
    return open_directory(spec.directory, quarantine, spec.max_bad_share)


def screened(summary: QuarantineSummary) -> dict[str, Any]:
    """Returns the findings of screening a file, without paths of this machine."""
    path = summary.quarantine_file
    places = {"file": Path(summary.file).name, "quarantine_file": f"quarantine/{Path(path).name}" if path else None}
    return {**asdict(summary), **places, "quarantined": summary.quarantined}


def file_digests(root: Path, sets: Collection[str]) -> dict[str, str]:
    """Returns the digest of every file of some sets, by file name."""
    return {path.name: digest(path) for path in sorted(root.iterdir()) if path.name.split(".")[0] in sets}


def source_facts(source: DirectorySource | HuggingFaceSource, sets: Sequence[str]) -> dict[str, Any]:
    """Returns facts of data.json about sets read from a folder or a hub."""
    digests = {"digests": file_digests(Path(source.root), sets)} if isinstance(source, DirectorySource) else {}
    return {"quarantine": [screened(summary) for summary in source.summaries], "sets": list(sets), **digests}


def unread_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the columns of preference pairs that nothing here reads; rewards of your own may."""
    return list(dict.fromkeys(name for row in rows for name in row if name not in READ_COLUMNS))


def unread_of_spec(spec: RealSpec) -> list[str]:
    """Returns the columns that `init` left out, and those of a folder's pairs that nothing reads (by first rows)."""
    found = list(spec.unread)
    if spec.source == "directory":
        source = DirectorySource(data_directory(spec.directory))
        for name in spec.preference:
            found += unread_columns(row for _, row in read_lines(source.file(name, "train"), most=20).rows)
    return list(dict.fromkeys(found))


def split_off(rows: list[dict[str, Any]], share: float, what: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the training rows and, from the end, a share for validation of at least one.

    Raises:
        DataError: too few rows.
    """
    held_out = max(1, round(share * len(rows)))
    if held_out >= len(rows):
        raise DataError(
            f"{len(rows)} rows leave none for training besides {held_out} for validation",
            file=what,
            remedy="Give more rows or a smaller validation_share",
        )
    return rows[:-held_out], rows[-held_out:]


def together(source: Source, names: Sequence[str], split: str, kind: str) -> list[dict[str, Any]]:
    """Returns the rows of several sets one after the other.

    Raises:
        DataError: two of them have the same id, by which references and answers are kept.
    """
    rows: list[dict[str, Any]] = []
    owners: dict[str, str] = {}
    for name in names:
        for row in source.load(name, split, kind):
            if row["id"] in owners:
                raise DataError(
                    f"'{row['id']}' is an id of '{owners[row['id']]}', too",
                    file=f"{name}.{split}",
                    field="id",
                    remedy="Give the rows of each set ids of their own",
                )
            owners[row["id"]] = name
            rows.append(row)
    return rows
