"""What the README says of the code is so."""

import pathlib
import re
import tomllib

import pytest

from specjax import drafters
from specjax.cli import recipe
from specjax.drafters import registry

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
_VARIABLE = r"SPECJAX_[A-Z]+|XDG_[A-Z_]+|CXX"


def test_environment_variables():
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("specjax", "pallas_kernels")
        for path in (REPOSITORY / package).rglob("*.py")
    ]
    read = {name for text in sources for name in re.findall(f'"({_VARIABLE})"', text)}
    told = set(re.findall(rf"^\| `({_VARIABLE})` \|", README, flags=re.MULTILINE))
    assert told == read


def test_every_drafter_has_its_row():
    cells = re.findall(r"^\| (`[a-z_`, ]+`) \|", README, flags=re.MULTILINE)
    told = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    own = {name for name in drafters.names() if name in drafters.__all__}
    assert told == own


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", README, re.DOTALL))
def test_recipes(text):
    read = recipe.Recipe.model_validate(tomllib.loads(text))
    assert registry.parse(read.drafter.name, read.drafter.options)


@pytest.mark.parametrize(
    "spec", re.findall(r"`([a-z_]+:[a-z_]+=[^`\s]+)`", README), ids=str
)
def test_drafters_as_they_are_spelled(spec):
    filled = spec.replace("=N", "=1")
    assert registry.parse(filled).label == filled
