"""A model engineer's class by its import path, for replicas, jobs and commands alike."""

import importlib

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.model import ServedModel

_HINT = "write module:Class of a ServedModel that is installed where it runs, such as the serving image"


class BadModelClassError(ModelServingError):
    """The import path does not lead to a class of a model that can be made."""

    kind = "bad_model_class"


def new_model(import_path: str, *, max_batch_size: int = 1) -> ServedModel:
    """An instance of ``module:Class``. Raises :class:`BadModelClassError`, whatever the import or the class raises."""
    module_name, separator, class_name = import_path.partition(":")
    if not (separator and module_name and class_name):
        raise BadModelClassError(f"model_class: got {import_path!r}, must be module:Class", hint=_HINT)
    try:
        found: object = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # a module of somebody else may raise anything
        raise BadModelClassError(
            f"model_class {import_path!r} can't be imported: {_said(error)}", hint=_HINT
        ) from error
    if not (isinstance(found, type) and issubclass(found, ServedModel)):
        raise BadModelClassError(f"model_class {import_path!r} is not a subclass of ServedModel", hint=_HINT)
    try:
        model = found()
    except (Exception, SystemExit) as error:  # an abstract class, too
        raise BadModelClassError(
            f"model_class {import_path!r} can't be created without arguments: {_said(error)}", hint=_HINT
        ) from error
    model.max_batch_size = max_batch_size
    return model


def _said(error: BaseException) -> str:
    return f"{error} ({type(error).__name__})"
