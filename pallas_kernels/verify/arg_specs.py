"""Shapes of draws: the rows of logits of one step of the walk.

There is no kernel for TPU: XLA fuses temperature, noise and argmax into one pass that
reads each logit once, which is all that a kernel could do. Compiled for v5e, 8 rows of
49,152 logits take 1.98 MB of traffic where the logits are 1.57 MB (the rest are ids in
on-chip memory), 16 rows of 128,256 take 9.25 where they are 8.21.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArgSpec:
    """One draw.

    Attributes:
      rows: B.
      vocab_size: V.
    """

    rows: int
    vocab_size: int

    def arguments(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of what a draw takes."""
        return {
            "logits": jax.ShapeDtypeStruct((self.rows, self.vocab_size), jnp.float32),
            "temperature": jax.ShapeDtypeStruct((self.rows,), jnp.float32),
            "key": jax.ShapeDtypeStruct((self.rows, 2), jnp.uint32),
            "position": jax.ShapeDtypeStruct((self.rows,), jnp.int32),
        }


MODELS = {
    "smollm2-135m, 1 row": ArgSpec(rows=1, vocab_size=49152),
    "smollm2-135m, 8 rows": ArgSpec(rows=8, vocab_size=49152),
    "llama-3-8b, 16 rows": ArgSpec(rows=16, vocab_size=128256),
}
