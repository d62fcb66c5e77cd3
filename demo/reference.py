"""The same model computed by somebody else's code: sentence-transformers, from the package's own files."""

from collections.abc import Sequence
from pathlib import Path


def reference_vectors(model: Path, sentences: Sequence[str]) -> list[list[float]]:
    """One 384-number vector for each sentence, on the CPU in float32."""
    # Here and not above: the import takes seconds and the demo has things to show before it.
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    return encoder.encode(list(sentences), show_progress_bar=False).tolist()


def largest_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Largest absolute difference of two sets of vectors. Raises ValueError where their shapes differ."""
    return max(
        abs(a - b) for vector, other in zip(ours, theirs, strict=True) for a, b in zip(vector, other, strict=True)
    )
