"""Composes the Serve application: one deployment a model, and an ingress where there are several."""

from typing import Any

from ray import serve
from ray.serve import Application, Deployment

from ray_model_serving.contract.deployments import deployment_options, ingress_options
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.ingress import Ingress
from ray_model_serving.serving.replica import ModelReplica
from ray_model_serving.serving.tracing import check_available


def compose(settings: ServingSettings) -> Application:
    """A single model answers HTTP itself, which saves a hop.

    Raises :class:`TracesMissingError` where traces are asked for and can't be sent.
    """
    if settings.trace_endpoint:
        check_available()
    models = [
        _deployment(ModelReplica, deployment_options(model)).bind(settings, model.name) for model in settings.models
    ]
    if len(models) == 1:
        return models[0]
    return _deployment(Ingress, ingress_options(settings.models)).bind(
        settings.models, *models, trace_endpoint=settings.trace_endpoint
    )


def _deployment(cls: type, options: dict[str, Any]) -> Deployment:
    return serve.deployment(**options)(cls)
