"""Rotary embedding: inverse frequencies of each scaling rule, in plain floats.

Sources: RoFormer (arXiv 2104.09864), position interpolation (2306.15595), YaRN (2309.00071), and for `llama3` the
model's published reference code.
"""

import math

from dualpace.plan.plan import Rope


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on the rotated queries and keys (eq. 22); `scale` is what some checkpoints call mscale."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[float, ...]:
    """Radians a position for each of the head_dim / 2 pairs (i, i + head_dim / 2)."""
    plain = tuple(rope.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2))
    if rope.scaling == "linear":
        return tuple(frequency / rope.factor for frequency in plain)
    if rope.scaling == "llama3":
        return tuple(_llama3(frequency, rope) for frequency in plain)
    if rope.scaling == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain


def _llama3(frequency: float, rope: Rope) -> float:
    # Turns within the trained context: many keep their frequency, few are interpolated, a ramp lies between.
    turns = rope.original_context * frequency / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    if span > 0:
        kept = min(max((turns - rope.low_freq_factor) / span, 0.0), 1.0)
    else:
        kept = 1.0 if turns >= rope.low_freq_factor else 0.0
    return frequency * (kept + (1.0 - kept) / rope.factor)


def _yarn(plain: tuple[float, ...], rope: Rope, head_dim: int) -> tuple[float, ...]:
    def pair_of(turns: float) -> float:
        """Index of the pair that makes `turns` rotations within the trained context."""
        return head_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), head_dim - 1)
    span = max(high - low, 0.001)
    ramp = (min(max((i - low) / span, 0.0), 1.0) for i in range(len(plain)))
    return tuple(f * (1.0 - r + r / rope.factor) for f, r in zip(plain, ramp, strict=True))
