"""Small checkpoints in both formats."""

import pytest

from tests import small_checkpoint


@pytest.fixture(scope="session")
def small():
    """Small(**changes to its config.json)."""
    return small_checkpoint.Small


@pytest.fixture(scope="session")
def gguf_metadata():
    """Tokenizer metadata of the small GGUF file."""
    made = small_checkpoint.Small().gguf_metadata("llama")
    return {key: value for key, value in made.items() if key.startswith("tokenizer")}
