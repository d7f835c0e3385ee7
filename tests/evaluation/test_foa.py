"""FOA on a small vision transformer: prompts, fitness, search and shift, each against a hand."""

import copy
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.methods.foa import PromptedNetwork
from gain_apps.evaluation.methods.protocol import Batch, TorchNetwork
from gain_apps.evaluation.methods.registry import make_method
from gain_core.errors import BackendUnavailableError, ConfigError

torch = pytest.importorskip("torch", reason="torch is not installed")
vision = pytest.importorskip("timm.models.vision_transformer", reason="timm is not installed")
cmaes = pytest.importorskip("cmaes", reason="cmaes is not installed")

WIDTH, CLASSES, ROWS = 12, 5, 8


@pytest.fixture(params=["token", "avg"])
def source(request):
    torch.manual_seed(0)
    model = vision.VisionTransformer(
        img_size=8,
        patch_size=4,
        embed_dim=WIDTH,
        depth=2,
        num_heads=2,
        num_classes=CLASSES,
        global_pool=request.param,
    )
    with torch.no_grad():
        model.head.weight.normal_(std=1.5)
    return model.eval()


@pytest.fixture
def uncorrupted():
    return np.random.default_rng(1).normal(size=(6, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def batches(source):
    rng = np.random.default_rng(2)
    made = []
    for _ in range(3):
        pixels = (1.0 + rng.normal(size=(ROWS, 3, 8, 8))).astype(np.float32)
        with torch.no_grad():
            logits = source(torch.from_numpy(pixels)).numpy()
        made.append(Batch(features=np.zeros((ROWS, WIDTH)), logits=logits, pixel_values=pixels))
    return made


@pytest.fixture
def build(source, uncorrupted):
    return lambda text: make_method(
        text,
        None,
        network=lambda: TorchNetwork(
            lambda: copy.deepcopy(source), source=lambda count: uncorrupted[:count]
        ),
    )


@torch.no_grad()
def by_hand(model, pixels, prompts=None, shift=0.0):
    """Logits, features and each block's pooled tokens of a pass, block by block."""
    tokens = model._pos_embed(model.patch_embed(torch.as_tensor(pixels)))
    patches = slice(1, tokens.shape[1])
    if prompts is not None:
        tokens = torch.cat([tokens, prompts.expand(len(tokens), -1, -1)], dim=1)
    pooled = []
    for block in model.blocks:
        tokens = block(tokens)
        token = model.global_pool == "token"
        pooled.append(tokens[:, 0] if token else tokens[:, patches].mean(dim=1))
    features = model.fc_norm(model.pool(model.norm(tokens[:, : patches.stop])))
    return model.head(features + shift), features, pooled


def spread(rows):
    return rows.mean(dim=0), rows.std(dim=0, unbiased=False)


def fitness(logits, pooled, source_pooled):
    probs = torch.softmax(logits, dim=1)
    total = -(probs * probs.log()).sum()
    for rows, source_rows in zip(pooled, source_pooled, strict=True):
        for now, then in zip(spread(rows), spread(source_rows), strict=True):
            total = total + 0.4 * ROWS / 64 * torch.sqrt(((now - then) ** 2).sum())
    return float(total)


def test_prompts_stand_beside_the_tokens_and_are_taken_away(source, batches):
    network = TorchNetwork(lambda: copy.deepcopy(source))
    prompted = PromptedNetwork(network)
    pixels = torch.from_numpy(batches[0].pixel_values)
    prompts = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    move = torch.linspace(-1.0, 1.0, WIDTH)
    with torch.no_grad():
        logits = prompted.logits(pixels, prompts=prompts, shift=move)
        statistics, features = prompted.statistics(), prompted.features
        plain = prompted.logits(pixels)
    expected, wanted, pooled = by_hand(source, pixels, prompts, move)
    assert_allclose(logits, expected, atol=1e-5)
    assert_allclose(features, wanted, atol=1e-5)
    for found, rows in zip(statistics, pooled, strict=True):
        for part, hand in zip(found, spread(rows), strict=True):
            assert_allclose(part, hand, atol=1e-5)
    assert_allclose(plain, batches[0].logits, atol=1e-5)
    assert float((plain - logits).abs().max()) > 0.1


def test_two_batches_by_hand(build, batches, source, uncorrupted):
    """The same candidates, from a strategy of its own: fittest answers, then the shift."""
    method = build("foa:population=5:seed=3")
    search = cmaes.CMA(mean=np.zeros(3 * WIDTH), sigma=1.0, population_size=5, seed=3)
    _, source_features, source_pooled = by_hand(source, uncorrupted)
    mean, move = None, 0.0
    for batch in batches[:2]:
        tried = []
        for _ in range(5):
            candidate = search.ask()
            prompts = torch.from_numpy(candidate.astype(np.float32)).reshape(3, WIDTH)
            logits, features, pooled = by_hand(source, batch.pixel_values, prompts, move)
            tried.append((candidate, fitness(logits, pooled, source_pooled), logits, features))
        fittest = min(tried, key=lambda row: row[1])
        assert_allclose(
            method.predict(batch), torch.log_softmax(fittest[2], dim=1), atol=1e-4, rtol=1e-4
        )
        search.tell([row[:2] for row in tried])
        now = fittest[3].mean(dim=0)
        mean = now if mean is None else 0.9 * mean + 0.1 * now
        move = source_features.mean(dim=0) - mean


def test_reset_returns_to_the_first_answer(build, batches):
    method = build("foa:population=4")
    answers = [method.predict(batch) for batch in batches]
    method.reset()
    for batch, answer in zip(batches, answers, strict=True):
        assert_array_equal(method.predict(batch), answer)


def test_cost_is_forward_passes_only(build):
    cost = build("foa:population=6:num_prompts=2").cost
    count = 2 * WIDTH
    assert (cost.num_forward, cost.num_backward, cost.num_parameters) == (6.0, 0.0, count)
    # Two blocks of a mean and a deviation, the source's mean feature and the running one.
    assert cost.state_bytes == 8 * (2 * count**2 + 4 * count) + 4 * (2 * 2 * WIDTH + 2 * WIDTH)


def test_without_source_images_it_says_what_to_give(source):
    with pytest.raises(ConfigError, match=r"foa: expected uncorrupted images .* --source-images$"):
        make_method("foa", None, network=lambda: TorchNetwork(lambda: copy.deepcopy(source)))


@pytest.mark.parametrize("option", ["population=3", "num_prompts=0"])
def test_bad_sizes_are_refused(build, option):
    with pytest.raises(ConfigError, match="expected at least 1 prompt and a population"):
        build(f"foa:{option}")


def test_network_without_tokens_is_refused():
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    with pytest.raises(ConfigError, match="expected a vision transformer"):
        make_method("foa", None, network=lambda: TorchNetwork(lambda: copy.deepcopy(plain)))


def test_without_cmaes_the_extra_is_named(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(BackendUnavailableError, match=r"cmaes: .*'\.\[eval\]'"):
        build("foa")
