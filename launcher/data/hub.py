"""A dataset on a hub: its files are downloaded once, and read like any other files.

<store>/raw/<hub>/<owner>/<name>/<revision>.json   the commit and the names of the files, as the hub listed them last
                                /<commit>/         the files that were downloaded
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file, write_atomic
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.settings import settings
from launcher.data.files import Files
from launcher.data.reader import FORMS
from launcher.data.rows import store
from launcher.hubs import manifest
from launcher.hubs.choice import AnySource, hubs_of
from launcher.hubs.fetch import fetch, list_files
from launcher.hubs.progress import Progress
from launcher.hubs.repo import Source, is_id
from launcher.spec.algorithm import Kind
from launcher.spec.data import ENDINGS, SPLITS, DataProgress, OnDataProgress, RefusedRow, Row, Split

_SHARD = re.compile(
    rf"(?:.*/)?(?P<split>[a-z_]+)(?:-\d+-of-\d+(?:-[0-9a-f]+)?)?(?P<ending>{'|'.join(map(re.escape, ENDINGS))})"
)
_SPLIT_NAMES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("validation", "val", "valid", "dev", "test"),
}


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

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        raise self._not_here()

    def fingerprint(self) -> str:
        raise self._not_here()

    def _not_here(self) -> Problems:
        fix = f"run rlrun data prepare {self.repo}"
        return Problems(Problem("data", f"{self.repo} is not downloaded", fix, "not-found"))

    def with_absolute_paths(self) -> Hub:
        return self

    def local(self) -> Files | None:
        for source in hubs_of(self.source):
            try:
                listed = parse_json(read_file(self._listing_file(source)))
                folder, chosen = self._folder(source) / listed["commit"], self._choose_files(listed["files"])
            except (OSError, ValueError, TypeError, KeyError):  # never listed there, or no such file of ours
                continue
            downloaded = manifest.complete(folder)
            if chosen["train"] and downloaded and downloaded.files.keys() >= {*chosen["train"], *chosen["val"]}:
                return self._files_in(folder, chosen)
        return None

    def fetched(self, watch: OnDataProgress) -> Files:
        """The files, downloaded where they are not here; without a reachable hub, those that it listed last."""
        if problems := self.problems():
            raise Problems(problems)
        try:
            listing = list_files("dataset", self.repo, sources=hubs_of(self.source), revision=self.revision)
        except Problems:
            if local := self.local():
                return local
            raise
        names = [file.path for file in listing.files]
        chosen = self._choose_files(names)
        if not chosen["train"]:
            raise Problems(self._no_files(names))
        folder, started = self._folder(listing.source) / listing.commit[:40], time.monotonic()

        def report(at: Progress) -> None:
            watch(DataProgress(f"fetching {self.repo}", at.done_bytes, at.total_bytes, 0, time.monotonic() - started))

        fetch(listing, [file for file in listing.files if file.path in chosen["train"] + chosen["val"]], folder, report)
        listed = {"commit": folder.name, "files": names}
        write_atomic(self._listing_file(listing.source), json.dumps(listed))
        return self._files_in(folder, chosen)

    def _folder(self, source: Source) -> Path:
        return store() / "raw" / source / self.repo

    def _listing_file(self, source: Source) -> Path:
        return self._folder(source) / f"{quote(self.revision or '', safe='')}.json"

    def _files_in(self, folder: Path, chosen: Mapping[Split, Sequence[str]]) -> Files:
        """The chosen files as a dataset with these settings."""
        values = {name: getattr(self, name) for name in Files.__dataclass_fields__}
        return Files(
            **values | {f"{split}_files": tuple(str(folder / name) for name in chosen[split]) for split in SPLITS}
        )

    def _choose_files(self, names: Sequence[str]) -> dict[Split, list[str]]:
        """Each split's files of those in the repository."""
        rows = [name for name in names if name.lower().endswith(ENDINGS)]
        return {split: self._choose_split(rows, split) for split in SPLITS}

    def _choose_split(self, rows: Sequence[str], split: Split) -> list[str]:
        """The files that match the patterns, or by default those named after the split."""
        if patterns := self.patterns(split):
            return [name for pattern in patterns for name in rows if fnmatchcase(name, pattern)]
        if self.train_files:  # naming only training files means no validation files
            return []
        by_split: dict[str, dict[str, list[str]]] = {}
        for name in rows:
            if (shard := _SHARD.fullmatch(name)) and "/" not in name.removeprefix("data/"):
                by_split.setdefault(shard["split"], {}).setdefault(shard["ending"], []).append(name)
        by_ending = next((by_split[name] for name in _SPLIT_NAMES[split] if name in by_split), {})
        # the repository may have the same rows in several formats
        return next((by_ending[ending] for ending in (".parquet", *ENDINGS) if ending in by_ending), [])

    def _no_files(self, names: Sequence[str]) -> Problem:
        row_files = [name for name in names if name.lower().endswith(ENDINGS)]
        if not row_files:
            return Problem("data.repo", f"{self.repo} has no {FORMS} file", "use another dataset", "not-found")
        pattern = ", ".join(self.train_files) or "data/train-*.parquet"
        advice = suggest(pattern, row_files[:20], listed="it has")
        return Problem("data.train_files", f"{self.repo} has no {pattern}", advice, "not-found")
