"""The hardware that plans are made for, as data. A plan never probes the machine it is made on.

Memory is what the driver leaves of the card, in bytes; bandwidth is that of reads of device memory; FLOP/s are dense
bf16 with fp32 accumulation, without sparsity; the link's bandwidth is one way, from host memory. Each row says where it
comes from: "measured" figures were read with a read-only kernel, a large matrix product and a kernel that gathers
blocks, the others are the vendor's and so only upper bounds.
"""

from typing import Literal, NamedTuple

GIB = 2**30


class Hardware(NamedTuple):
    """One kind of device. `sm` is the architecture that nvcc compiles for, "" for a CPU, which has no link either."""

    name: str
    kind: Literal["cpu", "cuda"]
    sm: str
    memory: int
    read_bandwidth: float
    flops: float
    link_bandwidth: float
    source: str


# PCIe by generation: 16 lanes of 16 and 32 GT/s, of which 128 bits in 130 carry something.
GEN4, GEN5 = (16 * rate / 8 * 128 / 130 for rate in (16e9, 32e9))

# fmt: off
GPUS: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("h200", "cuda", "90a", 139 * GIB, 4.54e12, 790e12, 51e9, "measured on one card with CUDA 13.0"),
        Hardware("h100", "cuda", "90a", 79 * GIB, 3.35e12, 989.4e12, GEN5, "data sheet of the NVIDIA H100 SXM5 80 GB"),
        Hardware("b200", "cuda", "100a", 178 * GIB, 8.0e12, 2.25e15, GEN5, "data sheet of the NVIDIA HGX B200 180 GB"),
        Hardware("a100", "cuda", "80", 79 * GIB, 2.039e12, 312e12, GEN4, "data sheet of the NVIDIA A100 SXM4 80 GB"),
        Hardware("l40s", "cuda", "89", 44 * GIB, 864e9, 362.05e12, GEN4, "data sheet of the NVIDIA L40S 48 GB"),
        Hardware("rtx4090", "cuda", "89", 23 * GIB, 1.008e12, 165.2e12, GEN4, "NVIDIA Ada white paper, RTX 4090 24 GB"),
        # 28 SMs x 4 tensor cores x 64 multiply-adds a cycle at 1.777 GHz, half the rate of fp16 accumulation.
        Hardware("rtx3060", "cuda", "86", 11 * GIB, 360e9, 25.5e12, GEN4, "specification of the NVIDIA RTX 3060 12 GB"),
    )
}
# fmt: on

# A small server or a laptop: real ones differ several times either way, and the report says so.
CPU = Hardware("cpu", "cpu", "", 64 * GIB, 25e9, 0.5e12, 0.0, "nominal")
