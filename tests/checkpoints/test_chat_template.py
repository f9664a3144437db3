"""Chat templates are strangers' programs: they write text, and can do nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from eyeline.errors import CheckpointError, InvalidArgument
from eyeline.tokenizer import render

HELLO = [{"role": "user", "content": "hello"}]


def written(template: str, messages: Any = HELLO, **more: Any) -> str:
    return render(template, messages, special={"eos_token": "</s>"}, reply=more.get("reply", True))


def test_what_templates_use() -> None:
    assert written("{{ messages[0]['content'] }}{{ eos_token }}") == "hello</s>"
    assert written("{% if add_generation_prompt %}>{% endif %}", reply=False) == ""
    assert written("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}") == "  user\n"
    assert written('{{ {"a": "é<"} | tojson }}') == '{"a": "é<"}'
    assert (
        written("{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert len(written('{{ strftime_now("%Y") }}')) == 4


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ none_such.field }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        "{{ messages[7]['role'] }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_templates_cannot_do(template: str) -> None:
    with pytest.raises(CheckpointError, match="chat template fails") as error:
        written(template)
    assert "\n" not in str(error.value)
    assert HELLO == [{"role": "user", "content": "hello"}]


def test_a_template_may_refuse() -> None:
    with pytest.raises(InvalidArgument, match="refuses them: 'no\\\\nsystem'"):
        written("{{ raise_exception('no\nsystem') }}")


@pytest.mark.parametrize(
    "messages", [[{}], [{"role": "user"}], [{"role": 1, "content": ""}], ["x"]]
)
def test_messages_have_role_and_content(messages: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"messages\[0\]: a text under '(role|content)'"):
        written("", messages)
