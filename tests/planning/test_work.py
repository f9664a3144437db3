"""Multiplications of mechanisms and layers: against numbers that count their own products, and
against torch's counter of what the layers really multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import Convolution, MultiHeadAttention, Recurrent
from eyeline.layers.ancestors import (
    LSTMN,
    Decomposable,
    IntraDecoder,
    IntraTemporal,
    StructuredAttention,
)
from eyeline.mechanisms import (
    Additive,
    Compressed,
    Exact,
    ExtraKeys,
    ExtraTokens,
    LinearAttention,
    Linformer,
    Mechanism,
)
from eyeline.patterns import Causal, Chunks, Full, Pattern, Window, sliding_window
from eyeline.planning import cost, dense_mask, max_path_length
from eyeline.planning.path_length import dilated_path

H, HK, E, EV = 6, 3, 5, 7
N, FACTOR, K = 13, 4, 3


class Number:
    """A number that counts the products it takes part in."""

    products = 0

    def __mul__(self, other: Number) -> Number:
        Number.products += 1
        return self

    def __add__(self, other: Number) -> Number:
        return self


Matrix = list[list[Number]]


def rows(count: int, width: int) -> Matrix:
    return [[Number() for _ in range(width)] for _ in range(count)]


def times(left: Matrix, right: Matrix) -> Matrix:
    """left @ right, entry by entry."""
    found = []
    for row in left:
        line = []
        for column in zip(*right, strict=True):
            total = Number()
            for x, y in zip(row, column, strict=True):
                total = total + x * y
            line.append(total)
        found.append(line)
    return found


def turned(x: Matrix) -> Matrix:
    return [list(column) for column in zip(*x, strict=True)]


def looked(q: Matrix, k: Matrix, v: Matrix, mask: Sequence[Sequence[bool]]) -> None:
    """softmax(q kᵀ) v, of the pairs in the mask alone."""
    for query, allowed in zip(q, mask, strict=True):
        keys = [key for key, yes in zip(k, allowed, strict=True) if yes]
        values = [value for value, yes in zip(v, allowed, strict=True) if yes]
        if keys:
            times(times([query], turned(keys)), values)


def products(work: Callable[[], object]) -> int:
    Number.products = 0
    work()
    return Number.products


@pytest.mark.parametrize("pattern", [Full(), Causal(), sliding_window(4), Chunks(3, 1, 0)])
def test_exact_attention_pair_by_pair(pattern: Pattern) -> None:
    mask = dense_mask(pattern, N).tolist()

    def by_hand() -> None:
        for _ in range(H):
            looked(rows(N, E), rows(N, E), rows(N, EV), mask)

    sizes = {"heads": H, "head_dim": E, "value_dim": EV}
    found = cost(Exact(pattern), N, **sizes)
    assert found == cost(pattern, N, **sizes)
    assert found.multiplications == products(by_hand)


@pytest.mark.parametrize(("n", "d", "e"), [(13, 5, 7), (64, 5, 5), (100, 8, 3)])
def test_the_reordered_product(n: int, d: int, e: int) -> None:
    """(d + d′)n² multiplications of V(KᵀQ) become 2d′dn of (VKᵀ)Q."""
    usual = cost(Full(), n, head_dim=d, value_dim=e).multiplications
    reordered = cost(LinearAttention(1, d), n, value_dim=e).multiplications
    assert usual == (d + e) * n**2
    assert reordered == 2 * e * d * n

    def both() -> None:
        times(rows(n, d), times(rows(d, n), rows(n, e)))

    assert reordered == products(both)
    # They meet where n = 2 d d′ / (d + d′).
    assert (usual > reordered) == (n * (d + e) > 2 * d * e)


def test_linear_attention_with_random_features() -> None:
    features = 11
    mechanism = LinearAttention(H, E, feature_map="favor", features=features)

    def by_hand() -> None:
        for _ in range(HK):
            times(turned(times(rows(N, E), rows(E, features))), rows(N, EV))
        for _ in range(H):
            times(times(rows(N, E), rows(E, features)), rows(features, EV))

    assert cost(mechanism, N, kv_heads=HK, value_dim=EV).multiplications == products(by_hand)


def test_linformer_and_additive() -> None:
    def sums_then_pairs() -> None:
        every = [[True] * K] * N
        for _ in range(HK):
            times(rows(K, N), rows(N, E)), times(rows(K, N), rows(N, E))
        for _ in range(H):
            looked(rows(N, E), rows(K, E), rows(K, E), every)

    linformer = Linformer(31, K, num_kv_heads=HK, head_dim=E)
    assert cost(linformer, N, heads=H).multiplications == products(sums_then_pairs)

    def network() -> None:
        hidden, mask = 4, dense_mask(Causal(), N).tolist()
        for _ in range(H):
            times(rows(N, E), rows(E, hidden)), times(rows(N, E), rows(E, hidden))
            for row in mask:
                times(times(rows(1, hidden), rows(hidden, sum(row))), rows(sum(row), E))

    additive = Additive(H, E, hidden=4, pattern=Causal())
    assert cost(additive, N).multiplications == products(network)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("pattern", [Full(), Causal()])
def test_compressed_keys(pattern: Pattern, local: bool) -> None:
    groups = -(-N // FACTOR)

    def by_hand() -> None:
        for _ in range(2 * HK):
            times(rows(N, E), rows(E, E))  # each key by the matrix of its place in a group
        for query in [i for i in range(N) for _ in range(H)]:
            ends = [g * FACTOR + FACTOR - 1 for g in range(groups)]
            seen = [pattern == Full() or end <= query for end in ends]
            if local:
                seen[query // FACTOR] = False
                own = [query // FACTOR == j // FACTOR for j in range(N)]
                own = [yes and (pattern == Full() or j <= query) for j, yes in enumerate(own)]
                looked(rows(1, E), rows(N, E), rows(N, E), [own])
            looked(rows(1, E), rows(groups, E), rows(groups, E), [seen])

    mechanism = Compressed(FACTOR, num_kv_heads=HK, head_dim=E, pattern=pattern, local=local)
    assert cost(mechanism, N, heads=H).multiplications == products(by_hand)


def test_extra_keys_and_tokens() -> None:
    mask = dense_mask(Causal(), N).tolist()

    def by_hand() -> None:
        for _ in range(H):
            looked(rows(N, E), rows(N + 2, E), rows(N + 2, E), [[*row, True, True] for row in mask])

    keys = ExtraKeys(Exact(Causal()), 2, num_kv_heads=HK, head_dim=E)
    assert cost(keys, N, heads=H).multiplications == products(by_hand)
    band = dense_mask(Window(1, 1), N).tolist()

    def both_ways() -> None:
        seen = [[True] * (N + 2)] * 2 + [[True, True, *row] for row in band]
        for _ in range(H):
            looked(rows(N + 2, E), rows(N + 2, E), rows(N + 2, E), seen)

    tokens = ExtraTokens(Exact(Window(1, 1)), 2)
    found = cost(tokens, N + 2, heads=H, head_dim=E)
    assert found.multiplications == products(both_ways)


def test_layers_without_heads() -> None:
    width, kernel = 5, 3

    def convolved() -> None:
        for i in range(N):
            for tap in range(kernel):
                if 0 <= i + 2 * (tap - 1) < N:
                    times(rows(1, width), rows(width, width))

    layer = Convolution(width, kernel, dilation=2)
    assert cost(layer, N).multiplications == products(convolved)
    for cell, gates in (("elman", 1), ("gru", 3), ("lstm", 4)):
        made = cost(Recurrent(width, cell=cell, layers=2), N)  # type: ignore[arg-type]
        product = products(lambda: times(rows(1, width), rows(width, width)))
        assert made.multiplications == 2 * N * gates * 2 * product
        assert made.steps == 2 * N
    assert cost(LSTMN(width), N).steps == N


MODULES: dict[str, tuple[nn.Module, int, int]] = {
    "exact": (Exact(Full()), N, N),
    "linear": (LinearAttention(H, E), 197, 31),
    "linear causal": (LinearAttention(H, E, pattern=Causal()), 197, 197),
    "linear causal, fewer queries": (LinearAttention(H, E, pattern=Causal()), 31, 97),
    "favor": (LinearAttention(H, E, feature_map="favor"), 197, 97),
    "favor causal": (LinearAttention(H, E, feature_map="favor", pattern=Causal()), 131, 131),
    "additive": (Additive(H, E, hidden=7, pattern=Causal()), N, N),
    "linformer": (Linformer(31, K, num_kv_heads=HK, head_dim=E), N, 17),
    "conv": (Compressed(FACTOR, num_kv_heads=HK, head_dim=E), N, N),
    "mean": (Compressed(FACTOR, by="mean"), N, N),
    "centroids": (Compressed(FACTOR, by="centroids", rounds=3), N, N),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_computed_is_what_torch_counts(name: str) -> None:
    module, length, keys = MODULES[name]
    shared = H if name == "additive" else HK
    q, (k, v) = torch.randn(1, H, length, E), torch.randn(2, 1, shared, keys, E)
    found = cost(module, length, keys, heads=H, kv_heads=shared, head_dim=E)  # type: ignore[arg-type]
    assert torchs(lambda: module(q, k, v)) == found.computed_flops >= found.flops


@pytest.mark.parametrize("cell", ["elman", "gru"])
def test_layers_are_what_torch_counts(cell: str) -> None:
    x = torch.randn(1, N, 6)
    for layer in (Convolution(6, 5, causal=True), Recurrent(6, cell=cell), LSTMN(6, hidden=7)):  # type: ignore[arg-type]
        assert torchs(lambda layer=layer: layer(x)) == cost(layer, N).computed_flops


def test_ancestors_are_what_torch_counts() -> None:
    x = torch.randn(1, N, 6)
    structured = StructuredAttention(6, 7, 3)
    assert torchs(lambda: structured(x).penalty) == cost(structured, N).computed_flops
    for intra in (False, True):
        pair = Decomposable(6, 7, classes=3, intra=intra)
        found = cost(pair, N)
        assert torchs(lambda pair=pair: pair(x, x)) == found.computed_flops > found.flops
    temporal, decoder = IntraTemporal(6), IntraDecoder(6)
    assert torchs(lambda: temporal(x, x).context) == cost(temporal, N).computed_flops
    # So short a text is computed whole; cost counts what tiles would.
    assert torchs(lambda: decoder(x)) == 2 * (N * 36 + N * N * 12)
    assert cost(decoder, N).multiplications == N * 36 + N * (N - 1) // 2 * 12


def test_what_makes_no_tokens_has_no_path() -> None:
    for layer in (StructuredAttention(6, 7, 3), Decomposable(6, 7, classes=3)):
        with pytest.raises(NotSupported, match="makes no tokens"):
            max_path_length(layer, N)


def test_projections_are_apart() -> None:
    layer = MultiHeadAttention(12, 4, num_kv_heads=2)
    found = cost(layer, N)
    assert torchs(lambda: layer(torch.randn(1, N, 12))) == found.flops + found.projection_flops
    assert found.projections == N * (12 * 12 * 2 + 12 * 6 * 2)
    assert found.flops == cost(Full(), N, heads=4, head_dim=3).flops


def torchs(call: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        call()
    return int(counter.get_total_flops())


def test_steps_of_a_causal_scan_are_its_chunks() -> None:
    causal = LinearAttention(H, E, pattern=Causal())
    assert [cost(causal, n).steps for n in (1, 64, 65, 640)] == [1, 1, 2, 10]
    assert cost(LinearAttention(H, E), 640).steps == 1


def test_bytes_are_the_tensors_and_the_parameters() -> None:
    mechanism = Linformer(31, K, num_kv_heads=HK, head_dim=E)
    tensors = 2 * H * N * E + 2 * HK * N * E
    assert cost(mechanism, N, heads=H, dtype=torch.bfloat16).bytes == 2 * (tensors + 2 * 31 * K)


@pytest.mark.parametrize(
    ("what", "sizes", "words"),
    [
        (LinearAttention(6, 5), {"heads": 2}, "linear was made for heads=6, not 2"),
        (Linformer(31, 3, num_kv_heads=3, head_dim=5), {"head_dim": 4}, "head_dim=5, not 4"),
        (Linformer(7, 3, num_kv_heads=3, head_dim=5), {}, "13 keys: this linformer goes to 7"),
        (Convolution(6, 3), {"heads": 2}, "no heads: heads says nothing"),
        (Full(), {"heads": 6, "kv_heads": 4}, "6 query heads cannot share 4"),
        (nn.Linear(3, 3), {}, "Linear is no Pattern, Mechanism or layer"),
    ],
)
def test_sizes_that_do_not_fit(what: object, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        cost(what, N, **sizes)  # type: ignore[arg-type]


def test_what_is_not_counted() -> None:
    with pytest.raises(NotSupported, match="only its forward pass"):
        cost(LinearAttention(6, 5), N, backward=True)
    with pytest.raises(NotSupported, match="neither a pattern nor a path"):
        max_path_length(Silent(), N)
    with pytest.raises(InvalidArgument, match="Linear is no Pattern, Mechanism or layer"):
        max_path_length(nn.Linear(3, 3), N)  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="MultiHeadAttention does not say what it multiplies"):
        cost(MultiHeadAttention(6, 2, mechanism=Silent()), N)


class Silent(Mechanism):
    """Says nothing of itself."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, **_: object
    ) -> Tensor:
        return torch.zeros_like(query)


