"""What a container host or a cluster is told: valid by the schemas, and what the plan says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from dualpace.build.context import API_KEYS, KEYS
from dualpace.cli import app
from dualpace.deploy.compose import compose
from dualpace.deploy.facts import Facts, facts
from dualpace.deploy.kubernetes import Scaling, object_name, resources
from tests.plans import SPECS, example

# The least release of Kubernetes whose pods may sleep before they stop.
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()
# What the two kinds that no release of Kubernetes brings have to have, and no more, which their own schemas allow.
_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
EXTENSIONS: dict[str, dict[str, Any]] = {
    "ServiceMonitor": {
        "required": ["selector", "endpoints"],
        "properties": {
            "selector": {"required": ["matchLabels"]},
            "endpoints": {
                "minItems": 1,
                "items": {
                    "required": ["port"],
                    "additionalProperties": False,
                    "properties": {
                        "port": _NAME,
                        "path": {"pattern": "^/"},
                        "interval": {"pattern": "^[0-9]+s$"},
                        "scheme": {"enum": ["http", "https"]},
                        "tlsConfig": {},
                        "authorization": {
                            "properties": {"type": {"const": "Bearer"}, "credentials": {"required": ["name", "key"]}},
                            "required": ["type", "credentials"],
                            "additionalProperties": False,
                        },
                    },
                },
            },
        },
        "additionalProperties": False,
    },
    "HTTPRoute": {
        "required": ["parentRefs", "rules"],
        "properties": {
            "parentRefs": {"minItems": 1, "items": {"required": ["name"], "properties": {"name": _NAME}}},
            "rules": {
                "items": {
                    "required": ["backendRefs"],
                    "additionalProperties": False,
                    "properties": {
                        "matches": {"items": {"properties": {"path": {"required": ["type", "value"]}}}},
                        "backendRefs": {"items": {"required": ["name", "port"], "properties": {"name": _NAME}}},
                        "timeouts": {"properties": {"request": {"pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}}},
                    },
                }
            },
        },
        "additionalProperties": False,
    },
}


def known(spec: str, replicas: int = 3, **serving: object) -> Facts:
    return facts(example(spec, serving=dict(serving)), "", replicas, baked=False)


def cluster(of: Facts) -> dict[str, dict[str, Any]]:
    return {resource["kind"]: resource for resource in resources(of, Scaling(most=8, waiting=4), "inference")}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("spec", ["quickstart", "llama-3.1-8b-h200", "qwen2.5-7b-a100"])
def test_every_resource_is_valid(spec, version):
    found = cluster(known(spec, api_key_file="keys.txt", tls={"certificate": "a.crt", "key": "a.key"}))
    assert (
        found.keys() == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"} | EXTENSIONS.keys()
    )
    for kind, resource in found.items():
        if kind in EXTENSIONS:
            jsonschema.validate(resource["spec"], EXTENSIONS[kind])
        else:
            kubernetes_validate.validate(resource, version, strict=True)


def test_kinds_of_operators_are_valid_by_their_own_schemas():
    script = Path(__file__).parents[1] / "e2e" / "clients" / "manifests.mjs"
    if not (script.parent / "node_modules" / "@kubernetes-models").is_dir():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("`make clients` has not been run, or found no npm")
    found = cluster(known("quickstart", api_key_file="keys.txt", tls={"certificate": "a.crt", "key": "a.key"}))

    def compare(resources: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", script], input=json.dumps(resources), capture_output=True, text=True, check=False
        )

    ended = compare([found[kind] for kind in EXTENSIONS])
    assert ended.returncode == 0, ended.stderr
    found["ServiceMonitor"]["spec"]["endpoints"][0]["port"] = 80
    assert "endpoints/0/port must be string" in compare([found["ServiceMonitor"]]).stderr


def test_the_parts_find_each_other():
    found = cluster(known("llama-3.1-8b-h200"))
    name = found["Service"]["metadata"]["name"]
    pods = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == pods
    assert found["Service"]["spec"]["selector"] == pods
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == pods
    assert found["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == found["Service"]["metadata"]["labels"]
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    (backend,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    (port,) = found["Service"]["spec"]["ports"]
    assert backend == {"name": name, "port": port["port"]}
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert port["targetPort"] in {exposed["name"] for exposed in container["ports"]}


def test_a_pod_has_what_the_plan_needs():
    plan = example("llama-3.1-8b-h200", serving={"drain": "30s", "port": 9000})
    pod = cluster(facts(plan, "", 3, baked=False))["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "dualpace-appliance:llama-3.1-8b-h200"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert pod["terminationGracePeriodSeconds"] == 5 + 30 + 3
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20 > plan.rings.bytes
    assert volumes["weights"]["persistentVolumeClaim"]["readOnly"]
    assert "keys" not in volumes


def test_what_is_served_over_https_is_probed_so():
    found = cluster(known("quickstart", tls={"certificate": "a.crt", "key": "a.key"}))
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {container[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "readiness", "liveness")} == {
        "HTTPS"
    }
    assert {"name": "tls", "secret": {"secretName": "quickstart-tls"}} in pod["volumes"]
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"


def test_keys_are_mounted_as_a_folder_whose_changes_arrive_and_metrics_are_asked_for_with_one_of_them():
    found = cluster(known("quickstart", api_key_file="keys.txt"))
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "keys")
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "keys")
    (item,) = volume["secret"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == API_KEYS
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    credentials = {"name": volume["secret"]["secretName"], "key": "metrics"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": credentials}
    (open_to_all,) = cluster(known("quickstart"))["ServiceMonitor"]["spec"]["endpoints"]
    assert "authorization" not in open_to_all


def test_weights_that_are_baked_in_are_not_mounted():
    of = facts(example("quickstart"), "", 1, baked=True)
    assert "volumes" not in compose(of)["services"]["dualpace"]
    mounts = cluster(of)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == ["/tmp", "/dev/shm"]


def test_replicas_of_a_host_have_ports_and_gpus_of_their_own():
    (alone,) = compose(known("quickstart", 1))["services"].items()
    assert (alone[0], alone[1]["ports"]) == ("dualpace", ["8000:8000"])
    services = compose(known("llama-3.1-8b-h200", 3))["services"].values()
    assert [service["ports"] for service in services] == [["8000:8000"], ["8001:8000"], ["8002:8000"]]
    reserved = [service["deploy"]["resources"]["reservations"]["devices"] for service in services]
    assert [device["device_ids"] for (device,) in reserved] == [["0"], ["1"], ["2"]]


def test_keys_of_a_host_are_mounted_as_a_folder():
    (service,) = compose(known("quickstart", 1, api_key_file="keys.txt"))["services"].values()
    assert service["volumes"][-1]["target"] == KEYS


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("llama-3.1-8b", "llama-3-1-8b"), ("7b.chat", "dualpace-7b-chat"), ("a" * 62 + ".", "a" * 62), ("9" * 63, None)],
)
def test_names_are_such_as_a_service_may_have(name, allowed):
    given = object_name(name)
    jsonschema.validate(given, _NAME)
    assert allowed in (None, given)


def test_the_compose_file_is_valid(tmp_path):
    for spec in ("quickstart", "llama-3.1-8b-h200"):
        file = tmp_path / f"{spec}.yaml"
        file.write_text(
            yaml.safe_dump(compose(known(spec, api_key_file="keys.txt", tls={"certificate": "a.crt", "key": "a.key"})))
        )
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout


def test_the_command_writes_both_files_and_names_them(tmp_path):
    spec = str(SPECS / "llama-3.1-8b-h200.yaml")
    ended = CliRunner().invoke(app, ["manifest", spec, "--replicas", "2", "-o", str(tmp_path)])
    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == [f"{tmp_path}/compose.yaml", f"{tmp_path}/kubernetes.yaml"]
    kinds = [document["kind"] for document in yaml.safe_load_all(Path(tmp_path, "kubernetes.yaml").read_text())]
    assert kinds[0] == "Deployment"
    scaler = list(yaml.safe_load_all(Path(tmp_path, "kubernetes.yaml").read_text()))[4]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 4)
    assert len(yaml.safe_load(Path(tmp_path, "compose.yaml").read_text())["services"]) == 2


def test_fewer_replicas_at_most_than_at_least_are_refused(tmp_path):
    arguments = ["--replicas", "4", "--most-replicas", "2", "-o", str(tmp_path)]
    ended = CliRunner().invoke(app, ["manifest", str(SPECS / "quickstart.yaml"), *arguments])
    assert ended.exit_code == 2
    assert "--most-replicas 2 is less than --replicas 4: raise it" in ended.stderr


def test_more_replicas_than_ports_are_refused(tmp_path):
    spec = tmp_path / "quickstart.yaml"
    spec.write_text((SPECS / "quickstart.yaml").read_text() + "\nserving:\n  port: 65534\n")
    ended = CliRunner().invoke(app, ["manifest", str(spec), "--replicas", "3", "-o", str(tmp_path / "manifests")])
    assert ended.exit_code == 2
    assert "--replicas 3 take ports up to 65536, and there are 65535: lower it or serving.port" in ended.stderr
    assert not (tmp_path / "manifests").exists()
