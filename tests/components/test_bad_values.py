"""Values that a cloud, Kubernetes or Ray would refuse later are refused in the stack file."""

from typing import Any

import pytest

from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.problems import SettingsError

BAD: list[tuple[dict[str, Any], str]] = [
    ({"tags": {"AWS:team": "x"}}, "tags.AWS:team: keys that begin with aws:"),
    ({"tags": {"k" * 129: "x"}}, "got a key of 129 characters"),
    ({"tags": {"": "x"}}, "got a key of 0 characters"),
    ({"tags": {"team": "v" * 257}}, "tags.team: got a value of 257 characters"),
    ({"tags": {"team": "a\nb"}}, "tags.team: keys and values have"),
    ({"tags": {f"k{n}": "" for n in range(41)}}, "tags: got 41 tags, at most 40"),
    ({"cluster": {"existing_name": "-a"}}, "cluster.existing_name: got '-a', must match"),
    ({"cluster": {"existing_name": "a" * 101}}, "cluster.existing_name: got"),
    ({"cluster": {"existing_name": ""}}, "cluster.existing_name: got ''"),
    ({"cluster": {"kubernetes_version": "1.29"}}, "got '1.29', must be one of 1.34, 1.35, 1.36, quoted"),
    ({"cluster": {"private_subnet_ids": ["subnet-0123456789abcdef0", "net"]}}, "private_subnet_ids[1]: got 'net'"),
    ({"cluster": {"vpc_id": "vpc-0123456789abcdef0"}}, "a given vpc_id needs the subnets"),
    ({"cluster": {"public_access_cidrs": ["10.0.0.1/8"]}}, "public_access_cidrs[0]: got '10.0.0.1/8'"),
    ({"cluster": {"public_access_cidrs": ["10.0.0.1"]}}, "must be a range"),
    (
        {"cluster": {"endpoint_public_access": False, "public_access_cidrs": ["192.0.2.0/24"]}},
        "cluster.public_access_cidrs: has no meaning without a public endpoint",
    ),
    ({"cluster": {"system_instance_type": "m7i.xlrage"}}, "did you mean 'm7i.xlarge'?"),
    ({"models_kms_key_arns": ["alias/models"]}, "models_kms_key_arns[0]: got 'alias/models', must match"),
    ({"kuberay": {"crd_source": ""}}, "kuberay.crd_source: got ''"),
    ({"kuberay": {"chart_version": "2.0.0"}}, "kuberay.chart_version: got '2.0.0'"),
    ({"ray": {"image": "registry/a b:1-ray2.60.0"}}, "ray.image: got 'registry/a b:1-ray2.60.0', must be an image"),
    ({"ray": {"image": "r/a:1-ray2.60.0;id"}}, "must be an image reference"),
    ({"ray": {"image": "r/A:1-ray2.60.0"}}, "must be an image reference"),
    ({"ray": {"version": "2.59.0"}}, "ray.version: got '2.59.0', must match"),
    ({"model": {"uri": "s3://models/a\nb/"}}, "models[0].uri: got 's3://models/a\\nb/', a model URI has no line"),
    ({"model": {"uri": "file:///"}}, "not the root"),
    ({"model": {"include": [""]}}, "models[0].include[0]: got ''"),
    ({"model": {"route": "/-/healthz"}}, "models[0].route: got '/-/healthz', must not lie under /-/"),
    ({"model": {"num_cpus": 0.00001}}, "must be a multiple of 0.0001"),
    ({"model": {"num_gpus": 0.33333}}, "must be a multiple of 0.0001"),
    ({"pool": {"ami_id": "ami-1"}}, "node_groups[0].ami_id: got 'ami-1', must match"),
    ({"pool": {"root_volume_gib": 19}}, "node_groups[0].root_volume_gib: got 19, must be at least 20"),
    ({"pool": {"instance_type": "m5.large"}}, "instance_type: got 'm5.large', is not in the table"),
    ({"environment": "Prod"}, "got 'Prod', must be one of dev, staging, prod; did you mean 'prod'?"),
]


@pytest.mark.parametrize(("given", "expected"), BAD, ids=range(len(BAD)))
def test_what_a_cloud_would_refuse_is_refused_with_its_key_and_once(small_stack, given, expected) -> None:
    given = {key: {**small_stack()["ray"], **value} if key == "ray" else value for key, value in given.items()}
    with pytest.raises(SettingsError) as refused:
        StackSettings.from_mapping(small_stack(**given))
    text = str(refused.value)
    assert expected in text
    for line in text.splitlines()[1:]:
        assert line.count("got ") <= 1, "what was given is said once"
    assert "1 problem\n" in text
