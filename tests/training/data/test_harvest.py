"""A target's answers in shards: whole, interrupted and continued."""

import dataclasses
import errno
import functools
import json

import numpy as np
import pytest

from specjax import Engine, checkpoints, files
from specjax.decoding import engine as engine_lib
from specjax.training.data import harvest, prompts, shards
from tests import tiny_model

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEXTS = ["the ban", "an owl and then", "x", "banana", "then the", "who", "The  BAN"]
SETTINGS = harvest.Settings(
    max_new_tokens=6, max_prompt_tokens=60, batch_size=2, shard_size=2, own=3, seed=3
)


@pytest.fixture(scope="module")
def lm():
    template = checkpoints.ChatTemplate(TEMPLATE)
    return dataclasses.replace(tiny_model.language_model(), chat_template=template)


@pytest.fixture(scope="module", autouse=True)
def shared_engines():
    """Engines are made once, so that all runs share their compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_lib, "Engine", functools.cache(Engine))
        yield


def given(texts=TEXTS):
    return [prompts.Prompt(text, "test", prompts.split_of(text)) for text in texts]


def run(lm, folder, settings=SETTINGS, texts=TEXTS, **options):
    folder.mkdir(exist_ok=True)
    return harvest.harvest(lm, given(texts), folder, settings, **options)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def documents(folder):
    """Tokens and masks by id."""
    found = {}
    for index in range(shards.count(folder)):
        shard = shards._load(folder / f"shard-{index:05d}.safetensors")
        for at, number in enumerate(shard["id"].tolist()):
            part = slice(shard["offsets"][at], shard["offsets"][at + 1])
            assert number not in found
            found[number] = (
                shard["tokens"][part].tolist(),
                shard["answer"][part].tolist(),
                float(shard["temperature"][at]),
            )
    return found


@pytest.fixture(scope="module")
def whole(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(lm, folder)
    return folder


def test_answers_are_those_of_plain_decoding(lm, whole):
    found = documents(whole)
    engine = Engine(lm)
    for prompt in given(TEXTS[:6]):
        tokens, answer, temperature = found[prompt.id]
        alone = engine.generate(
            prompt.text,
            max_new_tokens=6,
            temperature=temperature,
            seed=prompts.digest(3, "answer", prompt.id) % 2**32,
        )
        start = len(engine.encode(prompt.text))
        assert tokens[:start] == engine.encode(prompt.text)
        assert tokens[start:] == alone.tokens
        assert answer == [False] * start + [True] * len(alone.tokens)


def test_the_card_counts_what_is_there(whole):
    card = shards.read_card(whole)
    found = documents(whole)
    assert card["whole"] is True
    assert card["shards"] == shards.count(whole)
    assert sum(card["documents"].values()) == len(found)
    assert card["sources"]["test"] == 6
    assert card["dropped"]["twice"] >= 1  # "The  BAN"
    assert card["tokens"] == sum(len(tokens) for tokens, _, _ in found.values())
    assert card["answer_tokens"] == sum(sum(x) for _, x, _ in found.values())
    temperatures = [f"{t:g}" for _, _, t in found.values()]
    assert card["temperatures"] == {t: temperatures.count(t) for t in set(temperatures)}


def test_splits_are_those_of_the_prompts(lm, tmp_path):
    texts = ["x", "banana"]
    pairs = list(zip(texts, shards.SPLITS, strict=True))
    asked = [prompts.Prompt(text, "test", split) for text, split in pairs]
    settings = harvest.Settings(max_new_tokens=6, max_prompt_tokens=60, batch_size=2)
    harvest.harvest(lm, asked, tmp_path, settings)
    for text, split in pairs:
        (tokens,) = shards.read(tmp_path, split, fingerprint=lm.fingerprint).tokens
        assert lm.tokenizer.decode(tokens.tolist()).startswith(f"[user]{text}")


class Killed(Exception):
    pass


@pytest.mark.parametrize("writes", range(1, 10))
def test_a_killed_run_goes_on_to_the_same_bytes(lm, whole, tmp_path, writes):
    left, real = [writes], files.write

    def dying(path, raw):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        real(path, raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", dying)
        with pytest.raises(Killed):
            run(lm, tmp_path)
    run(lm, tmp_path)
    assert content(tmp_path) == content(whole)


def test_a_run_that_is_whole_does_nothing_more(lm, whole):
    before = content(whole)
    asked = []
    run(lm, whole, notify=lambda done, tokens: asked.append(done))
    assert content(whole) == before
    assert not asked


@pytest.mark.parametrize("size", [1, 4])
def test_other_batches_give_the_same_rows(lm, whole, tmp_path, size):
    settings = dataclasses.replace(SETTINGS, batch_size=size)
    run(lm, tmp_path, settings)
    assert documents(tmp_path) == documents(whole)


def test_a_full_disk_leaves_what_was_whole(lm, tmp_path):
    real, left = files.write, [4]  # card, shard, card, and the second shard fails

    def full(path, raw):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", full)
        with pytest.raises(OSError, match="space"):
            run(lm, tmp_path)
    found = [shards.read(tmp_path, split) for split in shards.SPLITS]
    assert sum(len(part.tokens) for part in found) == 2


def test_long_prompts_are_left_out_and_counted(lm, tmp_path):
    card = run(lm, tmp_path, texts=["x", "a b c " * 30])
    assert card["dropped"]["too long"] == 1
    assert card["sources"]["test"] == 1


def test_prompts_of_a_benchmark_are_left_out(lm, tmp_path):
    words = "one two three four five six seven eight nine ten"
    forbidden = prompts.runs([words])
    card = run(lm, tmp_path, texts=["x", words], forbidden=forbidden)
    assert card["dropped"]["in a benchmark"] == 1


def test_own_turns_are_written_behind_the_users_header(lm):
    assert lm.tokenizer.decode(harvest.user_header(lm)) == "[user]"


def test_other_settings_are_refused(lm, whole):
    other = dataclasses.replace(SETTINGS, seed=4)
    with pytest.raises(ValueError, match="was made with settings="):
        run(lm, whole, other)


def test_another_model_is_refused(lm, whole):
    with pytest.raises(ValueError, match="was made with model='tiny'"):
        run(dataclasses.replace(lm, name="other"), whole)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"temperatures": {}}, ValueError, "temperatures must be one or more"),
        ({"temperatures": {-1.0: 1.0}}, ValueError, "from 0 up"),
        ({"temperatures": {1.0: 0.0}}, ValueError, "shares above 0"),
        ({"temperatures": {"1": 1.0}}, TypeError, "temperatures"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"own": -1}, ValueError, "own"),
        ({"shard_size": 1.5}, TypeError, "shard_size"),
    ],
)
def test_bad_settings(changes, error, message):
    with pytest.raises(error, match=message):
        harvest.Settings(**changes).validate()


def test_nothing_to_ask(lm, tmp_path):
    settings = harvest.Settings(max_new_tokens=6, max_prompt_tokens=60)
    with pytest.raises(ValueError, match="there are none"):
        harvest.harvest(lm, [], tmp_path, settings)


def test_a_model_without_a_template_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no chat template"):
        run(tiny_model.language_model(), tmp_path)


def test_temperatures_are_dealt_out_by_their_shares():
    settings = harvest.Settings(temperatures={0.0: 1, 0.5: 1, 1.0: 2})
    drawn = [settings.temperature_of(number) for number in range(4000)]
    shares = [np.mean(np.equal(drawn, t)) for t in (0.0, 0.5, 1.0)]
    # Three deviations of a share of 1/4 or 1/2 among 4000 are below 0.024.
    assert np.allclose(shares, [0.25, 0.25, 0.5], atol=0.024)


def test_the_card_is_json_for_machines(whole):
    card = json.loads((whole / shards.CARD).read_text())
    assert card["settings"]["temperatures"] == {"0": 0.5, "1": 0.5}
