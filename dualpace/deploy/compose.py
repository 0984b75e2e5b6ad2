"""A compose file: replicas on one host, each with a port and GPUs of its own."""

from typing import Any

from dualpace.build.context import KEYS, TLS, WEIGHTS
from dualpace.deploy.facts import Facts, mebibytes


def compose(facts: Facts) -> dict[str, Any]:
    """The compose file, a service for each replica. They take host ports from the spec's upwards, and GPUs in order.

    What is mounted comes from variables.
    """
    names = ["dualpace"] if facts.replicas == 1 else [f"dualpace-{replica}" for replica in range(facts.replicas)]
    services = {name: _service(facts, replica) for replica, name in enumerate(names)}
    return {"name": facts.name.replace(".", "-"), "services": services}


def _service(facts: Facts, replica: int) -> dict[str, Any]:
    mounted = (
        (facts.mounts_weights, "${WEIGHTS:?the folder of the weights}", WEIGHTS),
        (facts.mounts_keys, "${API_KEYS:?the folder of api-keys}", KEYS),
        (facts.tls, "${TLS:?the folder of tls.crt and tls.key}", TLS),
    )
    volumes = [
        {"type": "bind", "source": source, "target": target, "read_only": True}
        for needed, source, target in mounted
        if needed
    ]
    return {
        "image": facts.image,
        "restart": "unless-stopped",
        "ports": [f"{facts.port + replica}:{facts.port}"],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "user": "65532:65532",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": f"{mebibytes(facts.shared_memory)}m",
        "stop_grace_period": f"{facts.stop_seconds}s",
        "deploy": {"resources": _resources(facts, replica)},
        **({"volumes": volumes} if volumes else {}),
    }


def _resources(facts: Facts, replica: int) -> dict[str, Any]:
    if not facts.gpus:
        return {"limits": {"memory": f"{mebibytes(facts.memory * 5 // 4)}M"}}
    # By number: two services that ask for any one GPU are given the same.
    numbers = [str(number) for number in range(replica * facts.gpus, (replica + 1) * facts.gpus)]
    return {"reservations": {"devices": [{"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}]}}
