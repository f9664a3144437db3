"""Writing: single texts, batches, stopping, interrupts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.generation import Stream, generate, stream
from eyeline.models import Llama
from eyeline.patterns import Causal, Pattern, sliding_window, streaming
from eyeline.sampling import Sampler
from models.tiny import ids, llama

PROMPT = ids(1, 11)[0].tolist()
# Written far past the window and past the 23 tokens of training.
PATTERNS = [Causal(), streaming(5, 2), [Causal(), sliding_window(3), streaming(5, 2)]]


def slowly(model: Llama, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy, with the whole text read again for every token."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("pattern", PATTERNS, ids=["causal", "streaming", "per layer"])
def test_greedy_writing_equals_reading_all_again(pattern: Pattern | list[Pattern]) -> None:
    model = llama(pattern=pattern).double()
    assert list(stream(model, PROMPT, max_new_tokens=31)) == slowly(model, PROMPT, 31)


@pytest.mark.parametrize("pattern", PATTERNS, ids=["causal", "streaming", "per layer"])
def test_a_batch_equals_its_rows(pattern: Pattern | list[Pattern]) -> None:
    model = llama(pattern=pattern).double()
    prompts = [PROMPT, PROMPT[:1], PROMPT[3:8], PROMPT[::-1]]
    texts = generate(model, prompts, max_new_tokens=23)
    assert texts == [list(stream(model, prompt, max_new_tokens=23)) for prompt in prompts]
    even = generate(model, [PROMPT, PROMPT[::-1]], max_new_tokens=23)
    assert even == [texts[0], texts[3]]


def test_rows_stop_by_themselves() -> None:
    model = llama().double()
    prompts = [PROMPT, PROMPT[:5], PROMPT[2:3]]
    free = generate(model, prompts, max_new_tokens=13)
    # An id that is new in its text and not written again at once.
    at = next(i for i in range(2, 12) if free[0][i] not in (*free[0][:i], free[0][i + 1]))
    stop = free[0][at]
    cut = [text[: text.index(stop)] if stop in text else text for text in free]
    assert generate(model, prompts, max_new_tokens=13, stop={stop}) == cut
    writing = stream(model, PROMPT, max_new_tokens=13, stop=[stop])
    assert list(writing) == cut[0] and list(writing) == []


def test_recounted_writing_goes_on_past_the_trained_length() -> None:
    model = llama(pattern=streaming(5, 2), encodings="recounted")
    prompt = ids(1, 300)[0].tolist()
    farthest, tables = [0], model._tables

    def watched(positions: torch.Tensor) -> Any:
        farthest.append(int(positions.max()))
        return tables(positions)

    model._tables = watched  # type: ignore[method-assign]
    writing = stream(model, prompt, max_new_tokens=40)
    assert len(list(writing)) == 40 and writing.caches[0].length == 7
    assert max(farthest) < 256 + 7 and farthest[-1] == 6
    texts = generate(model, [prompt, prompt[:290]], max_new_tokens=3)
    assert [len(text) for text in texts] == [3, 3]


def test_a_text_goes_on_from_given_caches() -> None:
    model = llama(pattern=streaming(5, 2)).double()
    want = list(stream(model, PROMPT, max_new_tokens=9))
    writing = stream(model, PROMPT, max_new_tokens=4)
    first = list(writing)
    rest = stream(model, first[-1:], max_new_tokens=5, caches=writing.caches)
    assert first + list(rest) == want


def test_the_numbers_of_a_stream() -> None:
    writing = stream(llama(), PROMPT, max_new_tokens=6)
    assert (writing.prompt_tokens, writing.prompt_seconds, writing.tokens_per_second) == (11, 0, 0)
    next(writing)
    assert writing.prompt_seconds > 0 and writing.written == 0
    list(writing)
    assert writing.written == 5 and writing.tokens_per_second > 0
    assert writing.caches[0].position == 11 + 5
    assert list(stream(llama(), PROMPT, max_new_tokens=0)) == []
    assert generate(llama(), [PROMPT], max_new_tokens=0) == [[]]


def test_seeds_repeat_and_differ() -> None:
    model = llama()
    texts = [
        list(stream(model, PROMPT, max_new_tokens=17, sampler=Sampler(temperature=1.0, seed=seed)))
        for seed in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]
    sampler = Sampler(temperature=1.0, seed=5)
    batches = [generate(model, [PROMPT] * 2, max_new_tokens=17, sampler=sampler) for _ in range(2)]
    assert batches[0] == batches[1] and batches[0][0] != batches[0][1]


class Interrupting:
    """Stands in a layer's place, and stops the third call with Ctrl-C after the cache was used."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.calls = layer, 0

    def __call__(self, *inputs: Any) -> Any:
        out = self.layer(*inputs)
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return out


@pytest.mark.parametrize("pattern", PATTERNS, ids=["causal", "streaming", "per layer"])
def test_an_interrupt_leaves_the_text_so_far_and_caches_to_go_on_with(
    pattern: Pattern | list[Pattern],
) -> None:
    model = llama(pattern=pattern).double()
    want = list(stream(model, PROMPT, max_new_tokens=7))
    writing = stream(model, PROMPT, max_new_tokens=7)
    got, forward = [], model.layers[1].forward
    model.layers[1].forward = Interrupting(forward)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        for token in writing:
            got.append(token)
    model.layers[1].forward = forward  # type: ignore[method-assign]
    assert got == want[:2] and writing.written == 1
    assert got + list(writing) == want


def test_the_caller_is_not_left_in_inference_mode() -> None:
    writing = stream(llama(), PROMPT, max_new_tokens=3)
    next(writing)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ([], {}, "empty prompt"),
        ([1, 89], {}, "id 89 is not in the vocabulary of 89"),
        ([-1], {}, "id -1"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens=-1"),
    ],
)
def test_wrong_calls(prompt: list[int], options: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        stream(llama(), prompt, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=named):
        generate(llama(), [[1], prompt], **options)  # type: ignore[arg-type]


def test_no_prompts() -> None:
    with pytest.raises(InvalidArgument, match="no prompts"):
        generate(llama(), [])


def test_a_stream_is_an_iterator() -> None:
    writing = stream(llama(), PROMPT, max_new_tokens=2)
    assert isinstance(writing, Stream) and iter(writing) is writing
