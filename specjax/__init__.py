"""Speculative decoding in JAX: faster generation, the same tokens.

The names are those of ``__init__.pyi``; what one needs is imported when it is first
used, so that the command line answers at once.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
