"""What only the cloud knows. Components pass resolved Outputs, ``gpu-serving render`` passes visible placeholders."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CloudRefs:
    """Values that renderers take and never invent; every field is plain text."""

    cluster_name: str
    cluster_endpoint: str
    cluster_certificate_authority: str
    """Base64, as EKS returns it."""
    cluster_service_cidr: str
    oidc_issuer: str
    """Host and path without ``https://``: the form that trust conditions use."""
    oidc_provider_arn: str
    model_role_arn: str


PLACEHOLDERS = CloudRefs(
    cluster_name="<cluster-name>",
    cluster_endpoint="<cluster-endpoint>",
    cluster_certificate_authority="<cluster-certificate-authority>",
    cluster_service_cidr="<cluster-service-cidr>",
    oidc_issuer="<oidc-issuer>",
    oidc_provider_arn="<oidc-provider-arn>",
    model_role_arn="<model-role-arn>",
)
