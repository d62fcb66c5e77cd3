"""The whole composition under the mocks: every environment, as an update and as a preview."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pulumi
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from eks_gpu_serving import GpuServingStack, GpuServingStackArgs
from harness import PREVIEW_MODES, UNKNOWN, Graph, Record, run
from harness.properties import OURS, collisions, same_resources, violations
from harness.texts import walk

GRAPH = Callable[..., Graph]
SERVICE = "kubernetes:ray.io/v1:RayService"
RELEASE = "kubernetes:helm.sh/v3:Release"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
PROVIDER = "pulumi:providers:kubernetes"


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_every_environment_keeps_the_rules_of_every_graph(
    preview: bool, environment: dict[str, Any], graph: GRAPH
) -> None:
    tags = {**environment["tags"], "environment": environment["environment"]}
    assert violations(graph(environment, preview=preview), tags=tags) == []


def test_a_preview_shows_every_resource(environment: dict[str, Any], builder: Callable[..., GpuServingStack]) -> None:
    assert same_resources(lambda: builder(environment)) == []


def test_names_of_the_resources(environment: dict[str, Any], graph: GRAPH, snapshot: SnapshotAssertion) -> None:
    golden = snapshot.use_extension(JSONSnapshotExtension)
    names = [f"{type_} {name}" for type_, name in graph(environment).names()]
    assert names == golden, "a changed name replaces what is deployed"


def test_two_stacks_side_by_side_do_not_collide(small_stack: Any, builder: Callable[..., GpuServingStack]) -> None:
    def one(name: str) -> GpuServingStack:
        namespaces = {"ray": {**small_stack()["ray"], "namespace": name}, "kuberay": {"namespace": f"{name}-system"}}
        return builder(small_stack(name=name, **namespaces), name)

    assert collisions(one) == []


def component(found: Graph, name: str) -> Record:
    return found.one(f"{OURS}{name}")


def below(found: Graph, ancestor: Record) -> set[str]:
    return {record.urn for record in found if ancestor in found.ancestors(record) and record.custom}


def test_the_application_goes_before_the_operator_and_both_before_the_nodes(
    environment: dict[str, Any], graph: GRAPH
) -> None:
    found = graph(environment)
    application, operator = component(found, "RayModelService"), component(found, "KubeRayOperator")
    needed = below(found, operator) | {group.urn for group in found.of_type(NODE_GROUP)}
    assert needed <= set(application.dependencies), "deleted later, the operator leaves a RayService on its finalizer"
    system = below(found, component(found, "ServingCluster"))
    assert system <= set(operator.dependencies), "the operator runs on the system nodes"


def test_workers_start_after_the_role_may_read_the_models(environment: dict[str, Any], graph: GRAPH) -> None:
    found = graph(environment)
    policy = found.one("aws:iam/rolePolicy:RolePolicy")
    assert policy.urn in component(found, "RayModelService").dependencies


def test_everything_in_the_cluster_goes_through_the_stacks_own_provider(
    environment: dict[str, Any], graph: GRAPH
) -> None:
    found = graph(environment)
    provider = found.one(PROVIDER)
    assert "kubeconfig" in provider.secret_paths
    inside = [record for record in found if record.type.startswith("kubernetes:")]
    assert inside
    for record in inside:
        given = record.provider or record.providers.get("kubernetes", "")
        assert given.startswith(f"{provider.urn}::"), f"{record} would land in the cluster of somebody's shell"


def test_a_new_model_version_changes_the_prefetch_list_in_place(environment: dict[str, Any], graph: GRAPH) -> None:
    provider = graph(environment).one(PROVIDER)
    assert str(provider.inputs["enableConfigMapMutable"]).lower() == "true", "replaced, it would be gone for a moment"


def test_the_role_is_for_the_account_of_the_workers(environment: dict[str, Any], graph: GRAPH) -> None:
    found = graph(environment)
    service = found.one(SERVICE).inputs
    (worker,) = {
        group["template"]["spec"]["serviceAccountName"]
        for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    role = found.one("aws:iam/role:Role", "serving-models-role")
    subject = f"system:serviceaccount:{service['metadata']['namespace']}:{worker}"
    assert subject in [value for _, value in walk(dict(role.inputs))], "IRSA would refuse the pods"


def test_every_pool_has_nodes_that_its_workers_ask_for_and_tolerate(environment: dict[str, Any], graph: GRAPH) -> None:
    found = graph(environment)
    groups = found.one(SERVICE).inputs["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    for group in groups:
        (nodes,) = [n for n in found.of_type(NODE_GROUP) if n.name == f"serving-{group['groupName']}-nodes"]
        pod = group["template"]["spec"]
        assert pod["nodeSelector"].items() <= nodes.inputs["labels"].items()
        assert {taint["key"] for taint in nodes.inputs["taints"]} == {t["key"] for t in pod["tolerations"]}
        scaling = nodes.inputs["scalingConfig"]
        assert scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]
        assert scaling["desiredSize"] >= 1, "nothing here scales a node group up from zero for the replicas at rest"


def test_the_device_plugin_is_installed_where_the_image_has_none(small_stack: Any, graph: GRAPH) -> None:
    plugin = f"{OURS}NvidiaDevicePlugin"
    assert graph(small_stack()).of_type(plugin)
    assert not graph(small_stack(pool={"operating_system": "bottlerocket"})).of_type(plugin), "it brings its own"


def test_an_existing_cluster_is_used_and_not_changed(small_stack: Any, graph: GRAPH) -> None:
    found = graph(small_stack(cluster={"existing_name": "shared"}))
    assert found.of_type("eks:index:Cluster") == []
    assert len(found.of_type(NODE_GROUP)) == 1
    assert found.one(NODE_GROUP).inputs["clusterName"] == "shared"


def test_an_update_hands_out_what_others_need_and_a_preview_what_it_knows(small_stack: Any, graph: GRAPH) -> None:
    updated, previewed = (component(graph(small_stack(), preview=p), "GpuServingStack").outputs for p in PREVIEW_MODES)
    assert updated is not None
    assert previewed is not None
    assert set(updated) == {"cluster_name", "service_name", "namespace", "model_role_arn", "kubeconfig"}
    assert (updated["service_name"], updated["namespace"]) == ("gpu-serving-dev", "ray-serving")
    assert updated["model_role_arn"].startswith("arn:aws:iam::")
    assert previewed["model_role_arn"] == UNKNOWN
    assert previewed["service_name"] == updated["service_name"]


def problems(mapping: dict[str, Any], builder: Callable[..., GpuServingStack]) -> list[str]:
    with pytest.raises(pulumi.InputPropertiesError) as refused:
        run(lambda: builder(mapping))
    found = [error["property_path"] for error in refused.value.errors or []]
    assert all(path in str(refused.value) for path in found), "a program shows the text and nothing else"
    return found


def test_bad_settings_are_refused_all_at_once(small_stack: Any, builder: Callable[..., GpuServingStack]) -> None:
    mapping = small_stack(
        pool={"instance_type": "m7i.large"},
        model={"uri": "http://models/", "min_replicas": 3},
        ray={"image": "registry.example/serving:2.59.0"},
    )
    assert problems(mapping, builder) == [
        "node_groups[0].instance_type",
        "models[0].uri",
        "models[0].min_replicas",
        "ray.image",
    ]


def test_a_stack_that_does_not_fit_is_refused_before_anything_is_made(
    small_stack: Any, builder: Callable[..., GpuServingStack]
) -> None:
    mapping = small_stack(model={"max_replicas": 4, "host_peak_gib": 64})
    assert problems(mapping, builder) == ["node_groups[0] (l4)", "node_groups[0] (l4).max_nodes"]


def as_floats(value: Any) -> Any:
    """Pulumi's wire format has one kind of number."""
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_what_a_host_for_another_language_delivers_makes_the_same_resources(environment: dict[str, Any]) -> None:
    given: Any = as_floats(environment)
    native = run(lambda: GpuServingStack("serving", GpuServingStackArgs(**environment)))
    hosted = run(lambda: GpuServingStack("serving", given))
    assert {r.urn: r.inputs for r in hosted} == {r.urn: r.inputs for r in native}


