"""Mechanisms of one's own: what the base class answers for them, and how they get a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eyeline import (
    GPT2,
    Block,
    Causal,
    FeedForward,
    Full,
    GPT2Config,
    MultiHeadAttention,
    Pattern,
    Stack,
    Tokens,
    cost,
    explain,
    load,
    max_path_length,
    pairs,
    parse,
    recipe,
    save,
)
from eyeline.caches import Cache, LayerCache, Layout, State
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.functional import attention
from eyeline.mechanisms import Exact, Heads, LinearAttention, Mechanism, TopK, register
from eyeline.mechanisms.base import MECHANISMS
from eyeline.planning import dense_mask
from eyeline.testing import Claims, check_mechanism
from eyeline.training.run import Shape

CAUSAL = Causal()
CONFIG = GPT2Config(50, width=32, hidden=64, layers=3, heads=4, trained_length=40)


class RunningMean(Mechanism):
    """out[i] = decay · out[i - 1] + (1 - decay) · v_i: with a state of its own."""

    pattern: Pattern = CAUSAL

    def __init__(self, decay: float = 0.5) -> None:
        super().__init__()
        self.decay = decay

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        return self._run(value, torch.zeros_like(value[:, :, :1]))

    def _run(self, value: Tensor, state: Tensor) -> Tensor:
        rows = []
        for row in value.split(1, 2):
            state = self.decay * state + (1 - self.decay) * row
            rows.append(state)
        return torch.cat(rows, 2)

    def new_cache(self, layout: Layout) -> Cache:
        shape = layout.batch, layout.num_kv_heads, 1, layout.value_dim
        return State(CAUSAL, layout, (torch.zeros(shape, dtype=layout.dtype),))

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        place: LayerCache,
        q_tokens: Tokens,
        inputs: Tensor | None = None,
    ) -> Tensor:
        assert isinstance(place.cache, State)
        out = self._run(value, place.cache.kept(place.layer, key, value)[0])
        place.cache.keep(place.layer, (out[:, :, -1:],))
        return out


@register("gated_for_tests")
class Gated(Mechanism):
    """σ(mean of the layer's input) · attention: it needs that input."""

    needs_input = True
    pattern: Pattern = CAUSAL

    def __init__(self, gain: float = 1.0, *, pattern: Pattern = CAUSAL) -> None:
        super().__init__()
        self.gain, self.pattern = gain, pattern

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        gate = self.gain * self.required(inputs).mean(-1).sigmoid()
        out = attention(query, key, value, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens)
        return out * gate[:, None, :, None]


def stack(*mechanisms: Mechanism) -> Stack:
    torch.manual_seed(0)
    blocks = [Block(MultiHeadAttention(12, 3, mechanism=x), FeedForward(12, 7)) for x in mechanisms]
    return Stack(blocks).double().eval()


# --- Caches and the layer's input ----------------------------------------------------------------


def kinds(count: int) -> dict[str, list[Mechanism]]:
    return {
        "own": [RunningMean(0.1 * (n + 1)) for n in range(count)],
        "own and kept keys": [RunningMean(), Exact(CAUSAL), RunningMean(), TopK(3, pattern=CAUSAL)],
        "own and another's": [RunningMean(), LinearAttention(3, 4, pattern=CAUSAL), RunningMean()],
    }


@torch.no_grad()
@pytest.mark.parametrize("kind", kinds(1))
@pytest.mark.parametrize("size", [1, 3])
def test_states_of_their_own_are_never_shared(kind: str, size: int) -> None:
    model, x = stack(*kinds(3)[kind]), torch.randn(2, 11, 12, dtype=torch.float64)
    caches = model.new_caches(2)
    steps = torch.cat([model(part, caches=caches) for part in x.split(size, 1)], 1)
    torch.testing.assert_close(steps, model(x), rtol=0, atol=1e-9)


@torch.no_grad()
def test_one_module_in_two_layers_shares_a_cache_and_no_state() -> None:
    mean = RunningMean()
    model, x = stack(mean, mean), torch.randn(2, 7, 12, dtype=torch.float64)
    caches = model.new_caches(2)
    assert len(caches) == 1
    steps = torch.cat([model(part, caches=caches) for part in x.split(2, 1)], 1)
    torch.testing.assert_close(steps, model(x), rtol=0, atol=1e-9)


def test_a_mechanism_is_given_the_layers_input() -> None:
    check_mechanism(lambda: Gated(), Claims(weights_sum_to_one=False))
    layer, x = MultiHeadAttention(12, 3, mechanism=Gated()).double(), torch.randn(2, 5, 12).double()
    plain = MultiHeadAttention(12, 3, mechanism=Exact(CAUSAL)).double()
    plain.load_state_dict(layer.state_dict())
    heads = [plain.v_proj(x), layer.v_proj(x)]
    assert torch.equal(*heads) and not torch.equal(layer(x), plain(x))
    changed = x.clone()
    changed[:, 0] += 1
    assert not torch.equal(layer(changed)[:, 0], layer(x)[:, 0])
    with pytest.raises(NotSupported, match="needs the input of the layer"):
        Gated()(*torch.randn(3, 2, 3, 5, 4).unbind())
    with pytest.raises(NotSupported, match="cross attention has two"):
        layer(x, x)
    with pytest.raises(NotSupported, match="they depend on the layer's input"):
        Gated().weights(*torch.randn(2, 2, 3, 5, 4).unbind())


# --- Words ---------------------------------------------------------------------------------------


def test_options_are_those_of_the_constructor() -> None:
    made = recipe("gated_for_tests(gain=0.5)").make(CAUSAL, Heads(3, 3, 4))
    assert isinstance(made, Gated) and made.gain == 0.5 and made.word == "gated_for_tests"
    with pytest.raises(InvalidArgument, match="gated_for_tests takes gain"):
        recipe("gated_for_tests(loss=0.5)")
    with pytest.raises(NotSupported, match="no weights to leave out"):
        recipe("gated_for_tests").make(CAUSAL, Heads(3, 3, 4), dropout=0.5)


@pytest.mark.parametrize("word", sorted(MECHANISMS))
def test_defaults_are_typed_once(word: str) -> None:
    """A recipe without options that have defaults makes what the class makes."""
    options = MECHANISMS[word].options()
    assert not {"pattern", "dropout", "num_heads", "num_kv_heads", "head_dim"} & set(options)


def test_a_word_is_of_one_class() -> None:
    with pytest.raises(InvalidArgument, match="the word 'exact' is that of eyeline"):
        register("exact")(RunningMean)
    with pytest.raises(InvalidArgument, match="the word 'My-Own'"):
        register("My-Own")(RunningMean)
    with pytest.raises(InvalidArgument, match="is no Mechanism"):
        register("linear_layer")(nn.Linear)  # type: ignore[type-var]
    assert "linear_layer" not in MECHANISMS


@torch.no_grad()
def test_a_folder_keeps_it_and_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = GPT2(CONFIG, mechanism=[recipe("exact"), recipe("gated_for_tests"), recipe("exact")])
    save(model, tmp_path)
    loaded, ids = load(tmp_path, dtype=torch.float32).model, torch.arange(20)[None]
    assert torch.equal(loaded(ids), model.eval()(ids))
    caches = model.new_caches()
    steps = torch.cat([model(part, caches=caches) for part in ids.split(3, 1)], 1)
    torch.testing.assert_close(steps, model(ids), rtol=0, atol=2e-5)
    monkeypatch.delitem(MECHANISMS, "gated_for_tests")
    with pytest.raises(CheckpointError, match=r"no mechanism 'gated_for_tests'.*--import"):
        load(tmp_path)


MODULE = """
from dataclasses import dataclass
from eyeline import Causal, Pattern, attention, patterns
from eyeline.mechanisms import Mechanism, register

@patterns.register
@dataclass(frozen=True)
class EveryOther(Pattern):
    step: int = 2
    def allows(self, q, k):
        return (q.position - k.position) % self.step == 0

@register("plain_own")
class Plain(Mechanism):
    def __init__(self, power: int, *, pattern=Causal()):
        super().__init__()
        self.pattern = pattern
    def forward(self, query, key, value, *, q_tokens=None, k_tokens=None):
        return attention(query, key, value, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens)
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from eyeline.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True
    )


def test_every_verb_knows_an_imported_module(tmp_path: Path) -> None:
    (tmp_path / "own_parts.py").write_text(MODULE)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    own = "--import", "own_parts"
    shape = "--layers", "1", "--width", "16", "--heads", "2", "--length", "16"
    course = "--steps", "2", "--batch-tokens", "32", "--every", "2"
    looks = "--mechanism", "plain_own(power=2)", "--pattern", "causal & every_other(step=3)"
    trained = command(tmp_path, "train", "lm", "text.txt", "--out", "m", *shape, *course, *looks)
    assert trained.returncode == 2 and "--import" in trained.stderr
    trained = command(
        tmp_path, "train", "lm", "text.txt", "--out", "m", *shape, *course, *looks, *own
    )
    assert trained.returncode == 0, trained.stderr
    refused = command(tmp_path, "generate", "m", "to be", "--max-new-tokens", "2")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    written = command(tmp_path, "generate", "m", "to be", "--max-new-tokens", "2", *own)
    assert written.returncode == 0, written.stderr
    timed = command(tmp_path, "bench", *looks, *own, "--length", "64", "--rounds", "1")
    assert timed.returncode == 0 and "plain_own" in timed.stdout, timed.stderr
    for wrong, words in (("own_parts.py", "no file"), ("nowhere", "ModuleNotFoundError")):
        answer = command(tmp_path, "plan", "causal", "--length", "8", "--import", wrong)
        assert answer.returncode == 2 and words in answer.stderr, answer.stderr


class Entry:
    """An entry point whose module registers a mechanism when it is loaded."""

    name, value = "own", "own_plugin"

    def load(self) -> None:
        register("from_a_plugin")(RunningMean)


class Broken(Entry):
    def load(self) -> None:
        raise ImportError("no such thing")


@pytest.mark.parametrize("entry", [Entry, Broken])
def test_plugins_are_imported_for_a_word_that_is_not_known(
    entry: type[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.registry.entry_points", lambda group: [entry()])
    monkeypatch.setattr("eyeline.registry._plugins_loaded", False)
    monkeypatch.setattr(RunningMean, "word", None)
    if entry is Broken:
        with pytest.raises(InvalidArgument, match="plugin own, own_plugin: ImportError: no such"):
            recipe("from_another_plugin")
        return
    assert recipe("from_a_plugin(decay=0.25)").kind is RunningMean
    del MECHANISMS["from_a_plugin"]


# --- What is asked of it, and what to write instead ----------------------------------------------


class OwnBlockAndFirst(Mechanism):
    """Each query attends to its own block, and to the first one."""

    causality = "none"
    no_cache = "it is not causal"

    def __init__(self, *, forgotten: bool = False) -> None:
        super().__init__()
        self.rule = parse("blocks([[1, 0, 0], [1, 1, 0], [1, 0, 1]], size=5)")
        if forgotten:
            self.rule = parse("blocks([[1, 0, 0], [1, 0, 0], [1, 0, 0]], size=5)")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        return attention(query, key, value, self.rule, q_tokens=q_tokens, k_tokens=k_tokens)


def densely(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    place = torch.arange(query.shape[2]) // 5
    mask = (place[:, None] == place) | (place == 0)
    score = query @ key.repeat_interleave(2, 1).mT / query.shape[3] ** 0.5
    weight = score.masked_fill(~mask, -torch.inf).softmax(-1)
    return weight @ value.repeat_interleave(2, 1)


def test_a_dense_definition_finds_what_no_property_does() -> None:
    claims = Claims(lengths=(15,))
    check_mechanism(OwnBlockAndFirst, claims, reference=densely)
    check_mechanism(lambda: OwnBlockAndFirst(forgotten=True), claims)
    with pytest.raises(AssertionError, match="equals_its_reference, 15 tokens: not what"):
        check_mechanism(lambda: OwnBlockAndFirst(forgotten=True), claims, reference=densely)


def test_any_error_is_told_with_property_and_length() -> None:
    with pytest.raises(AssertionError, match="all_types, 29 tokens: InvalidArgument: the layout"):
        check_mechanism(OwnBlockAndFirst, Claims(lengths=(29,)))


def test_what_to_write_instead() -> None:
    x = torch.randn(1, 2, 5, 4)
    with pytest.raises(InvalidArgument, match=r"TopK\(…\)\.explain\(query, key\)"):
        explain(x, x, x, TopK(2))
    with pytest.raises(InvalidArgument, match=r"cost\(TopK\(…\), length\)"):
        pairs(TopK(2), 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="one text for all layers"):
        Shape("gpt2", 1, 8, 2, 8, mechanism=("exact",))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="derived from Mechanism"):
        MultiHeadAttention(8, 2, mechanism=nn.Identity())  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="RunningMean does not say what it multiplies"):
        cost(RunningMean(), 8)
    with pytest.raises(NotSupported, match="chooses pairs by content"):
        max_path_length(TopK(2), 8)
    assert max_path_length(Exact(Full()), 8) == 1
    assert Exact(CAUSAL).explain(x, x)["causality"] == "functional"


def test_weights_of_what_content_chose_can_be_drawn() -> None:
    x = torch.randn(1, 8, 12)
    layer = MultiHeadAttention(12, 3, mechanism=TopK(2, pattern=CAUSAL)).eval()
    weight = layer.weights(x)
    assert weight.shape == (1, 3, 8, 8)
    assert not weight[:, :, ~dense_mask(CAUSAL, 8)].any()
    assert int((weight > 0).sum(-1).max()) == 2
