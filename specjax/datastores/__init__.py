"""Datastores: what drafters look up that was learnt before the first request."""

from specjax.datastores.answers import build_from_prompts, harvest
from specjax.datastores.build import Sizes, build_from_texts, from_documents
from specjax.datastores.texts import read_prompts, read_texts
from specjax.drafters.lookup.datastore import Datastore
from specjax.drafters.lookup.datastore_files import load, save

__all__ = [
    "Datastore",
    "Sizes",
    "build_from_prompts",
    "build_from_texts",
    "from_documents",
    "harvest",
    "load",
    "read_prompts",
    "read_texts",
    "save",
]
