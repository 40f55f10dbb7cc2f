"""What a round of each width costs on this device, measured in a few seconds.

Not whole programs are compiled for it, one a width, but one layer, which then runs
over the weights of the layers in turn: they must come from memory, as in a real round.
Of stacked layers only a few are used, since slices are copies.
"""

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import verify
from specjax import files
from specjax.core import axes
from specjax.models import cache as cache_lib
from specjax.models import decoder
from specjax.models import model as model_lib

WIDTHS = (1, 2, 4, 8, 16)
_PRESENT = 256  # tokens in the cache while measuring
_REPEATS = 3
_LAYERS = 32  # most layers whose weights are used
_STACKED_LAYERS = 4
_TOP = 8


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a round of each width costs.

    Attributes:
      widths: ascending from 1.
      forward: in ms, of scoring that many tokens and drawing one greedily.
      top_ids: in ms, what the best ids after each of them add.
      draw: in ms, what each further token adds, from that of depth ``ahead`` on.
      ahead: tokens whose rows of the head are computed at once where anything is
        drafted; ``forward`` holds them.

    Raises:
      ValueError: a field has not one number a width, or one that can't be a time.
    """

    widths: tuple[int, ...]
    forward: tuple[float, ...]
    top_ids: tuple[float, ...]
    draw: float
    ahead: int = 1

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
        if not self.draw >= 0:
            raise ValueError(f"costs: draw must be 0 ms or more, got {self.draw}")
        if self.ahead < 1:
            raise ValueError(f"costs: ahead must be 1 or more, got {self.ahead}")

    def steps(self, gain: float = 1.04, sure: float = 0.95) -> "Costs":
        """Without the widths that can't pay.

        These are the widest ones, where a narrower one gives more tokens a millisecond
        even of a chain of drafts that are nearly certain, and those that cost hardly
        less than the next wider one.

        Args:
          gain: how much dearer the next width must be for this one to stay.
          sure: chance of each draft of that chain.

        Returns:
          The same costs at fewer widths, 1 among them.
        """
        rates = [self._rate(at, sure) for at in range(len(self.widths))]
        last = rates.index(max(rates))
        kept = [
            at
            for at in range(last + 1)
            if at in (0, last) or self.forward[at] * gain < self.forward[at + 1]
        ]
        return Costs(
            tuple(self.widths[at] for at in kept),
            tuple(self.forward[at] for at in kept),
            tuple(self.top_ids[at] for at in kept),
            self.draw,
            self.ahead,
        )

    def _rate(self, at: int, sure: float) -> float:
        """Tokens a ms of a chain that fills width ``at``."""
        kept = [sure**depth for depth in range(1, self.widths[at])]
        dear = sum(kept[self.ahead - 1 :])
        return (1 + sum(kept)) / (self.forward[at] + self.draw * dear)


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
        per_width = {
            name: tuple(held[name]) for name in ("widths", "forward", "top_ids")
        }
        return Costs(**per_width, draw=held["draw"], ahead=held.get("ahead", 1))
    except OSError as error:
        raise ValueError(f"costs: can't read {path} ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"costs: {path} is not a table of costs ({error})") from error


def measure(
    model: model_lib.Model,
    params: decoder.Params,
    widths: Sequence[int] = WIDTHS,
    mesh: jax.sharding.Mesh | None = None,
) -> Costs:
    """Times rounds of a loaded model on the default device, or on a mesh.

    Args:
      model: the model.
      params: its weights.
      widths: ascending from 1.
      mesh: that the params lie on; a batch row is timed for each of its data parts.

    Returns:
      Their costs, the least of a few tries.
    """
    with axes.on(mesh):
        return _measure(model, params, widths)


def _measure(model, params, widths) -> Costs:
    layers = _layers(params)
    scale = model.config.num_layers / len(layers)
    programs = [_layers_program(model, layers, width) for width in widths]
    ends = (widths[0], widths[-1])
    programs += [_top_program(model, params, width) for width in ends]
    ahead = model.target.head_rows(params)
    programs += [_draw_program(model, params, rows) for rows in sorted({1, ahead})]
    programs += [_idle_program(model, layers)]
    *times, idle = _least_ms(programs)
    times, (low, high, *draws) = times[: len(widths)], times[len(widths) :]
    # A round is one call, not one a layer, so what idle calls take is none of its cost.
    # They are timed apart, and can seem to take all of it where layers are tiny: a
    # tenth is left in any case, for no width is free.
    forward = [scale * max(ms - idle, 0.1 * ms) for ms in times]
    # Rows of one product: what lies between is linear enough to save the compiling.
    top_ids = np.interp(widths, ends, (low, high)).tolist()
    drawing = np.interp(np.minimum(widths, ahead), sorted({1, ahead}), draws)
    with_draw = tuple((np.asarray(forward) + drawing).tolist())
    return Costs(tuple(widths), with_draw, tuple(top_ids), draws[0], ahead)


def _layers(params) -> list:
    """Weights of single layers, sliced where they are stacked."""
    layers = params["layers"]
    if isinstance(layers, dict):
        count = min(jax.tree.leaves(layers)[0].shape[0], _STACKED_LAYERS)
        return [jax.tree.map(lambda x, i=i: x[i], layers) for i in range(count)]
    return list(layers[:_LAYERS])


def _layers_program(model, layers, width) -> Callable[[], Any]:
    """Runs all layers over a trunk of that many tokens, a layer at a call."""
    arguments = _arguments(model, width)
    one = jax.jit(functools.partial(_layer, model))
    return lambda: [one(layer, *arguments) for layer in layers][-1]


def _idle_program(model, layers) -> Callable[[], Any]:
    """The calls of `_layers_program` with nothing to do."""
    arguments = _arguments(model, 1)
    one = jax.jit(lambda layer, x, *rest: x)
    return lambda: [one(layer, *arguments) for layer in layers][-1]


def _layer(model, layer, x, angle, shared, cache):
    config = dataclasses.replace(model.config, num_layers=1, windows=())
    run = decoder.Layer(config).apply
    return run({"params": layer}, x, angle, angle, shared, cache, 0, 0)


def _arguments(model, width) -> tuple:
    """Rows, angles, tree and cache of one layer's call."""
    config = dataclasses.replace(model.config, num_layers=1, windows=())
    present = min(_PRESENT, config.max_context - width)
    rows = axes.parts(axes.DATA)
    start = jnp.full((rows,), present, jnp.int32)
    capacity = 2 * _PRESENT if present == _PRESENT else config.max_context
    cache = cache_lib.init(config, rows, capacity, model.dtype)
    x = jnp.ones((rows, width, config.embed_size), model.dtype)
    angle = jnp.ones((rows, width, config.head_size // 2), jnp.float32)
    chain = np.tile(np.arange(width, dtype=np.int32), (rows, 1))
    mask = jnp.asarray(np.tile(np.tri(width, dtype=bool), (rows, 1, 1)))
    return x, angle, decoder.Shared(start, jnp.asarray(chain), mask), cache


def _top_program(model, params, width) -> Callable[[], Any]:
    """Finds the best ids after that many tokens."""
    config = model.config
    rest = {key: value for key, value in params.items() if key != "layers"}
    hidden = jnp.ones((width, config.embed_size), model.dtype)

    @jax.jit
    def best(rest, hidden):
        most = min(_TOP, config.vocab_size)
        return jax.lax.top_k(decoder.head(config, rest, hidden), most)

    return lambda: best(rest, hidden)


def _draw_program(model, params, rows: int) -> Callable[[], Any]:
    """Draws one token greedily after that many rows of the head."""
    config = model.config
    rest = {key: value for key, value in params.items() if key != "layers"}
    hidden = jnp.ones((rows, config.embed_size), model.dtype)

    @jax.jit
    def draw(rest, hidden):
        logits = decoder.head(config, rest, hidden)[:1]
        return verify.argmax(logits), verify.log_sum_exp(logits)

    return lambda: draw(rest, hidden)


def _least_ms(runs: Sequence[Callable[[], Any]]) -> list[float]:
    """Least milliseconds of a call of each: what disturbs them only adds.

    They take turns, so that a disturbance does not fall on one of them alone.
    """
    for run in runs:
        jax.block_until_ready(run())
    times = [[] for _ in runs]
    for _ in range(_REPEATS):
        for run, taken in zip(runs, times, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(run())
            taken.append(time.perf_counter() - began)
    return [1e3 * min(taken) for taken in times]
