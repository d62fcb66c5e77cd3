"""Every document of a stack, from the same renderers that the components use."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from eks_gpu_serving.device_plugin_values import device_plugin_values, needs_device_plugin
from eks_gpu_serving.identity_documents import irsa_trust_document, model_read_document
from eks_gpu_serving.kuberay_values import crd_files, kuberay_values
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.user_data import POOL_TAINT, ClusterJoin, pool_labels, render_user_data
from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.ray_service import manifest, objects
from eks_gpu_serving.ray_service.names import worker_account
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.refs import CloudRefs
from eks_gpu_serving.settings import NodeGroupSettings, StackSettings

# Names of the documents of the last render into a folder.
_RECORD = ".rendered"
_USER_DATA_SUFFIX = {OperatingSystem.AL2023: "mime", OperatingSystem.BOTTLEROCKET: "toml"}


def render_all(settings: StackSettings, plan: CapacityPlan, refs: CloudRefs) -> dict[str, str]:
    """Path below the output folder -> text. What only the cloud knows comes from ``refs``."""
    return {
        **_nodes(settings, refs),
        **_identity(settings, refs),
        **_charts(settings, plan),
        **_ray_service(settings, plan, refs),
    }


def write_documents(documents: Mapping[str, str], out: Path) -> list[Path]:
    """Write each document below ``out``, which is made if it is missing. Returns the paths, sorted.

    What an earlier call wrote there and this one does not is deleted: half of another stack would be taken for this
    one's. Their names are kept in ``.rendered``; other files are left alone.
    """
    record = out / _RECORD
    earlier = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    root = out.resolve()
    for name in set(earlier) - set(documents):
        path = out / name
        if path.is_file() and path.resolve().is_relative_to(root):
            path.unlink()
    for name, text in documents.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    record.write_text("".join(f"{name}\n" for name in sorted(documents)), encoding="utf-8")
    return sorted(out / name for name in documents)


def _nodes(settings: StackSettings, refs: CloudRefs) -> dict[str, str]:
    return {
        f"nodes/{group.name}/user-data.{_USER_DATA_SUFFIX[group.operating_system]}": render_user_data(
            group.operating_system, _join(group, refs)
        )
        for group in settings.node_groups
    }


def _join(group: NodeGroupSettings, refs: CloudRefs) -> ClusterJoin | None:
    if group.ami_id is None:
        return None
    return ClusterJoin(
        name=refs.cluster_name,
        endpoint=refs.cluster_endpoint,
        certificate_authority=refs.cluster_certificate_authority,
        service_cidr=refs.cluster_service_cidr,
        labels=pool_labels(group.name, group.operating_system),
        taints=(POOL_TAINT,),
    )


def _identity(settings: StackSettings, refs: CloudRefs) -> dict[str, str]:
    trust = irsa_trust_document(
        oidc_provider_arn=refs.oidc_provider_arn,
        oidc_issuer=refs.oidc_issuer,
        namespace=settings.ray.namespace,
        service_account=worker_account(settings),
    )
    policy = model_read_document(
        model_uris=settings.model_uris,
        region=settings.region,
        kms_key_arns=settings.models_kms_key_arns,
    )
    documents = {"identity/models-trust-policy.json": _json(trust)}
    if policy is not None:
        documents["identity/models-policy.json"] = _json(policy)
    return documents


def _charts(settings: StackSettings, plan: CapacityPlan) -> dict[str, str]:
    documents = {
        "kuberay/values.yaml": _yaml(kuberay_values(settings.kuberay, settings.ray.namespace)),
        "kuberay/crd-files.yaml": _yaml(crd_files(settings.kuberay)),
    }
    if needs_device_plugin(plan.pools):
        documents["accelerators/device-plugin-values.yaml"] = _yaml(device_plugin_values())
    return documents


def _ray_service(settings: StackSettings, plan: CapacityPlan, refs: CloudRefs) -> dict[str, str]:
    config = serve_config(settings, plan, model_role_arn=refs.model_role_arn)
    return {
        "ray-service/namespace.yaml": _yaml(objects.namespace(settings)),
        "ray-service/service-account-head.yaml": _yaml(objects.head_service_account(settings)),
        "ray-service/service-account-worker.yaml": _yaml(objects.worker_service_account(settings, refs.model_role_arn)),
        "ray-service/prefetch-config-map.yaml": _yaml(objects.prefetch_config_map(settings, plan)),
        "ray-service/ray-service.yaml": _yaml(manifest.ray_service(settings, plan, config)),
    }


class _BlockDumper(yaml.SafeDumper):
    """Texts of several lines as blocks, which a reviewer can read."""


def _block_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _block_text)


def _yaml(document: object) -> str:
    return yaml.dump(document, Dumper=_BlockDumper, sort_keys=False, width=120)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
