"""Datasets and models come from hubs by their name, once, and a run reads them like any other file or folder."""

from __future__ import annotations

import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve, try_resolve
from launcher.core.problems import Problems
from launcher.data.email_search import mailbox_of
from launcher.data.files import Files
from launcher.data.hub import Hub
from launcher.data.mailbox import Mailbox
from launcher.launch.prepare import fetched, localized
from launcher.models.pretrained import Pretrained
from launcher.preflight.fit import refit_settings
from launcher.preflight.plan import run_of
from launcher.rewards.combined import Auto, Weighted
from launcher.rewards.model import RewardModel
from launcher.spec.data import Message, Row
from launcher.spec.run import RunSpec

GSM8K = [{"question": f"{n}+1?", "answer": f"Add.\n#### {n + 1:,}"} for n in range(4)]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(autouse=True)
def place(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """GSM8K as the hub holds it, with files that nobody should take."""
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    hub.add(
        "openai/gsm8k",
        {"main/train-00000-of-00001.parquet": parquet(GSM8K), "main/test-00000-of-00001.parquet": parquet(GSM8K[:1]),
         "socratic/train-00000-of-00001.parquet": parquet(GSM8K * 9), "README.md": b"#"},
        kind="dataset",
    )  # fmt: skip
    return hub


def rlrun(*words: str, code: int = 0) -> Any:
    ran = CliRunner().invoke(app, ["data", *words, "--json"])
    assert ran.exit_code == code, ran.output
    return json.loads(ran.stdout) if code == 0 else ran


def rows(folder: str, kind: Any, split: str = "train") -> list[Row]:
    found = Files(train_files=(f"{folder}/{split}.parquet",)).read("train", kind)
    return [row for row in found if isinstance(row, Row)]


def phases(view: Mock) -> list[str]:
    """What a run shows while it prepares."""
    return [call.args[0].phase for call in view.write.call_args_list]


@pytest.mark.parametrize("source", ["huggingface", "modelscope"])
def test_gsm8k_is_prepared_by_its_name_from_either_hub_and_fetched_once(place: Any, source: str) -> None:
    made = rlrun("prepare", "gsm8k", f"data.source={source}")
    assert (made["kind"], made["rows"], made["refused"]) == ("prompts", {"train": 4, "val": 1}, 0)
    assert all(f"/raw/{source}/openai/gsm8k/" in file for file in made["sources"])
    [row, *_] = rows(made["folder"], "prompts")
    asked = 'Let\'s think step by step and output the final answer after "####".'
    assert row.prompt == (Message("user", f"0+1? {asked}"),)
    assert (row.ground_truth, row.data_source, row.ability) == ("1", "openai/gsm8k", "math")
    assert made["folder"] == "gsm8k" and not any("socratic" in path for path in place.sent)
    sent = place.total
    for named in (["gsm8k"], ["openai/gsm8k"], ["openai/gsm8k", "--for", "prompts"]):  # as a plan says to type
        assert rlrun("prepare", *named, f"data.source={source}")["rows"] == {"train": 4, "val": 1}
    assert rlrun("prepare", "gsm8k", "--for", "answers", f"data.source={source}")["kind"] == "answers"
    assert place.total == sent  # the files are here


@pytest.mark.parametrize(
    ("files", "words", "counts"),
    [
        ({"train.jsonl": GSM8K, "test.jsonl": GSM8K[:2]}, [], {"train": 4, "val": 2}),
        ({f"data/train-0000{n}-of-00002.parquet": GSM8K for n in (0, 1)}, [], {"train": 8}),
        ({"train.jsonl": GSM8K, "train.jsonl.gz": GSM8K, "train.parquet": GSM8K}, [], {"train": 4}),  # the same rows
        ({"x/a.jsonl": GSM8K, "x/b.jsonl": GSM8K}, ["data.train_files=x/*.jsonl"], {"train": 8}),
    ],
)  # fmt: skip
def test_any_dataset_by_its_id(place: Any, files: dict[str, Any], words: list[str], counts: dict[str, int]) -> None:
    place.add(
        "o/d", {name: jsonl(of) if "jsonl" in name else parquet(of) for name, of in files.items()}, kind="dataset"
    )
    assert rlrun("prepare", "o/d", "--for", "answers", *words)["rows"] == counts


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({"README.md": b"#"}, "o/d has no JSONL, JSON, CSV or parquet file"),
        ({"other.jsonl": jsonl(GSM8K)}, "o/d has no data/train-*.parquet; it has other.jsonl"),
        ({"../train.jsonl": jsonl(GSM8K)}, "../train.jsonl"),
    ],
)
def test_what_cannot_be_used_is_named(place: Any, files: dict[str, bytes], printed: str) -> None:
    place.add("o/d", files, kind="dataset")
    ran = rlrun("prepare", "o/d", "--for", "answers", code=2)
    assert printed in ran.stderr
    assert not list(Path(ran.stderr).parent.glob("**/train.jsonl"))


