"""`rlrun config show`: what it says of a setting is what the class does with it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.descriptions import class_doc, description_of, fields_of, settings_of, shape_of
from launcher.config.reference import groups as handbook
from launcher.core.problems import Problems
from launcher.core.settings import AtLeastOne, Chosen, Count, Fraction, Names, Share, adapter, settings
from launcher.spec.reward import Reward
from launcher.spec.run import Decay, Name, RunSpec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = runpy.run_path(str(DOCS / "settings_page.py"))
TARGETS = [*(group.name for group in handbook.overview()), *handbook.PLAIN]


@settings
class Inner:
    size: AtLeastOne = 1
    """How large."""


@settings
class Base:
    """What is common."""

    kept: Count = 3
    """Kept as it is."""
    moved: Share = 0.5
    """Changed below."""


@settings
class Below(Base):
    moved: Share = 0.25
    inner: Inner = Field(default_factory=Inner)
    """Always there."""
    maybe: Inner | None = None
    """There when it is given."""
    asked: str
    """A setting without a default."""


@pytest.mark.parametrize(
    ("annotation", "kind", "range_", "values"),
    [
        (bool, "bool", "", ("true", "false")),
        (Fraction, "float", "0 < x < 1", ()),
        (Share, "float", "0 <= x <= 1", ()),
        (Annotated[int, Field(ge=0, lt=2**63)], "int", "0 <= x < 2^63", ()),
        (AtLeastOne | None, "int or null", ">= 1", ("null",)),
        (Literal["a", "b"] | None, "one of or null", "a, b", ("a", "b", "null")),
        (Names, "str or list[str]", "", ()),
        (tuple[Decay, Decay], "list[float]", "2 of them, each 0 <= x < 1", ()),
        (dict[str, Chosen[Reward]], "dict[str, a choice]", "", ()),
        (list[Any], "list[Any]", "", ()),
        (type, "Any", "", ()),
        (Name, "str", r"matches ^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # those of types hold addresses
)
def test_shape(annotation, kind, range_, values):
    shape = shape_of(annotation)
    assert (shape.kind, shape.range, shape.values) == (kind, range_, values)


def test_a_class_with_settings_inside():
    """A subclass keeps the string of what it changes; settings inside are rows of their own."""
    found = {one.name: one for one in settings_of(Below, "group")}
    names = ("kept", "moved", "inner.size", "maybe", "maybe.size", "asked")
    assert list(found) == [f"group.{name}" for name in names]
    assert (found["group.moved"].default, found["group.moved"].description) == (0.25, "Changed below.")
    assert (found["group.asked"].required, found["group.asked"].shown_default) == (True, "required")
    assert found["group.maybe"].shown_default == "null"


@pytest.mark.parametrize("target", TARGETS)
def test_every_setting_says_its_consequence(target):
    """The string under the field, or under the field that it overrides; and a string for every class. A `|` or `<` of
    a default or a text is no mark: every row of the page has as many cells as the head."""
    sections = handbook.sections(target)
    assert not [f"{section.title} of {target}: no class doc" for section in sections if not section.description]
    for one in (one for section in sections for one in section.settings):
        assert one.description[-1:] in (".", "`"), f"{one.name}: no sentence under it"
    rows = [line for line in PAGE["of_sections"](sections).splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows)


def test_every_default_is_within_its_range():
    """What is shown is taken by the class: each default, put in by itself as JSON, is accepted."""
    for target in TARGETS:
        chosen = [] if target in handbook.PLAIN else handbook.choices(target)
        for cls in dict.fromkeys(choice.cls for choice in chosen):
            for name, declared in fields_of(cls).items():
                if not declared.is_required():
                    default = declared.get_default(call_default_factory=True, validated_data={})
                    try:
                        adapter(cls).validate_python({name: default})
                    except ValidationError as error:
                        assert all(one["loc"] != (name,) for one in error.errors()), (cls, name)


def test_a_setting_is_shown_for_each_class_that_declares_it():
    found = {section.title: section.settings[0].default for section in handbook.sections("algorithm.clip_ratio_high")}
    assert found == {"Clipped": 0.2, "DAPO": 0.28, "GSPO": 4e-4}


def test_what_a_choices_file_sets():
    (section,) = handbook.sections("model=qwen3-0.6b")
    assert section.sets["model.path"] == "Qwen/Qwen3-0.6B"
    assert section.sets["model.architecture.hidden_size"] == "1024"
    assert handbook.sections("model=hf")[0].sets == {"model.path": "required"}
    assert handbook.sections("reward=gsm8k_format")[0].sets["reward.parts"] == "[gsm8k, format]"


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("algorihm", "'algorihm': no group or setting 'algorihm'; did you mean algorithm?"),
        ("algorithm=grop", "algorithm: no choice 'grop'; did you mean grpo?"),
        ("algorithm.cilp_ratio_high", "algorithm.cilp_ratio_high: algorithm has no setting 'cilp_ratio_high';"
                                      " did you mean clip_ratio_high?"),
        ("trainer=1", "'trainer=1': is not a choice; use GROUP=CHOICE"),
        ("", "'': no group or setting ''; it may be algorithm, cluster, code_dir, critic, data, engine, environment,"
             " hardware, health, model, optim, reward, sampler, seed, trainer"),
    ],
)  # fmt: skip
def test_a_target_that_there_is_not_is_named(target, line):
    with pytest.raises(Problems) as caught:
        handbook.sections(target)
    assert caught.value.lines == [line]


def test_a_choice_of_ones_own_is_shown(tmp_path):
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "mine.yaml"
    file.write_text("# Mine.\n_target_: launcher.data.reverse.Reverse\nn_val: 8\n")
    (section,) = handbook.sections("data=mine", tmp_path)
    assert section.sets == {"data.n_val": "8"}
    assert "mine" in handbook.overview(tmp_path)[2].choices
    file.write_text("_target_: launcher.algorithms.grpo.GRPO\n")
    with pytest.raises(Problems, match="is not of class Dataset"):
        handbook.sections("data=mine", tmp_path)


def test_a_class_without_a_file_has_no_strings():
    made = settings(type("Made", (), {"__annotations__": {"size": int}, "size": 1, "__module__": "nowhere"}))
    assert description_of(made, "size") == "" == class_doc(made)


def test_the_command_prints_lines_and_json():
    """The consequence has lines of its own."""
    lines = CliRunner().invoke(app, ["config", "show", "model=hf"]).stdout.splitlines()
    assert lines[lines.index("model.path  str · required · this choice: required") + 1].startswith("    Hub id (")
    node = json.loads(CliRunner().invoke(app, ["config", "show", "trainer.save_freq", "--json"]).stdout)
    (one,) = node[0]["settings"]
    assert (one["setting"], one["type"], one["default"], one["range"]) == ("trainer.save_freq", "int", -1, ">= -1")
    groups = json.loads(CliRunner().invoke(app, ["config", "show", "--json"]).stdout)
    assert [group["group"] for group in groups][:2] == ["algorithm", "model"]
    assert CliRunner().invoke(app, ["config", "show", "nothing"]).exit_code == 2


def test_the_page_of_settings_is_up_to_date():
    """`make settings` writes it."""
    page = DOCS / "settings.md"
    assert PAGE["whole"]() == page.read_text()
    assert all(f"\n## {name}\n" in page.read_text() for name in fields_of(RunSpec))
