"""convert and restore: whole models, in place, with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from eyeline import Causal, Full, Pattern, PerHead, Window, dense_mask, sliding_window
from eyeline.errors import InvalidArgument
from eyeline.layers.conversion import Report, TorchAttention, convert, restore
from eyeline.patterns import Explicit

WIDTH, HEADS, N, S = 16, 4, 13, 7
PADS = torch.arange(N) >= torch.tensor([[N], [9]])


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True, **options}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 23, dtype=torch.float64, **options)
    # torch warns that layers of most kinds have no nested fast path.
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=_can_be_nested(options))


def _can_be_nested(options: dict[str, Any]) -> bool:
    return options["batch_first"] and not options.get("norm_first") and options.get("bias", True)


def sequence(length: int = N, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, WIDTH, generator=generator, dtype=torch.float64)


class Users(nn.Module):
    """A model of a user's own, that nobody foresaw: torch's modules, in all sorts of places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        options = {"batch_first": True, "dtype": torch.float64}
        self.first = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.more = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, **options), self.first])
        self.body = encoder()
        self.cross = nn.ModuleDict({"look": nn.MultiheadAttention(WIDTH, HEADS, **options)})
        decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 23, dropout=0.0, **options)
        self.head = nn.TransformerDecoder(decoder, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        x = x + self.first(x, x, x)[0]
        for layer in self.more:
            x = x + layer(x, x, x, attn_mask=mask, need_weights=False, is_causal=True)[0]
        x = self.body(x, src_key_padding_mask=PADS)
        x = x + self.cross["look"](x, memory, memory, need_weights=False)[0]
        found: Tensor = self.head(x, memory, tgt_mask=mask)
        return found


NAMES = ["first", "more.0", "body.layers.0.self_attn", "body.layers.1.self_attn", "cross.look"]
NAMES += [f"head.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn", "multihead_attn")]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("bias", [False, True])
def test_an_encoder_under_the_full_pattern(
    norm_first: bool, batch_first: bool, mode: str, bias: bool
) -> None:
    model = encoder(norm_first=norm_first, batch_first=batch_first, bias=bias)
    model.train(mode == "train")
    x = sequence() if batch_first else sequence().transpose(0, 1)
    causal = nn.Transformer.generate_square_subsequent_mask(N, dtype=x.dtype)
    random = torch.rand(N, N, generator=torch.Generator().manual_seed(2)) < 0.5
    random.fill_diagonal_(False)
    calls: list[dict[str, Any]] = [
        {}, {"src_key_padding_mask": PADS}, {"mask": causal}, {"mask": random},
        {"mask": causal, "is_causal": True}, {"mask": random, "src_key_padding_mask": PADS},
    ]  # fmt: skip
    real = ~PADS if batch_first else ~PADS.T
    with torch.set_grad_enabled(mode != "no_grad"):
        before = [model(x, **call) for call in calls]
        report = convert(model, Full())
        for right, call in zip(before, calls, strict=True):
            # torch's nested fast path, and only that, gives 0 for pads.
            torch.testing.assert_close(model(x, **call)[real], right[real])
    assert report.difference is not None
    assert report.difference < 1e-12
    assert not model.use_nested_tensor


@pytest.mark.parametrize("training", [False, True])
def test_nothing_goes_past_the_pattern(training: bool) -> None:
    """In eval without gradients torch would compute the whole layer by its fast path."""
    model = encoder().train(training)
    x, pattern = sequence(), Window(2, 1)
    with torch.no_grad():
        right = model(x, mask=~dense_mask(pattern, N))
        convert(model, pattern)
        torch.testing.assert_close(model(x), right)
        # A mask of the call holds on top of it.
        mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=x.dtype)
        both = model(x, mask=mask)
        restore(model)
        torch.testing.assert_close(both, model(x, mask=~dense_mask(pattern & Causal(), N)))


