"""Manifests for Kubernetes: replicas behind a Service and a Gateway's route, scaled by how many requests wait."""

import re
from pathlib import PurePosixPath
from typing import Any

from dualpace.build.context import API_KEYS, KEYS, TLS, WEIGHTS
from dualpace.deploy.facts import Facts, mebibytes
from dualpace.frozen import Frozen

Resource = dict[str, Any]

USER = 65532
# The container serves on for so long after it was told to end, while senders learn that it is no endpoint any more.
PRE_STOP_SECONDS = 5
# In the secret of the API keys, beside their file: one of them by itself, which metrics are asked with.
METRICS_KEY = "metrics"
QUEUE_METRIC = "dualpace_requests_waiting"
_PROBE_SECONDS = 5
_MOST_NAME = 63


class Scaling(Frozen):
    """Between the deployment's replicas and `most`, so that about `waiting` requests wait at each."""

    most: int
    waiting: int


def resources(facts: Facts, scaling: Scaling, gateway: str) -> list[Resource]:
    """Everything that the cluster is told. `gateway` is the Gateway, of the same namespace, that routes to it."""
    name = object_name(facts.name)
    specs: tuple[tuple[str, str, Resource], ...] = (
        ("apps/v1", "Deployment", _deployment(facts, name)),
        ("v1", "Service", {"selector": _labels(name), "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}),
        ("policy/v1", "PodDisruptionBudget", {"maxUnavailable": 1, "selector": {"matchLabels": _labels(name)}}),
        ("monitoring.coreos.com/v1", "ServiceMonitor", _monitor(facts, name)),
        ("autoscaling/v2", "HorizontalPodAutoscaler", _autoscaler(facts, scaling, name)),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", _route(name, gateway)),
    )
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": _labels(name)}, "spec": spec}
        for version, kind, spec in specs
    ]


def object_name(name: str) -> str:
    """`name` as the cluster allows it for a Service: letters, digits and hyphens, a letter first."""
    plain = re.sub(r"[^a-z0-9-]", "-", name)
    return (plain if plain[0].isalpha() else f"dualpace-{plain}")[:_MOST_NAME].rstrip("-")


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "dualpace", "app.kubernetes.io/instance": name}


def _deployment(facts: Facts, name: str) -> Resource:
    # A replica that is added before one is taken away needs a GPU that may not be there.
    surge = {"maxSurge": 0, "maxUnavailable": 1} if facts.gpus else {"maxSurge": 1, "maxUnavailable": 0}
    return {
        "replicas": facts.replicas,
        "selector": {"matchLabels": _labels(name)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
        "progressDeadlineSeconds": facts.start_seconds + 60,
        "template": {"metadata": {"labels": _labels(name)}, "spec": _pod(facts, name)},
    }


def _pod(facts: Facts, name: str) -> Resource:
    volumes: list[Resource] = [
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{mebibytes(facts.shared_memory)}Mi"}},
    ]
    mounts: list[Resource] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    if facts.mounts_weights:
        claim = {"claimName": f"{name}-weights", "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": claim})
        mounts.append({"name": "weights", "mountPath": WEIGHTS, "readOnly": True})
    if facts.mounts_keys:
        file = PurePosixPath(API_KEYS).name
        secret = {"secretName": f"{name}-api-keys", "items": [{"key": file, "path": file}]}
        volumes.append({"name": "keys", "secret": secret})
        mounts.append({"name": "keys", "mountPath": KEYS, "readOnly": True})
    if facts.tls:
        volumes.append({"name": "tls", "secret": {"secretName": f"{name}-tls"}})
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": True})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + facts.stop_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "dualpace",
                "image": facts.image,
                "ports": [{"name": "http", "containerPort": facts.port}],
                "startupProbe": _probe(facts, "/health/ready", facts.start_seconds // _PROBE_SECONDS),
                "readinessProbe": _probe(facts, "/health/ready", 2),
                "livenessProbe": _probe(facts, "/health/live", 3),
                "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
                "resources": _resources(facts),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _probe(facts: Facts, path: str, failures: int) -> Resource:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTPS" if facts.tls else "HTTP"},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _resources(facts: Facts) -> Resource:
    memory = {"memory": f"{mebibytes(facts.memory)}Mi"}
    if not facts.gpus:
        return {"requests": memory, "limits": {"memory": f"{mebibytes(facts.memory * 5 // 4)}Mi"}}
    return {"requests": memory, "limits": {"nvidia.com/gpu": facts.gpus}}


def _monitor(facts: Facts, name: str) -> Resource:
    endpoint: Resource = {"port": "http", "path": "/metrics", "interval": "15s"}
    if facts.tls:
        # Pods are scraped by address, which their certificate does not name.
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    if facts.mounts_keys:
        credentials = {"name": f"{name}-api-keys", "key": METRICS_KEY}
        endpoint["authorization"] = {"type": "Bearer", "credentials": credentials}
    return {"selector": {"matchLabels": _labels(name)}, "endpoints": [endpoint]}


def _autoscaler(facts: Facts, scaling: Scaling, name: str) -> Resource:
    target = {"type": "AverageValue", "averageValue": str(scaling.waiting)}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": facts.replicas,
        "maxReplicas": scaling.most,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": QUEUE_METRIC}, "target": target}}],
        # A replica that has just loaded its model is not given up at once.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": max(300, facts.start_seconds)}},
    }


def _route(name: str, gateway: str) -> Resource:
    return {
        "parentRefs": [{"name": gateway}],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                "backendRefs": [{"name": name, "port": 80}],
                # A completion may stream for as long as it likes.
                "timeouts": {"request": "0s"},
            }
        ],
    }
