"""Finds the files of a model's weights and reads their headers; no tensor is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.files import open_file, read_file
from launcher.core.problems import Problem, error_message, short_repr, shortened
from launcher.hubs import names

SINGLE, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
PICKLES = (
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".h5", ".hdf5", ".keras", ".msgpack", ".joblib",
    ".dill", ".pdparams", ".ot",
)  # fmt: skip
"""Endings of formats that can run code when they are opened, or that are not supported."""
_TEXTS = (".json", ".txt", ".md", ".jinja", ".py", ".model", ".gitattributes", "LICENSE", "NOTICE")
"""Endings of files that are not weights."""
_LFS = b"version https://git-lfs"  # start of a Git LFS pointer, in place of a file that was not fetched


def shards_of(text: bytes | str) -> tuple[list[str], list[Problem]]:
    """The files that an index names, and the problems of the index."""
    try:
        node = parse_json(text)
        file_names = node["weight_map"].values()
        shards = sorted({name for name in file_names if isinstance(name, str)})
        valid = len(shards) > 0 and all(isinstance(name, str) for name in file_names)
    except (ValueError, KeyError, TypeError, AttributeError):
        valid, shards = False, []
    if not valid:
        return [], [Problem("", "names no files in its weight_map", "use an index that safetensors wrote", "bad-file")]
    problems, got = names.check_names(shards), "is not a safetensors file of the model's own folder"
    for name in shards:
        if not names.check_names([name]) and (not name.endswith(".safetensors") or "/" in name):
            problems.append(Problem(short_repr(name), got, "use an index of such files"))
    return shards, problems


def index_faults(text: bytes | str, present: Collection[str]) -> list[Problem]:
    """Problems of an index, given the names of the files that are `present`."""
    shards, problems = shards_of(text)
    got, fix = "is named by the index and is not there", "download all shards"
    return problems or [Problem(short_repr(name), got, fix, "not-found") for name in shards if name not in present]


def folder_faults(folder: Path) -> list[Problem]:
    """Why the weights of a folder cannot or must not be loaded; empty where they can."""
    try:
        present = {path.name for path in folder.iterdir() if path.is_file()}
        if SINGLE in present:
            return []
        if INDEX in present:
            faults = index_faults(read_file(folder / INDEX), present)
            return [problem.within(str(folder / INDEX)) for problem in faults]
        if ADAPTER in present:
            return []
    except OSError as error:
        return [Problem(str(folder), error_message(error), "use a folder that can be read")]
    return [missing_problem(str(folder), present)]


def missing_problem(where: str, present: Collection[str]) -> Problem:
    """Why none of the files that are `present`, by name, holds weights that are read here."""
    if pickles := sorted(name for name in present if name.endswith(PICKLES)):
        got = f"holds weights as pickle only ({short_repr(pickles[0])}), which can run code"
        return Problem(where, got, "use safetensors, such as of another revision or repository", "bad-file")
    others = sorted(name for name in present if not name.endswith(_TEXTS))
    got = f"holds no weights that are read here, but {shortened(', '.join(others))}" if others else "holds no weights"
    return Problem(where, got, f"use {SINGLE} or {INDEX}, as save_pretrained writes them", code="not-found")


def cut_faults(folder: Path, files: Sequence[str] | None = None) -> list[Problem]:
    """Problems of weight files, of a folder without `folder_faults` or `files`: unreadable, cut, or LFS pointers."""
    faults = []
    for path in (folder / name for name in files or read_by_a_loader(folder)):
        got, fix = "", "use the whole file"
        try:
            read_header(path)  # checks it against the file's size
        except OSError as error:
            got, fix = f"cannot be read, {error_message(error)}", "use the file as its publisher saved it"
        except ValueError as error:
            got = f"cannot be read as safetensors, {shortened(str(error), 200)}"
            with open_file(path) as file:
                if file.read(len(_LFS)) == _LFS:
                    got, fix = "is a pointer of Git LFS, not the weights", "run git lfs pull in its folder"
        if got:
            faults.append(Problem(str(path), got, fix, code="bad-file"))
    return faults


def read_by_a_loader(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if (folder / INDEX).is_file():
        return [*_shards_by_index(folder / INDEX, _file_state(folder / INDEX))]
    return [ADAPTER] if (folder / ADAPTER).is_file() else []


def _file_state(path: Path) -> tuple[int, ...]:
    """Cache key that changes when a file is rewritten; a plan reads the same headers hundreds of times."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


@lru_cache(maxsize=16)
def _shards_by_index(index: Path, state: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(shards_of(read_file(index))[0])


def sizes(folder: Path) -> list[int]:
    """Bytes of each weight file of the folder; empty where one is missing."""
    try:
        return [(folder / name).stat().st_size for name in read_by_a_loader(folder)]
    except OSError:  # the index names a file that is not here
        return []


def shapes(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Shape of each tensor in the folder's safetensors files; None where a header cannot be read."""
    try:
        return {name: shape for name, (_, shape) in tensors(folder).items()}
    except (OSError, ValueError):
        return None


def tensors(folder: Path, files: Sequence[str] | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Number format (`BF16`) and shape of each tensor in the folder's safetensors files, or in those of `files`.
    Raises `OSError` or `ValueError` where a header cannot be read."""
    paths = [names.path_inside(folder, file) for file in files or read_by_a_loader(folder)]
    return {name: tensor for path in paths for name, tensor in read_header(path).items()}


def read_header(path: Path) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Number format and shape of each tensor in a safetensors file. Raises `OSError`, or `ValueError` for an invalid
    header, or one that does not fit the file's size."""
    return _read_header(path.parent.resolve() / path.name, _file_state(path))


@lru_cache(maxsize=512)
def _read_header(path: Path, state: tuple[int, ...]) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415  late: most plans read no weights

    open_file(path).close()  # raises for a pipe, where `safe_open` would wait
    try:
        with safe_open(path, "np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  it is no dict
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        raise ValueError(str(error).removeprefix("Error while deserializing header: ")) from error
