"""The application builder that a Serve config names: ``import_path: ray_model_serving.app:build``."""

from typing import TYPE_CHECKING, Any

from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.application import compose

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: dict[str, Any]) -> "Application":
    """The Serve application of ``ServingSettings`` in plain form. Raises SettingsError with every problem.

    Every model answers under its own ``route``, as the client sees it. The application's ``route_prefix`` is ``/`` or,
    with a single model, may be that model's route.
    """
    return compose(ServingSettings.from_mapping(args))
