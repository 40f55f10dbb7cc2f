"""`check` reads headers and answers by its exit status."""

import json

import pytest

from tests import saved_model, tiny_medusa


@pytest.fixture(scope="module")
def answer(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    saved_model.write(folder, num_layers=1, max_context=8192)
    return run("check", folder, folder, "--capacity", 4096)


def test_a_model_with_itself_fits(answer):
    assert answer.exit_code == 0
    assert answer.stdout.endswith("fits\n")


def test_numbers(answer):
    # Cache: 2 (k, v) x 1 layer x 2 kv heads x 10 x 4096 slots x 4 bytes.
    assert f"{2 * 2 * 10 * 4096 * 4 / 2**20:,.1f} MiB" in answer.stdout
    embed, layer = 260 * 24, 24 * 40 * 2 + 24 * 20 * 2 + 3 * 24 * 36 + 2 * 24
    assert f"{embed + layer + 24:,}" in answer.stdout


def test_weights_are_counted_as_they_will_be_held(run, model_folder):
    held = [
        run("check", model_folder, "--weights", form).stdout
        for form in ("stored", "dense")
    ]
    assert "weights, stored" in held[0]
    assert "(f32)" in held[0]
    assert "(float32)" in held[1]
    half = run("check", model_folder, "--dtype", "bfloat16").stdout
    assert "(bfloat16)" in half  # which is dense by default


def test_a_form_that_is_none(run, model_folder):
    result = run("check", model_folder, "--weights", "packed")
    assert result.exit_code == 2
    assert (
        "--weights: expected one of stored, decoded, tiled, int8, dense"
        in result.stderr
    )


def test_what_would_not_load_is_refused_with_every_reason(run, make_model):
    folder = make_model()
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 37
    (folder / "config.json").write_text(json.dumps(config))
    result = run("check", folder)
    assert result.exit_code == 1
    reasons = [x for x in result.stdout.splitlines() if x.startswith("refused: ")]
    assert len(reasons) >= 6  # gate, up and down of two layers


def test_heads_that_fit(run, model_folder):
    result = run("check", model_folder, tiny_medusa.path())
    assert result.exit_code == 0, result.stdout
    assert result.stdout.endswith("fits\n")
    for told in ("medusa", "3 of 2 blocks, matrix: the target's", "195"):
        assert told in result.stdout


def test_heads_of_another_model_are_refused_with_every_reason(run, tmp_path):
    saved_model.write(tmp_path, embed_size=32)
    result = run("check", tmp_path, tiny_medusa.path())
    assert result.exit_code == 1
    reasons = [x for x in result.stdout.splitlines() if x.startswith("refused: ")]
    assert len(reasons) == 2 * 3 * 2  # weights and biases of three heads of two blocks
    assert "1.0.linear.weight has shape (24, 24), expected (32, 32)" in result.stdout
