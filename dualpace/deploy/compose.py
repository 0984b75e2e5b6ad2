"""A compose file: replicas on one host, each on a port of its own."""

from pathlib import PurePosixPath
from typing import Any

from dualpace.build.context import API_KEYS, TLS, WEIGHTS
from dualpace.deploy.facts import Facts, mebibytes

# Secrets are mounted by name in one folder.
SECRET = PurePosixPath(API_KEYS).name


def compose(facts: Facts) -> dict[str, Any]:
    """The compose file. Replicas take host ports from the spec's upwards; weights and keys come from variables."""
    last = facts.port + facts.replicas - 1
    published = str(facts.port) if facts.replicas == 1 else f"{facts.port}-{last}"
    service: dict[str, Any] = {
        "image": facts.image,
        "restart": "unless-stopped",
        "ports": [f"{published}:{facts.port}"],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "user": "65532:65532",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": f"{mebibytes(facts.shared_memory)}m",
        "stop_grace_period": f"{facts.stop_seconds}s",
        "deploy": {"replicas": facts.replicas, "resources": _resources(facts)},
    }
    mounted = []
    if facts.mounts_weights:
        mounted.append(("${WEIGHTS:?the folder of the weights}", WEIGHTS))
    if facts.tls:
        mounted.append(("${TLS:?the folder of tls.crt and tls.key}", TLS))
    if mounted:
        service["volumes"] = [
            {"type": "bind", "source": source, "target": target, "read_only": True} for source, target in mounted
        ]
    document: dict[str, Any] = {"name": facts.name.replace(".", "-"), "services": {"dualpace": service}}
    if facts.mounts_keys:
        service["secrets"] = [SECRET]
        document["secrets"] = {SECRET: {"file": "${API_KEYS:?the file of API keys}"}}
    return document


def _resources(facts: Facts) -> dict[str, Any]:
    if not facts.gpus:
        return {"limits": {"memory": f"{mebibytes(facts.memory * 5 // 4)}M"}}
    return {"reservations": {"devices": [{"driver": "nvidia", "count": facts.gpus, "capabilities": ["gpu"]}]}}
