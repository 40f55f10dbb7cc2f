"""A model without its weights: what may be static in a compiled program."""

import dataclasses
import functools

import numpy as np

from specjax.core import contracts
from specjax.models import config as config_lib
from specjax.models import target as target_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder's shape and number type; hashable.

    Attributes:
      config: shapes and choices.
      dtype: name of the number type of params and cache, such as "float32".
    """

    config: config_lib.ModelConfig
    dtype: str = "float32"

    @property
    def target(self) -> contracts.Target:
        """The functions that a round calls, the same object for equal models."""
        return _target(self)


@functools.lru_cache(maxsize=64)
def _target(model: Model) -> contracts.Target:
    return target_lib.target(model.config, dtype=np.dtype(model.dtype))
