"""BLEU of a set of translations, through sacrebleu (ALARM, §4.1)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.errors import DataError


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU in percent with sacrebleu's default settings, one reference each.

    Args:
        translations: [sentences].
        references: [sentences].

    Raises:
        DataError: no sentence, or numbers that differ.
    """
    import sacrebleu

    if not translations or len(translations) != len(references):
        raise DataError(f"BLEU of {len(translations)} translations against {len(references)} references")
    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)
