"""A model's Ray Serve deployment options: used by the application builder and shown in ``serveConfigV2`` alike."""

import math
from collections.abc import Sequence

from ray_model_serving.contract.memory import actor_memory_bytes, ingress_memory_bytes, ingress_requests
from ray_model_serving.contract.settings import ModelSettings

# Serve stops waiting for a replica's requests this long after their own deadline.
DRAIN_MARGIN_S = 10.0
# Requests for a replica's status, and refusals under way, that Serve admits beside predictions.
STATUS_PLACES = 4
# A model's name has no capitals, so no model can have this one.
INGRESS_NAME = "Ingress"
# The ingress only passes bytes on. Above 0, since an actor without CPUs could be placed on the head.
INGRESS_CPUS = 0.25
AUTOSCALING_POLICY = "ray_model_serving.serving.autoscaling:HoldWhileStarting"
# Rounded up to whole replicas by Serve: one in a hundred.
SURGE_PERCENT = 1
# One JSON object a line, with the fields of serving.logs; for the replica's log file, Serve's stderr stays text.
LOGGING = {"encoding": "JSON"}


def most_replicas(model: ModelSettings) -> int:
    """What runs at once: ``max_replicas``, and in a roll-out with ``surge`` those that come before others go."""
    return model.max_replicas + (math.ceil(model.max_replicas * SURGE_PERCENT / 100) if model.surge else 0)


def deployment_options(model: ModelSettings) -> dict[str, object]:
    """Options in Ray Serve 2.60's names. Every queue and count is finite, and memory is whole bytes."""
    limits, scaling = model.limits, model.autoscaling
    actor_options: dict[str, object] = {"num_cpus": model.num_cpus, "memory": actor_memory_bytes(model)}
    if model.num_gpus:
        actor_options["num_gpus"] = model.num_gpus
    return {
        "name": model.name,
        # The replica keeps its limits itself and refuses what is over them, so that its status always finds a place.
        "max_ongoing_requests": limits.max_ongoing_requests + limits.max_queued_requests + STATUS_PLACES,
        "max_queued_requests": limits.max_queued_requests,
        "graceful_shutdown_timeout_s": limits.request_deadline_s + DRAIN_MARGIN_S,
        # 0: an old replica stops first. Else Serve waits for room, for as long as it takes, with the old ones at work.
        "max_surge_percent": SURGE_PERCENT if model.surge else 0,
        "ray_actor_options": actor_options,
        "logging_config": dict(LOGGING),
        "autoscaling_config": {
            "min_replicas": model.min_replicas,
            "max_replicas": model.max_replicas,
            "target_ongoing_requests": scaling.target_ongoing_requests,
            "look_back_period_s": scaling.look_back_period_s,
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
            "policy": {
                "policy_function": AUTOSCALING_POLICY,
                # A start that takes this long without one that ends hangs: it is at least twice the measured load.
                "policy_kwargs": {"max_step": scaling.max_step, "max_start_s": scaling.downscale_delay_s},
            },
        },
    }


def ingress_options(models: Sequence[ModelSettings]) -> dict[str, object]:
    """Options of the deployment that stands before the models of an application with several."""
    ongoing = sum(ingress_requests(model) for model in models) + STATUS_PLACES
    return {
        "name": INGRESS_NAME,
        "num_replicas": 1,
        "max_ongoing_requests": ongoing,
        "max_queued_requests": ongoing,
        "graceful_shutdown_timeout_s": max(model.limits.request_deadline_s for model in models) + DRAIN_MARGIN_S,
        "ray_actor_options": {"num_cpus": INGRESS_CPUS, "memory": ingress_memory_bytes(models)},
        "logging_config": dict(LOGGING),
    }
