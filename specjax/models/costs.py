"""What a round of each width costs on this device, measured in a few seconds.

Not whole programs are compiled for it, one a width, but one layer, which then runs
over the weights of the layers in turn: they must come from memory, as in a real round.
Of stacked layers only a few are used, since slices are copies.
"""

import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from specjax import files
from specjax.core import history as history_lib
from specjax.core import tree as tree_lib
from specjax.models import decoder
from specjax.models import model as model_lib

WIDTHS = (1, 4, 8, 16)
_PRESENT = 256  # tokens in the cache while measuring
_REPEATS = 3
_LAYERS = 32  # most layers whose weights are used
_STACKED_LAYERS = 4
_TOP = 8


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds of a round by its width.

    Attributes:
      widths: ascending from 1.
      forward: of scoring that many tokens, the head of one of them included.
      top_ids: more for the best ids after each of them.
    """

    widths: tuple[int, ...]
    forward: tuple[float, ...]
    top_ids: tuple[float, ...]

    def __post_init__(self) -> None:
        ladder = list(self.widths)
        if not ladder or ladder[0] != 1 or ladder != sorted(set(ladder)):
            raise ValueError(f"costs: widths must ascend from 1, got {ladder}")
        for name in ("forward", "top_ids"):
            values = getattr(self, name)
            if len(values) != len(ladder) or min(values) < 0:
                raise ValueError(
                    f"costs: {name} must be {len(ladder)} times of 0 ms or more, one a "
                    f"width, got {list(values)}"
                )
        if min(self.forward) <= 0:
            raise ValueError(f"costs: forward must be positive, got {self.forward}")

    def steps(self, gain: float = 1.04) -> "Costs":
        """Without the widths that cost hardly less than the next wider one.

        Args:
          gain: how much dearer the next width must be for this one to stay.
        """
        last = len(self.widths) - 1
        kept = [
            at
            for at in range(last + 1)
            if at in (0, last) or self.forward[at] * gain < self.forward[at + 1]
        ]
        return Costs(
            tuple(self.widths[at] for at in kept),
            tuple(self.forward[at] for at in kept),
            tuple(self.top_ids[at] for at in kept),
        )


def save(path: pathlib.Path, costs: Costs) -> None:
    """Writes a table whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(dataclasses.asdict(costs)).encode())


def load(path: pathlib.Path) -> Costs:
    """Reads a table.

    Raises:
      ValueError: there is no such file, or it holds no table.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        fields = {
            field.name: tuple(held[field.name]) for field in dataclasses.fields(Costs)
        }
        return Costs(**fields)
    except OSError as error:
        raise ValueError(f"costs: can't read {path} ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"costs: {path} is not a table of costs ({error})") from error


def measure(
    model: model_lib.Model, params: decoder.Params, widths: Sequence[int] = WIDTHS
) -> Costs:
    """Times rounds of a loaded model on the default device.

    Args:
      model: the model.
      params: its weights.
      widths: ascending from 1.
    """
    layers = _layers(params)
    scale = model.config.num_layers / len(layers)
    forward, top_ids = [], []
    for width in widths:
        run_layers, run_top = _runs(model, params, layers, width)
        forward.append(scale * _median_ms(run_layers))
        top_ids.append(_median_ms(run_top))
    # A round walks over one row of logits at least.
    with_head = tuple(ms + top_ids[0] for ms in forward)
    return Costs(tuple(widths), with_head, tuple(top_ids))


def _layers(params) -> list:
    """Weights of single layers, sliced where they are stacked."""
    layers = params["layers"]
    if isinstance(layers, dict):
        count = min(jax.tree.leaves(layers)[0].shape[0], _STACKED_LAYERS)
        return [jax.tree.map(lambda x, i=i: x[i], layers) for i in range(count)]
    return list(layers[:_LAYERS])


def _runs(model, params, layers, width):
    """Two functions to time: all layers over a trunk, and best ids of its rows."""
    config = dataclasses.replace(model.config, num_layers=1)
    present = min(_PRESENT, config.max_context - width)
    start = jnp.full((1,), present, jnp.int32)
    capacity = 2 * _PRESENT if present == _PRESENT else config.max_context
    history = history_lib.create(jnp.zeros((1, 1), jnp.int32), start, capacity)
    tree = tree_lib.trunk(history, start, jnp.full((1,), width, jnp.int32), width)
    cache = decoder.init_cache(config, 1, capacity, model.dtype, False)
    rest = {key: value for key, value in params.items() if key != "layers"}

    @jax.jit
    def one(layer, rest):
        return decoder.forward(config, {**rest, "layers": [layer]}, tree, cache, start)

    @jax.jit
    def best(rest, hidden):
        most = min(_TOP, config.vocab_size)
        return jax.lax.top_k(decoder.head(config, rest, hidden[0]), most)

    hidden = one(layers[0], rest)[0]

    def run_layers():
        out = None
        for layer in layers:
            out = one(layer, rest)
        return out

    return run_layers, lambda: best(rest, hidden)


def _median_ms(run) -> float:
    """Median milliseconds of a call, one warm-up apart."""
    jax.block_until_ready(run())
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)
