"""Every key of a row is read as it is meant, named, or refuses the row; keys of a table of data do nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from launcher.core.check_result import CheckResult
from launcher.data.files import Files
from launcher.data.keys import unread_keys
from launcher.spec.data import RefusedRow, Row, prompt_node

TABLE = yaml.safe_load(Path(__file__).with_name("row_keys.yaml").read_text())


def read_row(folder: Path, values: dict[str, Any], kind: Any, **settings: Any) -> Row | RefusedRow:
    (folder / "rows.jsonl").write_text(json.dumps(values) + "\n")
    (found,) = Files(train_files=(str(folder / "rows.jsonl"),), **settings).read("train", kind)
    return found


def texts_of(row: Row) -> list[str]:
    """What the model is shown and learns, in order."""
    turns = [row.prompt] if isinstance(row.prompt, str) else prompt_node(row.prompt)
    nodes = [*turns, row.response, row.rejected, dict(row.response_extra), dict(row.template_args)]
    texts = [node if isinstance(node, str) else list(node.values()) for node in nodes if node]
    return [
        text for node in texts for part in ([node] if isinstance(node, str) else node) for text in str(part).split()
    ]


def warnings_of(*rows: Row) -> list[CheckResult]:
    return [result for result in unread_keys(rows) if result.level != "OK"]


@pytest.mark.parametrize("case", TABLE["meaning"], ids=lambda case: json.dumps(case["row"]))
def test_a_key_that_changes_the_meaning_is_read_or_named(tmp_path: Path, case: dict[str, Any]) -> None:
    settings = {name: case[name] for name in ("prompt_key", "response_key") if name in case}
    row = read_row(tmp_path, case["row"], case.get("kind", "answers"), **settings)
    if "refused" in case:
        assert isinstance(row, RefusedRow) and case["refused"] in row.reason
        return
    assert isinstance(row, Row), row.reason
    found = warnings_of(row)
    if "named" in case:
        assert case["named"] in row.unread
        line = next(result for result in found if case["named"] in result.message)
        assert "rows.jsonl:1" in line.message and "1 of 1 rows" in line.message and line.fix
        assert case.get("fix", "") in line.fix
    else:
        words = ("user", "assistant")
        assert [text for text in texts_of(row) if text not in words] == case["read"] and not found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"prompt": "q", "response": "a"}, "answers"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "answers"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "pairs"),
        ({"question": "q", "answer": "a"}, "prompts"),
    ],
)
def test_keys_of_a_table_of_data_change_nothing(tmp_path: Path, values: dict[str, Any], kind: str) -> None:
    row, bare = read_row(tmp_path, {**values, **TABLE["plain"]}, kind), read_row(tmp_path, values, kind)
    assert isinstance(row, Row) and isinstance(bare, Row)
    assert texts_of(row) == texts_of(bare) and not warnings_of(row)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_a_number_that_is_none_refuses_a_row_only_where_it_is_read(tmp_path: Path, ending: str) -> None:
    nan = float("nan")
    rows = [
        {"prompt": "q", "score": nan, "scores": [nan, 1.0], "ground_truth": 1.0},
        {"prompt": "q", "ground_truth": nan},
    ]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    first, second = Files(train_files=(str(path),)).read("train", "prompts")
    assert isinstance(first, Row) and not warnings_of(first)
    assert isinstance(second, RefusedRow) and "ground_truth is nan" in second.reason