@pytest.mark.parametrize(("region", "partition"), [("eu-west-1", "aws"), ("us-gov-west-1", "aws-us-gov")])
def test_the_partition_follows_the_region_everywhere(
    region: str, partition: str, small_stack: Any, graph: GRAPH
) -> None:
    found = graph(small_stack(region=region))
    arns = [record.inputs["policyArn"] for record in found.of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")]
    assert arns
    statements = json.loads(found.one("aws:iam/rolePolicy:RolePolicy").inputs["policy"])["Statement"]
    assert all(arn.startswith(f"arn:{partition}:") for arn in [*arns, statements[0]["Resource"]])


def test_an_image_of_ones_own_is_told_how_to_join(small_stack: Any, graph: GRAPH) -> None:
    found = graph(small_stack(pool={"ami_id": "ami-0123456789abcdef0"}))
    template = found.one("aws:ec2/launchTemplate:LaunchTemplate", "serving-l4-template")
    text = base64.b64decode(template.inputs["userData"]).decode()
    assert "apiServerEndpoint" in text


def test_system_nodes_wait_for_the_cluster_and_the_application_for_the_device_plugin(
    small_stack: Any, graph: GRAPH
) -> None:
    found = graph(small_stack())
    cluster = found.one("eks:index:Cluster")
    assert cluster.urn in found.one("aws:eks/nodeGroup:NodeGroup", "serving-cluster-system-nodes").dependencies
    plugin = found.one("kubernetes:helm.sh/v3:Release", "serving-device-plugin-release")
    service = found.one("eks-gpu-serving:index:RayModelService")
    assert plugin.urn in service.dependencies, "without the plugin no node offers a GPU, and the update waits in vain"
