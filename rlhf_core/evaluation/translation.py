"""BLEU of translations, as sacrebleu counts it."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.errors import DataError


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU in percent (13a tokens, up to 4-grams, exponential smoothing); 0 without any translation.

    Args:
        translations: one per reference.
        references: the reference translation of each.

    Raises:
        DataError: another number of references than translations.

    Source: Papineni et al. 2002; Post 2018.
    """
    if len(translations) != len(references):
        raise DataError(f"{len(translations)} translations and {len(references)} references")
    if not translations:
        return 0.0
    import sacrebleu

    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)
