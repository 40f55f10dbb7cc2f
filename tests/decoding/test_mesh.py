"""One program over many devices: the same tokens, each device its own part."""

import re

import jax
import numpy as np
import pytest

import specjax
from specjax import checkpoints
from specjax.decoding import programs
from tests import saved_model, tiny_model

TEXTS = ["the ban and the ban and the", "ab", "to and fro, to and fro", "x", "an owl"]
SAMPLINGS = [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}]
EIGHT = {"num_heads": 8, "num_kv_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 8 heads and 4 kv heads."""
    path = tmp_path_factory.mktemp("eight")
    saved_model.write(path, **EIGHT)
    return path


@pytest.fixture(scope="module")
def pair(folder):
    """The model on one device, and on data=2, model=4."""
    mesh = specjax.make_mesh(data=2, model=4)
    return specjax.load(folder, weights="dense"), specjax.load(folder, mesh=mesh)


def engine(lm, drafter):
    return specjax.Engine(lm, drafter, widths=(1,), prompt_widths=(16,))


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup", "hierarchy"])
def test_the_same_tokens_as_on_one_device(pair, drafter):
    alone, split = engine(pair[0], "none"), engine(pair[1], drafter)
    for sampling in SAMPLINGS:
        options = {"max_new_tokens": 24, "ignore_eos": True, **sampling}
        wanted = alone.generate(TEXTS, **options)
        got = split.generate(TEXTS, **options)
        assert [one.tokens for one in got] == [one.tokens for one in wanted]
        assert "data=2,model=4" in got[0].device
    assert split.programs.count == 2


def test_stacked_layers_give_the_same_tokens(folder, pair):
    mesh = specjax.make_mesh(data=2, model=4)
    stacked = specjax.load(folder, mesh=mesh, scanned=True)
    options = {"max_new_tokens": 24, "ignore_eos": True}
    wanted = engine(pair[0], "none").generate(TEXTS, **options)
    got = engine(stacked, "prompt_lookup").generate(TEXTS, **options)
    assert [one.tokens for one in got] == [one.tokens for one in wanted]


def test_an_engine_fills_a_batch_up_to_what_the_mesh_divides(pair):
    held = engine(pair[1], "none").programs
    assert [held.rows(count) for count in (1, 2, 3, 5)] == [2, 2, 4, 8]


def test_streams_stop_strings_and_conversations_go_over_a_mesh(pair):
    alone, split = engine(pair[0], "none"), engine(pair[1], "prompt_lookup")
    options = {"max_new_tokens": 8, "ignore_eos": True}
    wanted = alone.generate("an owl", **options)
    stream = split.stream("an owl", **options)
    assert [token for piece in stream for token in piece.tokens] == wanted.tokens

    # One row is ended from the host, the other goes on.
    stop = next(char for char in wanted.text[1:] if char.isascii())
    both = [
        one.generate(["an owl", "x"], stop=stop, **options) for one in (alone, split)
    ]
    assert [one.tokens for one in both[0]] == [one.tokens for one in both[1]]
    assert both[1][0].finish_reason == "stop"

    talks = [one.conversation() for one in (alone, split)]
    for question in ("an owl", "the ban"):
        first, second = (talk.send(question, **options) for talk in talks)
        assert first.tokens == second.tokens


def test_each_device_holds_its_share_of_weights_and_cache(pair):
    alone, split = (engine(lm, "none") for lm in pair)
    whole = sum(x.nbytes for x in jax.tree.leaves(pair[0].params))
    held = per_device(pair[1].params)
    assert len(held) == 8
    norms = sum(
        x.nbytes for x in jax.tree.leaves(pair[1].params) if x.is_fully_replicated
    )
    assert set(held.values()) == {(whole - norms) // 4 + norms}
    cache = split.programs.blank(2, 256).cache
    assert cache.k.sharding.shard_shape(cache.k.shape)[:3] == (1, 2, 1)
    assert alone.programs.blank(2, 256).cache.k.sharding.num_devices == 1


def per_device(tree) -> dict[str, int]:
    """Bytes of a tree's arrays on each device."""
    held: dict[str, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            name = str(shard.device)
            held[name] = held.get(name, 0) + shard.data.nbytes
    return held


def test_no_weight_or_cache_is_gathered_in_a_round(pair):
    """What crosses between devices in a round is activations and numbers of rows."""
    held = engine(pair[1], "prompt_lookup").programs
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        held.blank(2, 256),
    )
    lowered = held.lower(
        programs.decode,
        state=state,
        sampling=specjax.sampling(2),
        limit=jax.ShapeDtypeStruct((), np.int32),
    )
    text = lowered.compile().as_text()
    moved = re.findall(r"= \(?\w+\[([\d,]*)\][^=]*? (all-gather|all-to-all)\(", text)
    assert moved, "there is nothing to look at"
    out = pair[0].params["layers"][0]["out"]
    for shape, kind in moved:
        count = int(np.prod([int(size) for size in shape.split(",") if size]))
        assert count < out.size, f"{kind} of [{shape}]"


def test_weights_are_read_param_after_param(folder, monkeypatch):
    """Nothing larger than one layer's param is ever sent at once."""
    sent = []
    put = checkpoints.fuse.placement.put

    def spy(mesh, value, names):
        sent.append(value.nbytes)
        return put(mesh, value, names)

    monkeypatch.setattr(checkpoints.fuse.placement, "put", spy)
    mesh = specjax.make_mesh(model=4)
    lm = specjax.load(folder, mesh=mesh, scanned=True)
    layers = lm.params["layers"]
    assert layers["qkv"].sharding.spec == jax.P(None, None, "model")
    assert max(sent) == lm.params["embed"].nbytes
    assert sum(sent) == sum(x.nbytes for x in jax.tree.leaves(lm.params))


def test_bad_meshes_are_refused_before_anything_is_compiled(folder, pair):
    with pytest.raises(ValueError, match=r"model=8 does not divide .* kv heads of 4"):
        specjax.load(folder, mesh=specjax.make_mesh(model=8))
    with pytest.raises(TypeError, match=r"mesh must be a Mesh.*got 'data=2'"):
        specjax.load(folder, mesh="data=2")
    with pytest.raises(TypeError, match="mesh: data must be an integer, got True"):
        specjax.make_mesh(data=True)
    mesh = specjax.make_mesh(data=2, model=4)
    with pytest.raises(ValueError, match="stored matrices can't be split over a mesh"):
        specjax.load(folder, mesh=mesh, weights="stored")
    lm = pair[1]
    none = specjax.drafters.none()
    decode = specjax.build(lm.model, none, max_new_tokens=4, mesh=mesh)
    tokens = np.zeros((3, 8), np.int32)
    with pytest.raises(ValueError, match="data=2 does not divide the batch of 3 rows"):
        decode(
            decode.params(lm, none),
            tokens,
            tokens[:, 0],
            specjax.sampling(3),
            np.zeros(3, np.uint32),
        )
    tiny = tiny_model.language_model()
    with pytest.raises(ValueError, match=r"model=4 .* kv heads of 2"):
        specjax.build(tiny.model, none, max_new_tokens=4, mesh=mesh)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"data": 2, "model": 3}, {"data": 8}], ids=str)
def test_smollm2_over_a_mesh(sizes, smollm2):
    prompts = ["Count: 1 2 3 4 1 2 3 4 1", "The sea", "a b c a b c a", "Why? Because"]
    alone = engine(smollm2, "none")
    lm = specjax.load("smollm2-135m", mesh=specjax.make_mesh(**sizes), scanned=True)
    for drafter in ("none", "prompt_lookup", "hierarchy"):
        split = engine(lm, drafter)
        for sampling in SAMPLINGS:
            options = {"max_new_tokens": 10, "chat": False, **sampling}
            wanted = alone.generate(prompts, **options)
            got = split.generate(prompts, **options)
            assert [one.tokens for one in got] == [one.tokens for one in wanted]
