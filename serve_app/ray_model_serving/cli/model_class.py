"""A model engineer's class by its import path."""

import importlib

from ray_model_serving.cli.output import UsageError
from ray_model_serving.model import ServedModel


def new_model(import_path: str) -> ServedModel:
    """An instance of ``module:Class``. Raises :class:`UsageError` where that is no ServedModel."""
    module_name, separator, class_name = import_path.partition(":")
    if not separator:
        raise UsageError(f"--model-class: got {import_path!r}, must be module:Class")
    try:
        found: object = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # a module of somebody else may raise anything
        raise UsageError(f"--model-class: {import_path!r} can't be imported: {_said(error)}") from error
    if not (isinstance(found, type) and issubclass(found, ServedModel)):
        raise UsageError(f"--model-class: {import_path!r} is no subclass of ray_model_serving.model.ServedModel")
    try:
        model = found()
    except (Exception, SystemExit) as error:  # an abstract class, too
        raise UsageError(f"--model-class: {import_path!r} can't be made without arguments: {_said(error)}") from error
    model.max_batch_size = 1
    return model


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
