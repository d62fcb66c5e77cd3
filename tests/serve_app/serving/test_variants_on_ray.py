"""Variants on real Ray Serve, with real weights."""

import re
from pathlib import Path

from ray_model_serving.app import build


def mapped_files(pid: int) -> set[str]:
    """Weights that a process has mapped."""
    return set(re.findall(r"/\S+\.safetensors", Path(f"/proc/{pid}/maps").read_text()))


def test_variants_take_turns_in_the_memory_of_one_and_answer_with_their_own_weights(
    running_serve, deploy, make_times_model, make_args, tmp_path
):  # UR-017
    base, double, triple = make_times_model(1.0), make_times_model(2.0), make_times_model(3.0)
    route = running_serve.unique_route()
    variants = [
        {"name": "double", "uri": f"file://{double.directory}/"},
        {"name": "triple", "uri": f"file://{triple.directory}/"},
    ]
    settings = base.settings(route, variants=variants, resident_bytes=4, load_mode="background")
    deploy(build({**make_args(cache_root=str(tmp_path / "cache")), "models": [settings]}), route)
    with running_serve.client() as client:

        def ask(path: str) -> float:
            answer = client.post(f"{route}{path}", json={"inputs": [5]})
            assert answer.status_code == 200, answer.text
            return answer.json()["outputs"][0]

        pid = client.get(f"{route}/status").json()["pid"]
        assert [ask(""), ask("/double"), ask("/triple"), ask("/double"), ask("")] == [5, 10, 15, 10, 5]
        found = client.get(f"{route}/status").json()["variants"]
        assert {name: one["state"] for name, one in found["models"].items()} == {
            "double": "ready",
            "triple": "unloaded",
        }
        assert (found["budget_bytes"], found["taken_bytes"]) == (4, 4)
        files = {str(model.directory / "model.safetensors") for model in (base, double)}
        assert mapped_files(pid) == files, "what makes room is let go of by the process, too"
        assert (double.builds(), triple.builds()) == (2, 1)
        assert client.get(f"{route}/triple/ready").status_code == 503
        unknown = client.post(f"{route}/fourfold", json={"inputs": [5]})
        assert unknown.status_code == 404
        assert "double, triple" in unknown.json()["error"]["hint"]
    told = [record for record in running_serve.log_records(route.strip("/")) if record.get("event") == "load_ready"]
    name = route.strip("/")
    loads = [f"{name}", f"{name}/double", f"{name}/triple", f"{name}/double"]
    assert [record["model"] for record in told] == loads, "each load is told under the name of its weights"
    assert len({record["snapshot_id"] for record in told}) == 3
