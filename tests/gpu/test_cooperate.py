"""A card gives blocks in host memory to CPU workers, and what it collects of them is attention to just these."""

import pytest
import torch

from dualpace.engine.threads import worker_cpus
from dualpace.engine.workers import Workers
from tests.cooperate.asked import BOUNDS, Asked
from tests.cooperate.compiled import cooperative, device_publisher
from tests.cooperate.device import DevicePublisher

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "head_dim", "ratio"), [("fp32", 64, 2), ("bf16", 128, 8)])
def test_what_a_card_collects_is_attention_to_the_blocks_that_it_gave(dtype, head_dim, ratio, tmp_path):
    plan = cooperative(dtype, head_dim, ratio, 16)
    asked = Asked(plan, tmp_path / "store", tmp_path)
    device_publisher(plan, tmp_path)
    cpus = worker_cpus()
    blocks = torch.tensor(asked.order, dtype=torch.int32)
    with Workers(asked.library, plan, asked.kv.data_ptr(), cpus, note=lambda text: None) as workers:
        publisher = DevicePublisher(tmp_path, workers, len(cpus), asked.query, blocks)
        for count in (1, 64, 65, len(blocks)):
            publisher.drive(count)
            exact = asked.exact(asked.order[:count])[0]
            error = (publisher.merged(-(-count // 64)).double() - exact).abs().max()
            assert error < BOUNDS[dtype] * exact.abs().max(), count
        publisher.close()