def test_a_decoder_layer_looks_at_all_of_its_memory() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 23, dropout=0.0, dtype=torch.float64)
    tgt, memory = sequence().transpose(0, 1), sequence(S, 2).transpose(0, 1)
    pads = torch.arange(S) >= torch.tensor([[4], [S]])
    forbidden = torch.rand(N, S, generator=torch.Generator().manual_seed(5)) < 0.4
    forbidden[:, 0] = False
    calls: list[dict[str, Any]] = [
        {}, {"memory_mask": forbidden}, {"memory_key_padding_mask": pads},
        {"tgt_key_padding_mask": PADS, "memory_mask": forbidden},
    ]  # fmt: skip
    mask = ~dense_mask(sliding_window(4), N)
    before = [layer(tgt, memory, tgt_mask=mask, **call) for call in calls]
    report = convert(layer, sliding_window(4))
    assert [x.pattern for x in report.replaced] == [sliding_window(4), Full()]
    assert report.inside == ("",)
    for right, call in zip(before, calls, strict=True):
        torch.testing.assert_close(layer(tgt, memory, **call), right)


def test_a_users_model() -> None:
    model = Users().eval()
    x, memory = sequence(), sequence(S, 2)
    right = model(x, memory)
    parameters = list(model.parameters())
    report = convert(model, {"cross.look": Full(), "*": Full()})
    found = model(x, memory)
    torch.testing.assert_close(found[~PADS], right[~PADS])
    assert [x.names[0] for x in report.replaced] == NAMES
    assert report.inside == (
        "body", "body.layers.0", "body.layers.1", "head", "head.layers.0", "head.layers.1"
    )  # fmt: skip
    assert not report.left
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert not any(isinstance(m, nn.MultiheadAttention) for m in model.modules())


@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_without_a_batch(batch_first: bool) -> None:
    model, x = encoder(batch_first=batch_first).eval(), sequence()[0]
    pads, mask = PADS[1], ~dense_mask(Window(3, 3), N)
    calls: list[dict[str, Any]] = [{}, {"src_key_padding_mask": pads}, {"mask": mask}]
    before = [model(x, **call) for call in calls]
    convert(model, Full())
    for right, call in zip(before, calls, strict=True):
        torch.testing.assert_close(model(x, **call), right)


def test_a_tied_module_is_replaced_once() -> None:
    model = Users()
    report = convert(model, Causal())
    assert model.first is model.more[1]
    assert report.replaced[0].names == ("first", "more.1")
    assert "also more.1" in str(report)
    restore(model)
    assert model.first is model.more[1]
    assert isinstance(model.first, nn.MultiheadAttention)


def test_restore_gives_the_same_bits() -> None:
    model = Users().eval()
    x, memory = sequence(), sequence(S, 2)
    modules = dict(model.named_modules())
    right = model(x, memory)
    convert(model, {"cross.look": Full(), "*": sliding_window(3)})
    assert not torch.allclose(model(x, memory), right)
    assert set(restore(model)) == {*NAMES, "more.1"}
    assert torch.equal(model(x, memory), right)
    assert dict(model.named_modules()) == modules
    assert model.body.use_nested_tensor
    assert vars(model.body).keys() == vars(encoder()).keys()


def test_restore_brings_what_was_learned() -> None:
    model = encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    convert(model, sliding_window(4))
    x = sequence()
    for _ in range(3):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learned = {name: x.clone() for name, x in model.state_dict().items()}
    after = model.eval()(x)
    restore(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, learned[name])
    torch.testing.assert_close(model(x, mask=~dense_mask(sliding_window(4), N)), after)
    assert not model.layers[0].self_attn.training


