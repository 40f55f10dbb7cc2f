from . import drafters, verify
from .checkpoints.load import LanguageModel, load
from .core.sampling import Sampling, SamplingOptions
from .decoding.build import Decode, Generation, build, sampling
from .decoding.cache import enable_compilation_cache
from .decoding.compiled import RecompileError
from .decoding.engine import Conversation, Engine, UselessDrafterWarning
from .decoding.generate import generate, stream
from .decoding.memory import Memory
from .decoding.result import Result
from .models.placement import make_mesh

__version__: str
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
