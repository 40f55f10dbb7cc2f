"""A decoder as the Target that a round calls."""

import jax
import jax.numpy as jnp

from pallas_kernels import linear
from specjax.core import contracts
from specjax.models import cache as cache_lib
from specjax.models import config as config_lib
from specjax.models import decoder

# Rows of a packed head that take little longer than one: its weights come from memory,
# and what is computed meanwhile is nearly free.
_HEAD_ROWS = 4


def target(
    config: config_lib.ModelConfig,
    *,
    dtype: jnp.dtype = jnp.float32,
) -> contracts.Target:
    """Wraps the decoder of ``config``.

    Args:
      config: of the model.
      dtype: of the cache.
    """

    def init(rows, capacity):
        return cache_lib.init(config, rows, capacity, dtype)

    def forward(params, tree, cache, start, features):
        return contracts.Scored(
            *decoder.forward(config, params, tree, cache, start, features)
        )

    def head(params, hidden):
        return decoder.head(config, params, hidden)

    def rewind(cache, length):
        del length  # Positions past the count are never read.
        return cache

    def head_rows(params):
        weight = params["embed" if config.tied_head else "head"]
        native = isinstance(weight, linear.Packed) and linear.available()
        on_cpu = native and jax.default_backend() == "cpu"
        return _HEAD_ROWS if on_cpu and dtype == jnp.float32 else 1

    return contracts.Target(
        init=init,
        forward=forward,
        head=head,
        head_rows=head_rows,
        pad=cache_lib.pad,
        commit=cache_lib.commit,
        rewind=rewind,
        vocab_size=config.vocab_size,
        max_context=config.max_context,
    )