def test_training_goes_as_torchs_own_with_the_mask() -> None:
    """Losses of an optimizer that was made before the conversion, over some steps."""
    x, mask = sequence(), ~dense_mask(sliding_window(4), N)
    losses = []
    for converted in (False, True):
        model = encoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if converted:
            convert(model, sliding_window(4))
        found = []
        for _ in range(5):
            loss = (model(x) if converted else model(x, mask=mask)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        losses.append(torch.stack(found))
    torch.testing.assert_close(*losses)


def test_dropout_in_training_and_none_in_eval() -> None:
    model = encoder(dropout=0.3)
    convert(model, sliding_window(4))
    x = sequence()
    torch.manual_seed(0)
    first, second = model(x), model(x)
    assert not torch.allclose(first, second)
    torch.manual_seed(0)
    assert torch.equal(model(x), first)
    assert torch.equal(model.eval()(x), model(x))


def test_state_dicts_load_both_ways() -> None:
    plain, other = Users(), Users()
    convert(other, Full())
    assert list(other.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        for x in plain.parameters():
            x.add_(1.0)
    other.load_state_dict(plain.state_dict())
    plain.load_state_dict(other.state_dict())
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_put_in_anew_are_kept_by_restore() -> None:
    model, other = encoder(), encoder()
    with torch.no_grad():
        for x in other.parameters():
            x.mul_(1.5)
    convert(model, Full())
    model.load_state_dict(other.state_dict(), assign=True)
    found = model.eval()(sequence())
    restore(model)
    torch.testing.assert_close(model(sequence()), found)
    torch.testing.assert_close(other.eval()(sequence()), found)


def test_a_copy_is_a_model_of_its_own() -> None:
    model = encoder().eval()
    convert(model, sliding_window(4))
    twin, x = copy.deepcopy(model), sequence()
    right = model(x)
    assert torch.equal(twin(x), right)
    with torch.no_grad():
        for each in twin.parameters():
            each.zero_()
    assert torch.equal(model(x), right)
    restore(twin)
    assert not any(x.any() for x in twin.parameters())
    assert torch.equal(model(x), right)
    assert isinstance(model.layers[0].self_attn, TorchAttention)
    assert twin.use_nested_tensor


def test_moves_and_casts_reach_the_original_too() -> None:
    model = encoder()
    convert(model, Full())
    model.float()
    restore(model)
    assert model(sequence().float()).dtype == torch.float32


def test_hooks_go_on() -> None:
    model = encoder().eval()
    seen: list[nn.Module] = []
    handle = model.layers[0].self_attn.register_forward_hook(lambda m, _, out: seen.append(m))
    convert(model, Full())
    assert not seen, "measuring is not the user's forward"
    model(sequence())
    assert seen == [model.layers[0].self_attn]
    handle.remove()
    model(sequence())
    assert len(seen) == 1


def test_patterns_by_name() -> None:
    model = Users()
    report = convert(
        model,
        {
            "body.layers.0.*": sliding_window(3),
            "body.*": Window(2, 2),
            "head.layers.*.self_attn": Causal(),
            "first": None,
        },
    )
    patterns = {x.names[0]: x.pattern for x in report.replaced}
    assert patterns == {
        NAMES[2]: sliding_window(3), NAMES[3]: Window(2, 2), NAMES[5]: Causal(), NAMES[7]: Causal()
    }  # fmt: skip
    assert [name for name, _ in report.left] == ["first", "more.0", NAMES[4], NAMES[6], NAMES[8]]
    assert type(model.first) is nn.MultiheadAttention
    assert "left: first: no pattern was given for it" in str(report)
    # What was left can be converted later, and all comes back at once.
    convert(model, {"first": Full()})
    assert set(restore(model)) >= set(patterns) | {"first", "more.1"}
    assert model.body.use_nested_tensor


def test_memory_is_looked_at_as_a_whole_unless_it_is_named() -> None:
    names = ["layers.0.multihead_attn", "layers.1.multihead_attn"]
    for table, expected in (
        ({"*": Causal()}, [Full(), Full()]),
        ({"layers.*": Causal()}, [Full(), Full()]),
        ({"layers.0.multihead_attn": Causal(), "*": Causal()}, [Causal(), Full()]),
        ({"*.multihead_attn": Causal()}, [Causal(), Causal()]),
        ({"layers.1.*": None, "*": Causal()}, [Full()]),
    ):
        report = convert(Users().head, table)
        found = {x.names[0]: x.pattern for x in report.replaced}
        assert [found[name] for name in names if name in found] == expected


def test_patterns_by_a_function() -> None:
    model = encoder()
    asked: list[tuple[str, nn.Module]] = []

    def choose(name: str, module: nn.Module) -> Pattern | None:
        asked.append((name, module))
        return Window(1, 1) if name.startswith("layers.1") else None

    modules = dict(model.named_modules())
    report = convert(model, choose)
    assert asked == [(n, modules[n]) for n in ("layers.0.self_attn", "layers.1.self_attn")]
    assert [x.names for x in report.replaced] == [("layers.1.self_attn",)]


def test_a_bool_tensor_is_a_pattern() -> None:
    model, allowed = encoder().eval(), torch.ones(N, N).tril().bool()
    right = model(sequence(), mask=~allowed)
    report = convert(model, allowed)
    assert isinstance(report.replaced[0].pattern, Explicit)
    torch.testing.assert_close(model(sequence()), right)


def test_the_report_reads_as_text() -> None:
    report = convert(encoder(), sliding_window(4))
    assert report.difference is not None
    first, second, *_ = str(report).splitlines()
    assert first.startswith("2 attention modules replaced; largest difference under the full")
    assert second.split()[:4] == ["layers.0.self_attn", "4", "heads", "of"]
    assert second.endswith("causal & window(left=3, right=0)")


def test_weights_on_no_device() -> None:
    with torch.device("meta"):
        model = encoder()
    report = convert(model, Full())
    assert report.difference is None
    assert "not measured" in str(report)
    assert restore(model)


def test_the_difference_shows_a_wrong_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TorchAttention._heads

    def swapped(self: TorchAttention, *args: Any, **options: Any) -> Any:
        q, k, v = plain(self, *args, **options)
        return k, q, v

    monkeypatch.setattr(TorchAttention, "_heads", swapped)
    report = convert(encoder(), Full())
    assert report.difference is not None
    assert report.difference > 1e-3


def test_modes_and_random_numbers_are_left_alone() -> None:
    model = encoder(dropout=0.3)
    model.layers[1].eval()
    state = torch.get_rng_state()
    convert(model, Full())
    assert torch.equal(torch.get_rng_state(), state)
    assert [x.self_attn.training for x in model.layers] == [True, False]


class Odd(nn.MultiheadAttention):
    """A subclass: it may compute anything."""


def odd(kind: str) -> nn.Module:
    model = nn.ModuleDict({"a": nn.MultiheadAttention(8, 2), "b": nn.MultiheadAttention(8, 2)})
    module = model["b"]
    if kind == "subclass":
        model["b"] = Odd(8, 2)
    elif kind == "pruned":
        prune.l1_unstructured(module, "in_proj_weight", 0.5)
    elif kind == "patched":
        module.forward = lambda *args, **options: None
    return model


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("subclass", "Odd may compute something else"),
        ("pruned", "it holds in_proj_weight_mask, in_proj_weight_orig, which"),
        ("patched", "its forward was replaced"),
    ],
)
def test_what_may_compute_something_else_is_left_and_named(kind: str, words: str) -> None:
    model = odd(kind)
    kept = model["b"]
    report = convert(model, Full())
    assert model["b"] is kept
    ((name, reason),) = report.left
    assert name == "b"
    assert words in reason
    del model["a"]
    with pytest.raises(InvalidArgument, match=f"to replace in the ModuleDict; b: {words}"):
        convert(model, Full())


