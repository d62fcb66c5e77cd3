"""What Kubernetes and container registries accept: names, namespaces and image references."""

import re

# RFC 1123 label: the name of an object.
OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Made with the device plugin's release, so it can't be made a second time.
DEVICE_PLUGIN_NAMESPACE = "nvidia-device-plugin"

# OCI distribution specification 1.1: host with an optional port, path, tag, digest.
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?{_PATH}(?:/{_PATH})*"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def namespace_problem(text: str) -> str | None:
    """Why a namespace can't be one that a stack creates and destroys, or None."""
    if text in ("default", DEVICE_PLUGIN_NAMESPACE) or text.startswith("kube-"):
        return "is not the stack's own: it would be made, and deleted with the stack; choose another name"
    return None


def image_problem(text: str) -> str | None:
    """What is wrong with the reference of an image, or None."""
    return None if _IMAGE.fullmatch(text) else "must be an image reference such as registry.example/path:tag"


def image_tag(text: str) -> str:
    """The tag of a valid reference, empty where it has none."""
    found = _IMAGE.fullmatch(text)
    return (found["tag"] or "") if found else ""