def heard(layer: nn.Module, n: int, width: int) -> Tensor:
    """Who hears whom in one layer, (n, n): where an output moves when an input does."""
    torch.manual_seed(0)
    x = torch.randn(1, n, width, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(lambda x: layer.double()(x), x)
    found: Tensor = slopes[0, :, :, 0].abs().sum((1, 3)) > 0
    return found


def searched(edges: Tensor) -> int:
    """The longest of all shortest paths, by breadth-first search from each token."""
    longest = 0
    for start in range(len(edges)):
        reached, front = {start}, {start}
        for hops in range(1, len(edges) + 1):
            front = {j for i in front for j in edges[i].nonzero()[:, 0].tolist()} - reached
            if not front:
                break
            longest, reached = max(longest, hops), reached | front
    return longest


def test_paths_are_those_of_a_search_over_who_hears_whom() -> None:
    shape = {"num_kv_heads": 2, "head_dim": 3}
    mechanisms: list[nn.Module] = [
        Exact(Window(2, 1)), Additive(2, 3, pattern=sliding_window(3)),
        LinearAttention(2, 3), LinearAttention(2, 3, pattern=Causal()),
        Linformer(13, 3, **shape), Compressed(4, **shape), Compressed(4, pattern=Causal(), **shape),
        Compressed(4, by="mean", pattern=Causal(), local=True),
    ]  # fmt: skip
    layers = [MultiHeadAttention(6, 2, mechanism=each) for each in mechanisms]
    others = [Convolution(6, 3), Convolution(6, 4), Convolution(6, 3, dilation=3, causal=True)]
    for n in (1, 2, 3, 5, 11, 13):
        for layer in (*layers, *others, LSTMN(6), IntraDecoder(6)):
            assert max_path_length(layer, n) == searched(heard(layer, n, 6)), (layer, n)


def test_a_recurrent_layers_path_is_its_steps() -> None:
    """Of its own graph, in which a token hears the one before it alone."""
    for n in (1, 2, 13):
        chain = torch.ones(n, n).tril(-1).triu(-1).bool()
        assert max_path_length(Recurrent(6), n) == searched(chain) == n - 1
    assert bool(heard(Recurrent(3), 5, 3)[4, 0])


@pytest.mark.parametrize("pattern", [Window(1, 1), Full(), Causal() | Window(1, 1)])
def test_extra_tokens_are_two_hops_away_at_most(pattern: Pattern) -> None:
    mechanism = ExtraTokens(Exact(pattern), 2)
    for own in (1, 2, 7):
        edges = torch.ones(own + 2, own + 2, dtype=torch.bool)
        edges[2:, 2:] = dense_mask(pattern, own)
        assert max_path_length(mechanism, own + 2) == searched(edges)


@pytest.mark.parametrize(("kernel", "causal"), [(3, False), (5, False), (2, True), (4, True)])
def test_dilated_stacks_layer_by_layer(kernel: int, causal: bool) -> None:
    """Who has heard of whom after one layer more, until it is all that any number can bring."""
    first = Convolution(1, kernel, causal=causal)
    left, right = -first.offsets[0], first.offsets[-1]
    base = 1 + min(way for way in (left, right) if way > 0)
    for n in (1, 2, 3, 8, 9, 10, 27, 40):
        every = torch.ones(n, n).tril().bool() if causal else torch.ones(n, n).bool()
        known, layers = torch.eye(n).bool(), 0
        while not torch.equal(known, every):
            gap, place = base**layers, torch.arange(n)
            apart = (place - place[:, None]) / gap
            hops = (apart == apart.round()) & (-left <= apart) & (apart <= right)
            known, layers = (hops.float() @ known.float()) > 0, layers + 1
        assert dilated_path(left, right, n) == layers
    assert dilated_path(0, 0, 7) == 0
    with pytest.raises(InvalidArgument, match="a whole number from 0"):
        dilated_path(-1, 0, 7)
