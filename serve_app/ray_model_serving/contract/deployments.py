"""A model's Ray Serve deployment options: used by the application builder and shown in ``serveConfigV2`` alike."""

from ray_model_serving.contract.memory import actor_memory_bytes
from ray_model_serving.contract.settings import ModelSettings

# Serve stops waiting for a replica's requests this long after their own deadline.
DRAIN_MARGIN_S = 10.0


def deployment_options(model: ModelSettings) -> dict[str, object]:
    """Options in Ray Serve 2.60's names. Every queue and count is finite, and memory is whole bytes."""
    limits, scaling = model.limits, model.autoscaling
    actor_options: dict[str, object] = {"num_cpus": model.num_cpus, "memory": actor_memory_bytes(model)}
    if model.num_gpus:
        actor_options["num_gpus"] = model.num_gpus
    return {
        "name": model.name,
        "max_ongoing_requests": limits.max_ongoing_requests,
        "max_queued_requests": limits.max_queued_requests,
        "graceful_shutdown_timeout_s": limits.request_deadline_s + DRAIN_MARGIN_S,
        "ray_actor_options": actor_options,
        "autoscaling_config": {
            "min_replicas": model.min_replicas,
            "max_replicas": model.max_replicas,
            "target_ongoing_requests": scaling.target_ongoing_requests,
            "look_back_period_s": scaling.look_back_period_s,
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
        },
    }
