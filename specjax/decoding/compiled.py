"""Compiled programs by bucket of sizes, counted."""

import functools
import time
from typing import Any

import jax

from specjax.core import axes, contracts
from specjax.decoding import programs


class RecompileError(RuntimeError):
    """A program was compiled after warm-up in strict mode."""


class Programs:
    """The prompt and decode programs of one recipe, compiled once a bucket.

    A bucket is (rows, capacity) and whether sampling has a grammar: two programs each.
    Values never compile anything: lengths, temperatures, seeds and limits are traced.

    Attributes:
      compile_seconds: spent compiling so far.
      strict: raise RecompileError instead of compiling anything more.
    """

    def __init__(self, recipe: programs.Recipe, params: contracts.Params) -> None:
        self.recipe = recipe
        self.params = params
        self.compile_seconds = 0.0
        self.strict = False
        self._compiled: dict[Any, Any] = {}

    @property
    def count(self) -> int:
        """Programs compiled so far."""
        return len(self._compiled)

    def blank(self, rows: int, capacity: int):
        """``programs.blank``; on a mesh, no device ever holds the whole state."""
        make = functools.partial(
            programs.blank, self.recipe, rows=rows, capacity=capacity
        )
        return (jax.jit(make) if self.recipe.mesh else make)(self.params)

    def rows(self, count: int) -> int:
        """Rows of the bucket for ``count``: a power of two for each part of a mesh."""
        mesh = self.recipe.mesh
        parts = mesh.shape.get(axes.DATA, 1) if mesh else 1
        return parts << (-(-count // parts) - 1).bit_length()

    def prompt(self, state, tokens, lengths, sampling):
        """``programs.prompt``; the state is donated."""
        return self._run(
            programs.prompt,
            state=state,
            tokens=tokens,
            lengths=lengths,
            sampling=sampling,
        )

    def decode(self, state, sampling, limit):
        """``programs.decode``; the state is donated."""
        return self._run(programs.decode, state=state, sampling=sampling, limit=limit)

    def lower(self, function, **arguments):
        """The lowered program, for looking at its HLO.

        Args:
          function: ``programs.prompt`` or ``programs.decode``.
          **arguments: those after ``params``, as arrays or their shapes.
        """
        bound = functools.partial(function, self.recipe)
        jitted = jax.jit(bound, donate_argnames=("state",))
        return jitted.lower(params=self.params, **arguments)

    def _run(self, function, **arguments):
        structure = jax.tree.structure(arguments["sampling"])
        key = (function.__name__, arguments["state"].history.tokens.shape, structure)
        if key not in self._compiled:
            if self.strict:
                raise RecompileError(
                    f"{key[0]} for rows x capacity {key[1]} was not warmed up; call "
                    "warmup() for it or leave strict mode"
                )
            began = time.perf_counter()
            self._compiled[key] = self.lower(function, **arguments).compile()
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[key](params=self.params, **arguments)
