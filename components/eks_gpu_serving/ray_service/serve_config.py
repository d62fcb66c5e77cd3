"""``serveConfigV2``: the Serve application, its settings and its deployments.

KubeRay applies a change of it in place. Whatever a new model version changes is here or in the prefetch ConfigMap.
"""

import dataclasses
from typing import Any

import yaml

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.deployments import deployment_options, ingress_options
from ray_model_serving.contract.paths import SERVE_PORT

APPLICATION_BUILDER = "ray_model_serving.app:build"
# How long an idle connection is kept: Ray Serve 2.60's own default, written down because the idle time-out of a load
# balancer has to stay below it.
KEEP_ALIVE_TIMEOUT_S = 90


def serve_config(settings: StackSettings, plan: CapacityPlan, *, model_role_arn: str | None) -> str:
    """The YAML text. ``model_role_arn`` is the identity without which a replica refuses to start."""
    return yaml.safe_dump(_document(settings, plan, model_role_arn), sort_keys=False, width=120)


def _document(settings: StackSettings, plan: CapacityPlan, model_role_arn: str | None) -> dict[str, Any]:
    serving = dataclasses.replace(plan.serving, expected_role_arn=model_role_arn)
    several = len(serving.models) > 1
    deployments = [deployment_options(model) for model in serving.models]
    application = {
        "name": settings.service_name,
        # One model is the whole application; several stand behind an ingress that tells them apart by their routes.
        "route_prefix": "/" if several else serving.models[0].route,
        "import_path": APPLICATION_BUILDER,
        "args": serving.to_mapping(),
        "deployments": [*deployments, ingress_options(serving.models)] if several else deployments,
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": "0.0.0.0",  # noqa: S104 (the pod's own network)
            "port": SERVE_PORT,
            "request_timeout_s": plan.timeouts.proxy_request_s,
            "keep_alive_timeout_s": KEEP_ALIVE_TIMEOUT_S,
        },
        "applications": [application],
    }