def test_a_run_reads_what_was_downloaded(place: Any) -> None:
    run = resolve(
        ["algorithm=grpo", "model=tiny", "data=gsm8k", "reward=gsm8k", "sampler.n=2", "data.train_batch_size=2"]
    )
    assert isinstance(run.data, Hub)
    ready = localized(run, fetched(run, [view := Mock()]))
    assert type(ready.data) is Files
    assert ready.data.train_batch_size == 2
    assert [row.ground_truth for row in ready.data.read("train", "prompts") if isinstance(row, Row)] == list("1234")
    assert ready.data.fingerprint() == localized(run, fetched(run, [])).data.fingerprint()
    assert any(phase.startswith("fetching openai/gsm8k") for phase in phases(view))
    with pytest.raises(Problems, match="is not downloaded"):
        next(iter(run.data.read("train", "prompts")))


def test_without_a_hub_a_dataset_is_here_whole_or_not_at_all(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place.add("o/d", {"x/a.jsonl": jsonl(GSM8K), "x/b.jsonl": jsonl(GSM8K)}, kind="dataset")
    one, both = (Hub(repo="o/d", train_files=(files,)) for files in ("x/a.jsonl", "x/*.jsonl"))
    downloaded = one.fetched(lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert one.local() == one.fetched(lambda _: None) == downloaded
    assert both.local() is Hub(repo="o/d", revision="v1", train_files=("x/a.jsonl",)).local() is None
    asked = len(place.asked)
    with pytest.raises(Problems) as caught:
        both.fetched(lambda _: None)
    line = "o/d: not here, and HF_HUB_OFFLINE forbids to download it; unset HF_HUB_OFFLINE once"
    with pytest.raises(Problems, match="o/policy: not here, and HF_HUB_OFFLINE forbids to download it"):
        prepared(hf_run("model.path=o/policy"), [])
    assert (caught.value.lines, len(place.asked)) == ([line], asked)


def test_plan_asks_no_hub(place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["plan", "algorithm=grpo", "model=tiny", "data=gsm8k", "reward=gsm8k", "sampler.n=2"])
    assert ran.exit_code == 0, ran.output
    assert place.asked == []
    rlrun("prepare", "gsm8k")
    asked = len(place.asked)
    words = ["algorithm=grpo", "model=tiny", "data=gsm8k", "sampler.n=2", "data.train_batch_size=1"]
    assert CliRunner().invoke(app, ["plan", *words, "reward=gsm8k"]).exit_code == 0
    ran = CliRunner().invoke(app, ["plan", *words, "reward=code"])
    assert ran.exit_code == 2  # what is here is looked at
    assert "cannot be scored" in ran.stdout
    assert len(place.asked) == asked


def test_what_nobody_gave_fits_what_was_fetched(place: Any) -> None:
    """A first launch, before anything is here, gets the values of the second."""
    place.add(
        "o/d", {"train.jsonl": jsonl([{"prompt": f"{n}+1>", "response": str(n)} for n in range(100)])}, kind="dataset"
    )
    config = {"model_type": "qwen3", "max_position_embeddings": 300, "hidden_size": 64, "vocab_size": 3}
    place.add("o/m", {"config.json": json.dumps(config).encode(), "model.safetensors": WEIGHTS})
    words = ["algorithm=sft", "model=hf", "model.path=o/m", "data=hub", "data.repo=o/d"]
    found = try_resolve(words)
    assert found.run
    here = fetched(found.run, [])
    asked, lines = refit_settings(found.run, found.given)
    local = localized(asked, here)
    assert asked.data.train_batch_size == local.data.train_batch_size == 8
    assert asked.max_sequence_length == 300 and asked.data.max_prompt_length == 100
    assert "data.train_batch_size: 256 -> 8, fitted to rows and processes" in "\n".join(lines)
    assert asked == run_of(words) and asked.optim.lr == resolve(words).optim.lr


def test_questions_about_mails_and_the_mails_come_from_a_hub(place: Any) -> None:
    """data=enron with environment.mailbox=corbt/enron-emails, in the columns that those datasets have."""
    asked = {"id": 7, "question": "When is lunch?", "answer": "on Monday", "message_ids": ["<1@x>"],
             "inbox_address": "a@x.org", "query_date": "2001-05-14"}  # fmt: skip
    files = {f"data/{split}-00000-of-00001.parquet": parquet([asked]) for split in ("train", "test")}
    place.add("corbt/enron_emails_sample_questions", files, kind="dataset")
    mails = [
        {"message_id": f"<{number}@x>", "subject": "lunch", "from": "b@x.org", "to": ["a@x.org"], "cc": [], "bcc": [],
         "date": "2001-05-14 09:00:00", "body": "Lunch is on Monday.", "file_name": f"a/{number}."}
        for number in range(3)
    ]  # fmt: skip
    place.add("corbt/enron-emails", {"data/train-00000-of-00001.parquet": parquet(mails)}, kind="dataset")
    made = rlrun("prepare", "enron")
    assert (made["rows"], made["refused"]) == ({"train": 1, "val": 1}, 0)
    [row] = rows(made["folder"], "prompts")
    assert (row.ground_truth, row.data_source) == ("on Monday", "corbt/enron_emails_sample_questions")
    wanted = {"message_ids": ["<1@x>"], "inbox_address": "a@x.org", "query_date": "2001-05-14"}
    assert wanted.items() <= row.extra_info.items()
    with closing(Mailbox(mailbox_of("corbt/enron-emails"))) as mailbox:
        assert [found.message_id for found in mailbox.search("lunch monday")] == ["<0@x>", "<1@x>", "<2@x>"]
        assert "to: a@x.org" in mailbox.read("<1@x>").text


# ---- models: a run brings them here before any process starts, and remembers where they lie

CONFIG = b'{"model_type": "qwen3"}'
WEIGHTS = (2).to_bytes(8, "little") + b"{}"  # a safetensors file without tensors


def prepared(run: RunSpec, sinks: list[Any]) -> RunSpec:
    return localized(run, fetched(run, sinks))


def hf_run(*words: str) -> RunSpec:
    return resolve(["algorithm=grpo", "data=reverse", "sampler.n=2", "model=hf", *words])


def test_both_models_become_folders(hub: Any, tmp_path: Path) -> None:
    hub.add("o/policy", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    hub.add("o/judge", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    run = hf_run("model.path=o/policy", "reward=model", "reward.path=o/judge", "reward.source=modelscope")
    found = prepared(run, [view := Mock()])
    assert isinstance(found.model, Pretrained) and found.model.path == str(tmp_path / "store/o/policy")
    assert isinstance(found.reward, RewardModel) and found.reward.path == str(tmp_path / "store/o/judge")
    assert any(phase.startswith("downloading o/judge") for phase in phases(view))
    assert any(asked.path.startswith("/api/v1/models/o/judge/repo/files") for asked in hub.asked)
    asked = len(hub.asked)
    assert prepared(run, []) == found
    assert len(hub.asked) == asked  # what is here is not asked for again


def test_a_reward_model_deep_in_a_sum_becomes_a_folder(hub: Any, tmp_path: Path) -> None:
    """The engine loads it from wherever it stands, so it is fetched from wherever it stands."""
    hub.add("o/judge", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    run = resolve(["algorithm=grpo", "data=reverse", "sampler.n=2", "model=tiny"])
    judge = RewardModel(path="o/judge")
    deep = Auto(parts={"sum": Weighted(parts={"judge": judge, "given": run.reward})})
    found = prepared(replace(run, reward=deep), []).reward
    here = replace(judge, path=str(tmp_path / "store/o/judge"))
    assert found == Auto(parts={"sum": Weighted(parts={"judge": here, "given": run.reward})})