def twice() -> Report:
    model = encoder()
    convert(model, Full())
    return convert(model, Full())


def tied_apart() -> Report:
    return convert(Users(), {"first": Causal(), "more.*": Full()})


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "itself": (
        lambda: convert(nn.MultiheadAttention(8, 2), Full()), "the module that holds it.*from_torch"
    ),
    "nothing": (
        lambda: convert(nn.Sequential(nn.Linear(3, 3)), Full()),
        "no nn.MultiheadAttention to replace in the Sequential",
    ),
    "twice": (twice, r"converted before: restore\(model\) first"),
    "a class": (lambda: convert(encoder(), Causal), "give a Pattern, a function"),  # type: ignore[arg-type]
    "text": (lambda: convert(encoder(), "causal"), "pattern is 'causal': give a Pattern"),  # type: ignore[arg-type]
    "a name of nothing": (
        lambda: convert(encoder(), {"layers.7.*": Full()}),
        r"'layers.7.\*' is the name of no nn.MultiheadAttention.*layers.0.self_attn",
    ),
    "heads": (
        lambda: convert(encoder(), PerHead([Causal(), Full()])), "layers.0.self_attn: .*2"
    ),
    "text by name": (lambda: convert(encoder(), {"*": "causal"}), r"parse\('causal'\)"),  # type: ignore[dict-item]
    "tied apart": (tied_apart, "first and more.1 are one module.*causal and full"),
    "not converted": (lambda: restore(encoder()), "nothing in the model was converted"),
    "float mask": (lambda: convert(encoder(), torch.zeros(N, N)), "a pattern needs bool"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(InvalidArgument, match=words):
        make()


def test_a_mistake_changes_nothing() -> None:
    model = Users()
    modules = dict(model.named_modules())
    with pytest.raises(InvalidArgument):
        convert(model, {"first": Full(), "more.0": torch.zeros(3, 3)})
    assert dict(model.named_modules()) == modules
