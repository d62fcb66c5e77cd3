"""Typed errors, in the one shape that both commands print with ``--json``."""

from collections.abc import Mapping


class ModelServingError(Exception):
    """A failure with a cause that a person can act on.

    ``kind`` is a stable snake_case word for machines, ``permanent`` says whether a retry can help, and ``hint`` what
    to do. Subclasses fix ``kind`` and ``permanent``.
    """

    kind: str = "error"
    permanent: bool = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries in Ray; the default pickling would lose the keyword-only hint.
        return (_rebuild, (type(self), self.message, self.hint))

    def to_json(self) -> Mapping[str, object]:
        """The document of the commands' ``--json`` error output."""
        return {"error": {"kind": self.kind, "message": self.message, "permanent": self.permanent, "hint": self.hint}}


def _rebuild(error_class: type[ModelServingError], message: str, hint: str) -> ModelServingError:
    return error_class(message, hint=hint)
