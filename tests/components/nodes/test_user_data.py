"""User data, read back by the parsers that the images have."""

import email
import tomllib
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.operating_systems import host_cache_mount
from eks_gpu_serving.nodes.user_data import ClusterJoin, Taint, cluster_dns_ip, render_user_data
from eks_gpu_serving.refs import PLACEHOLDERS

JOIN = ClusterJoin(
    name="serving",
    endpoint="https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com",
    certificate_authority="LS0tLS1CRUdJTg==",
    service_cidr="172.20.0.0/16",
    labels={"eks-gpu-serving/pool": "l4", "team": "search"},
    taints=(Taint(key="nvidia.com/gpu", value="true", effect="NoSchedule"),),
)


def node_config(text: str) -> dict[str, Any]:
    message = email.message_from_string(text)
    parts = [part for part in message.walk() if not part.is_multipart()]
    assert message.get_content_type() == "multipart/mixed", "EKS merges its own part into a multipart message only"
    assert [part.get_content_type() for part in parts] == ["application/node.eks.aws"]
    return yaml.safe_load(str(parts[0].get_payload()))


def test_al2023_mounts_its_instance_store_as_one_array() -> None:  # UR-064
    text = render_user_data(OperatingSystem.AL2023)

    assert node_config(text) == {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}},
    }
    assert "bootstrap.sh" not in text, "the script of Amazon Linux 2 does not exist on AL2023"


def test_bottlerocket_gets_settings_and_no_shell() -> None:  # UR-064
    text = render_user_data(OperatingSystem.BOTTLEROCKET)

    settings = tomllib.loads(text)["settings"]
    (command,) = settings.pop("bootstrap-commands").values()
    init, bind = command["commands"]
    assert init == ["apiclient", "ephemeral-storage", "init"]
    assert bind[:4] == ["apiclient", "ephemeral-storage", "bind", "--dirs"]
    assert set(bind[4:]) >= {"/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"}
    assert command["essential"] is True, "a node without its instance store must not join"
    assert command["mode"] == "always", "the array is gone after a stop and has to be made again"
    assert settings == {}, "EKS merges the cluster itself; a second copy could contradict it"
    assert "#!" not in text


def test_the_directory_that_pods_mount_is_on_the_instance_store() -> None:
    bound = tomllib.loads(render_user_data(OperatingSystem.BOTTLEROCKET))["settings"]["bootstrap-commands"]
    (command,) = bound.values()

    assert host_cache_mount(OperatingSystem.BOTTLEROCKET) in command["commands"][1]
    assert host_cache_mount(OperatingSystem.BOTTLEROCKET).startswith("/mnt/"), "only these may be bound"
    assert host_cache_mount(OperatingSystem.AL2023) == "/mnt/k8s-disks/0", "where nodeadm mounts RAID0"


def test_an_own_al2023_image_is_told_its_cluster_labels_and_taints() -> None:
    spec = node_config(render_user_data(OperatingSystem.AL2023, JOIN))["spec"]

    assert spec["cluster"] == {
        "name": JOIN.name,
        "apiServerEndpoint": JOIN.endpoint,
        "certificateAuthority": JOIN.certificate_authority,
        "cidr": JOIN.service_cidr,
    }
    assert spec["kubelet"]["flags"] == [
        "--node-labels=eks-gpu-serving/pool=l4,team=search",
        "--register-with-taints=nvidia.com/gpu=true:NoSchedule",
    ]
    assert spec["instance"]["localStorage"]["strategy"] == "RAID0"


def test_an_own_bottlerocket_image_is_told_its_cluster_labels_and_taints() -> None:
    kubernetes = tomllib.loads(render_user_data(OperatingSystem.BOTTLEROCKET, JOIN))["settings"]["kubernetes"]

    assert kubernetes == {
        "cluster-name": JOIN.name,
        "api-server": JOIN.endpoint,
        "cluster-certificate": JOIN.certificate_authority,
        "cluster-dns-ip": "172.20.0.10",
        "node-labels": dict(JOIN.labels),
        "node-taints": {"nvidia.com/gpu": ["true:NoSchedule"]},
    }


@pytest.mark.parametrize("system", OperatingSystem)
def test_a_join_without_labels_and_taints_is_well_formed(system: OperatingSystem) -> None:
    bare = ClusterJoin(name="c", endpoint="https://c", certificate_authority="LS0=", service_cidr="10.100.0.0/16")

    text = render_user_data(system, bare)

    if system is OperatingSystem.AL2023:
        assert node_config(text)["spec"]["kubelet"] == {"flags": []}
    else:
        assert set(tomllib.loads(text)["settings"]["kubernetes"]) & {"node-labels", "node-taints"} == set()


def test_text_that_needs_quoting_survives() -> None:
    odd = ClusterJoin(name='a "b" \\ c', endpoint="e", certificate_authority="c", service_cidr="10.0.0.0/16")

    assert (
        tomllib.loads(render_user_data(OperatingSystem.BOTTLEROCKET, odd))["settings"]["kubernetes"]["cluster-name"]
        == 'a "b" \\ c'
    )
    assert node_config(render_user_data(OperatingSystem.AL2023, odd))["spec"]["cluster"]["name"] == 'a "b" \\ c'


def test_cluster_dns_is_the_tenth_address_of_the_service_range() -> None:
    assert cluster_dns_ip("10.100.0.0/16") == "10.100.0.10"
    assert cluster_dns_ip(PLACEHOLDERS.cluster_service_cidr) == "<tenth address of cluster-service-cidr>"
    with pytest.raises(ValueError, match="not-a-range"):
        cluster_dns_ip("not-a-range")


@pytest.mark.parametrize("join", [None, JOIN], ids=["eks-image", "own-image"])
@pytest.mark.parametrize("system", OperatingSystem)
def test_golden_user_data(system: OperatingSystem, join: ClusterJoin | None, snapshot: SnapshotAssertion) -> None:
    text = render_user_data(system, join)

    assert text == snapshot, "another text makes EKS replace every node of every group"
    assert len(text.encode()) < 16_384, "EC2 takes no more"
