"""All that can be set: groups, choices and settings."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter

from launcher.config.descriptions import Setting
from launcher.config.reference import groups as handbook
from launcher.server.answers import Json

router = APIRouter(prefix="/api", tags=["launch"])


@router.get("/schema", responses={200: {"model": dict[str, Any]}})
def read_schema() -> Json:
    """The config groups with their choices, and every setting."""
    return Json(_schema())


@cache
def _schema() -> dict[str, Any]:
    """Cached, as it loads the classes of all choices."""
    groups, settings = list[dict[str, Any]](), list[dict[str, Any]]()
    for group in handbook.overview():
        found_choices = handbook.choices(group.name)
        choices = [{"name": each.name, "help": each.description, "sets": dict(each.sets)} for each in found_choices]
        groups.append({"name": group.name, "help": group.description, "default": group.default, "choices": choices})
    for target in (*(group["name"] for group in groups), *handbook.PLAIN):
        for section in handbook.sections(target):
            settings += [_setting_node(each, target, section.choices) for each in section.settings]
    return {"groups": groups, "settings": settings}


def _setting_node(of: Setting, group: str, choices: list[str]) -> dict[str, Any]:
    kind = " ".join(filter(None, (of.shape.kind, of.shape.range)))
    return {
        "name": of.name, "type": kind, "default": None if of.required else of.default, "required": of.required,
        "choices": list(of.shape.values), "help": of.description, "group": group,
        "choice": [choice.partition("=")[2] for choice in choices],
    }  # fmt: skip
