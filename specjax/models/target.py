"""A decoder as the Target that a round calls."""

import jax.numpy as jnp

from specjax.core import contracts
from specjax.models import config as config_lib
from specjax.models import decoder


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
        return decoder.init_cache(config, rows, capacity, dtype)

    def forward(params, tree, cache, start, features):
        return contracts.Scored(
            *decoder.forward(config, params, tree, cache, start, features)
        )

    def head(params, hidden):
        return decoder.head(config, params, hidden)

    def rewind(cache, length):
        del length  # Positions past the count are never read.
        return cache

    return contracts.Target(
        init=init,
        forward=forward,
        head=head,
        pad=decoder.pad,
        commit=decoder.commit,
        rewind=rewind,
        vocab_size=config.vocab_size,
        max_context=config.max_context,
    )
