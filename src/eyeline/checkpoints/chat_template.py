"""Conversations as text, through the chat template that comes with a model.

A template is a program by a stranger: it runs in jinja2's sandbox, where it can read what it is
given and nothing else, and change nothing.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from eyeline.checkpoints.base import optional, shown
from eyeline.errors import CheckpointError, InvalidArgument


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    special: Mapping[str, str],
    reply: bool,
) -> str:
    """The conversation as the template writes it.

    `special`: names such as `bos_token` with their texts; `reply`: end where an answer begins.
    Raises InvalidArgument for a message without role or content, or one the template refuses, and
    CheckpointError for a template that fails.
    """
    jinja2 = optional("jinja2")
    for number, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(key), str):
                raise InvalidArgument(f"messages[{number}]: a text under {key!r} is due")
    try:
        return str(
            _environment()
            .from_string(template)
            .render(messages=list(messages), add_generation_prompt=reply, **special)
        )
    except jinja2.TemplateError as error:
        raise _failed(error) from None
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _failed(error) from None


def _failed(error: Exception) -> CheckpointError:
    return CheckpointError(f"the model's chat template fails: {shown(str(error), limit=160)}")


def _environment() -> Any:
    """The names that published templates use, and no others."""
    optional("jinja2")
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: object) -> NoReturn:
    raise InvalidArgument(f"messages: the chat template refuses them: {shown(reason, limit=160)}")


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
