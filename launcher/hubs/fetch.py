"""Files of a hub's repository into a folder: several at once, resumed after a kill, verified, locked."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.problems import Problems
from launcher.hubs import huggingface, manifest, modelscope, names
from launcher.hubs.manifest import Manifest
from launcher.hubs.progress import Board, Watch
from launcher.hubs.repo import Kind, Listing, NetworkFaults, Patience, RemoteFile, Source, check_asked

HUBS = {"huggingface": huggingface, "modelscope": modelscope}


def listing(
    kind: Kind, repo: str, *, sources: Sequence[Source], revision: str | None = None, patience: Patience | None = None
) -> Listing:
    """The files of the first source that has the repository.

    Raises `Problems` with the reason of each source; `NetworkFaults` where one of them could not be reached.
    """
    check_asked(repo, revision)
    if huggingface.offline():
        raise Problems([f"{repo}: is not here, and HF_HUB_OFFLINE forbids to fetch it; unsetting it once would do"])
    refusals: list[Problems] = []
    for source in sources:
        try:
            return HUBS[source].listing(kind, repo, revision, patience or Patience())
        except Problems as found:
            refusals.append(found)
    lines = [line for found in refusals for line in found.lines]
    raise (NetworkFaults if any(isinstance(found, NetworkFaults) for found in refusals) else Problems)(lines)


def fetch(
    listed: Listing,
    wanted: Sequence[RemoteFile],
    folder: Path,
    watch: Watch,
    *,
    workers: int = 4,
    patience: Patience | None = None,
) -> None:
    """Bring `wanted` into `folder`, and write its manifest when all are there.

    `watch` is called several times a second, in the caller's thread. After a kill, a fault or Ctrl-C the next call
    fetches only what is missing. Raises `Problems`, `NetworkFaults` or `OSError`.
    """
    if found := _unfit(listed, wanted):
        raise Problems(found)
    folder.mkdir(parents=True, exist_ok=True)
    folder, board = folder.resolve(), Board(wanted)

    def waiting(line: str) -> None:
        board.note(line)
        watch(board.read())

    with manifest.locked(folder, waiting):
        if not _has(folder, listed, wanted):
            _bring(listed, wanted, folder, watch, board, workers, patience or Patience())
        else:
            for file in wanted:
                board.at(file, file.size, "done")
    watch(board.read())


def _unfit(listed: Listing, wanted: Sequence[RemoteFile]) -> list[str]:
    """Why these files cannot be taken, whatever the network does."""
    where = f"{listed.repo} on {listed.source}"
    found = [f"{where}: {line}" for line in names.faults(file.path for file in wanted)]
    found += [
        f"{where}: {file.path} comes without a hash, so its bytes could not be verified; another source would do"
        for file in wanted
        if not file.sha256 and not file.git_sha1
    ]
    return found


def _has(folder: Path, listed: Listing, wanted: Sequence[RemoteFile]) -> bool:
    """Whether the manifest says that exactly these bytes are here; sizes are looked at."""
    there = manifest.complete(folder)
    if there is None or (there.source, there.repo, there.commit) != (listed.source, listed.repo, listed.commit):
        return False
    return all(
        file.path in there.files
        and there.files[file.path]["bytes"] == file.size
        and file.sha256 in (None, there.files[file.path]["sha256"])
        for file in wanted
    )


def _bring(
    listed: Listing, wanted: Sequence[RemoteFile], folder: Path, watch: Watch, board: Board, workers: int,
    patience: Patience,
) -> None:  # fmt: skip
    from launcher.hubs.transfer import Job  # noqa: PLC0415  # late: with them comes the HTTP library
    from launcher.hubs.workers import run  # noqa: PLC0415  # late, as above

    _check_room(folder, wanted)
    theirs = manifest.set_aside(folder, [file.path for file in wanted])
    hub = HUBS[listed.source]
    jobs = [
        Job(file, lambda file: hub.address(listed, file), folder, file.path in theirs, board, patience)
        for file in sorted(wanted, key=lambda file: -file.size)
    ]
    hashes = run(jobs, workers, watch, board)
    _finish(listed, wanted, folder, hashes)


def _finish(listed: Listing, wanted: Sequence[RemoteFile], folder: Path, hashes: dict[str, str]) -> None:
    """Write the manifest, and take away what an earlier commit left: a model must not be read from two."""
    before = manifest.read(folder, "before.json")
    files: dict[str, dict[str, int | str]] = {}
    if before and (before.source, before.repo, before.commit) == (listed.source, listed.repo, listed.commit):
        files |= {path: of for path, of in before.files.items() if (folder / path).is_file()}
    elif before:
        for path in before.files.keys() - {file.path for file in wanted}:
            with suppress(ValueError):
                names.inside(folder, path).unlink(missing_ok=True)
    files |= {file.path: {"bytes": file.size, "sha256": hashes[file.path]} for file in wanted}
    manifest.write(
        folder,
        Manifest(listed.source, listed.kind, listed.repo, listed.revision, listed.commit, dict(sorted(files.items()))),
    )


def _check_room(folder: Path, wanted: Sequence[RemoteFile]) -> None:
    """Raises `Problems` where the disk cannot hold what is still to come."""
    missing = 0
    for file in wanted:
        target, partial = folder / file.path, manifest.partial(folder, file)
        if target.is_file() and target.stat().st_size == file.size:
            continue  # if it is another of that size, it is replaced: room for both is not asked for
        missing += file.size - (partial.stat().st_size if partial.is_file() else 0)
    free = shutil.disk_usage(folder).free
    if missing > free:
        disk = next(path for path in (folder, *folder.parents) if path.is_mount())
        raise Problems(
            [f"{folder}: {missing} bytes are to come and {disk} has {free} free; a folder on another disk would do"]
        )
