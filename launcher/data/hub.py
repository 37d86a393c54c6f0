"""A dataset on a hub: its files are downloaded and converted once, and then read from parquet."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.settings import settings
from launcher.data import prepare
from launcher.data.files import Files
from launcher.data.reader import FORMS
from launcher.data.rows import store
from launcher.hubs.choice import AnySource, hubs_of
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import Progress as Fetched
from launcher.hubs.repo import Listing, RemoteFile, is_id
from launcher.spec.algorithm import Kind
from launcher.spec.data import ENDINGS, DataProgress, Dataset, OnDataProgress, RefusedRow, Row, Split

_SHARD = re.compile(
    rf"(?:.*/)?(?P<split>[a-z_]+)(?:-\d+-of-\d+(?:-[0-9a-f]+)?)?(?P<ending>{'|'.join(map(re.escape, ENDINGS))})"
)


@settings
class Hub(Files):
    """Rows from a dataset repository on a hub. `train_files` and `val_files` are patterns of the files in it."""

    repo: str
    """Id of the dataset, such as openai/gsm8k."""
    revision: str | None = None
    """Branch, tag or commit; by default the hub's default branch."""
    holds: Kind | None = None
    """Kind of its rows, where the algorithm does not determine it: answers, pairs, prompts or mixed."""
    source: AnySource = "auto"
    """Hub to download from; `auto` tries Hugging Face, then ModelScope."""

    def problems(self) -> list[Problem]:
        fix = "expected the id of a dataset, such as openai/gsm8k"
        return [] if is_id(self.repo) else [Problem("data.repo", f"got {short_repr(self.repo)}", fix)]

    def local(self, kind: Kind) -> Dataset | None:
        folder = self._prepared_before(kind)
        return prepare.read_from(self, folder) if folder else None

    def raw(self, watch: OnDataProgress) -> Dataset:
        return self._fetch(watch)[0]

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        raise self._not_prepared()

    def fingerprint(self) -> str:
        raise self._not_prepared()

    def _not_prepared(self) -> Problems:
        fix = f"run rlrun data prepare {self.repo}"
        return Problems(Problem("data", f"{self.repo} is not prepared", fix, "not-found"))

    def with_absolute_paths(self) -> Hub:
        return self

    def prepared(self, kind: Kind, watch: OnDataProgress) -> Dataset:
        return prepare.read_from(self, self.prepare(kind, watch))

    def prepare(self, kind: Kind, watch: OnDataProgress, into: Path | None = None) -> Path:
        """The folder with the prepared rows; without a reachable hub, one prepared earlier with the same settings.
        Raises `Problems`."""
        try:
            local, hashes, listing = self._fetch(watch)
        except Problems:
            if into is None and (folder := self._prepared_before(kind)):
                return folder
            raise
        origin = {**self._request(), "hub": listing.source, "commit": listing.commit}
        name = self.repo.replace("/", "--")
        return prepare.prepare(local, kind, name, watch, into=into, hashes=hashes, origin=origin)

    def _fetch(self, watch: OnDataProgress) -> tuple[Files, dict[str, str], Listing]:
        """The dataset's files on this machine, their sha256 if known, and the hub's listing."""
        if problems := self.problems():
            raise Problems(problems)
        listing = list_files("dataset", self.repo, sources=hubs_of(self.source), revision=self.revision)
        chosen = {split: self._choose_files(listing, split) for split in ("train", "val")}
        if not chosen["train"]:
            raise Problems(self._no_files(listing))
        raw = store() / "raw" / listing.source / listing.repo / listing.commit[:40]
        to_fetch = list({file.path: file for files in chosen.values() for file in files}.values())
        started = time.monotonic()

        def report(at: Fetched) -> None:
            watch(DataProgress(f"fetching {self.repo}", at.done_bytes, at.total_bytes, 0, time.monotonic() - started))

        fetch(listing, to_fetch, raw, report)
        paths = {f"{split}_files": tuple(str(raw / file.path) for file in files) for split, files in chosen.items()}
        hashes = {str(raw / file.path): file.sha256 for file in to_fetch if file.sha256}
        return Files(**prepare.settings_of_files(self) | paths), hashes, listing

    def _request(self) -> dict[str, str]:
        """The requested dataset, as text."""
        return {
            "repo": self.repo,
            "source": self.source,
            "revision": self.revision or "",
            "train_files": ", ".join(self.train_files),
            "val_files": ", ".join(self.val_files),
        }

    def _prepared_before(self, kind: Kind) -> Path | None:
        request = self._request()
        for folder, data in prepare.every():
            usable = data.kind == kind and not (data.refused and self.on_bad_row == "error")
            if usable and dict(data.settings) == prepare.converted(self) and request.items() <= data.origin.items():
                return folder
        return None

    def _choose_files(self, listed: Listing, split: str) -> list[RemoteFile]:
        """The split's files: those matching the patterns, or by default those named after the split."""
        rows = _row_files(listed)
        patterns = self.train_files if split == "train" else self.val_files
        if patterns:
            return [file for pattern in patterns for file in rows if fnmatchcase(file.path, pattern)]
        if self.train_files:  # naming only training files means no validation files
            return []
        split_names = ("train",) if split == "train" else ("validation", "val", "valid", "dev", "test")
        by_split: dict[str, dict[str, list[RemoteFile]]] = {}
        for file in rows:
            if (shard := _SHARD.fullmatch(file.path)) and "/" not in file.path.removeprefix("data/"):
                by_split.setdefault(shard["split"], {}).setdefault(shard["ending"], []).append(file)
        by_ending = next((by_split[name] for name in split_names if name in by_split), {})
        # the repository may have the same rows in several formats
        return next((by_ending[ending] for ending in (".parquet", *ENDINGS) if ending in by_ending), [])

    def _no_files(self, listed: Listing) -> Problem:
        row_files = [file.path for file in _row_files(listed)]
        if not row_files:
            return Problem("data.repo", f"{self.repo} has no {FORMS} file", "use another dataset", "not-found")
        pattern = ", ".join(self.train_files) or "data/train-*.parquet"
        advice = suggest(pattern, row_files[:20], listed="it has")
        return Problem("data.train_files", f"{self.repo} has no {pattern}", advice, "not-found")


def _row_files(listed: Listing) -> list[RemoteFile]:
    return [file for file in listed.files if file.path.lower().endswith(ENDINGS)]
