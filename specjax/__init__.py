"""Speculative decoding in JAX: faster generation, the same tokens."""

from specjax import drafters, verify
from specjax.checkpoints import LanguageModel, load
from specjax.core.sampling import Sampling, SamplingOptions
from specjax.decoding.build import Decode, Generation, build, sampling
from specjax.decoding.cache import enable_compilation_cache
from specjax.decoding.compiled import RecompileError
from specjax.decoding.engine import Conversation, Engine, UselessDrafterWarning
from specjax.decoding.generate import generate, stream
from specjax.decoding.memory import Memory
from specjax.decoding.result import Result
from specjax.models.placement import make_mesh

__all__ = [
    "Conversation",
    "Decode",
    "Engine",
    "Generation",
    "LanguageModel",
    "Memory",
    "RecompileError",
    "Result",
    "Sampling",
    "SamplingOptions",
    "UselessDrafterWarning",
    "build",
    "drafters",
    "enable_compilation_cache",
    "generate",
    "load",
    "make_mesh",
    "sampling",
    "stream",
    "verify",
]
