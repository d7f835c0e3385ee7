"""The methods that train the network: each one's step against the same step done by hand."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluate import main
from gain_apps.evaluation.methods.protocol import Batch, TorchNetwork
from gain_apps.evaluation.methods.registry import make_method
from gain_core.errors import ConfigError, ParityError

torch = pytest.importorskip("torch", reason="torch is not installed")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(8)
        self.dense = torch.nn.Linear(8, 8)

    def forward(self, rows):
        return rows + torch.tanh(self.dense(self.norm1(rows)))


class Tiny(torch.nn.Module):
    """Shaped like a vision transformer where it matters: blocks, norms in them, a final norm."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(48, 8)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(5)))
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, pixel_values):
        return self.head(self.norm(self.blocks(self.embed(pixel_values.flatten(1)))))


@pytest.fixture
def source():
    torch.manual_seed(3)
    model = Tiny()
    with torch.no_grad():
        model.head.weight.mul_(6.0)
    return model.eval()


@pytest.fixture
def batches(source):
    rng = np.random.default_rng(1)
    made = []
    for _ in range(3):
        pixels = rng.normal(size=(16, 3, 4, 4)).astype(np.float32)
        with torch.no_grad():
            logits = source(torch.from_numpy(pixels)).numpy()
        made.append(Batch(features=np.zeros((16, 8)), logits=logits, pixel_values=pixels))
    return made


@pytest.fixture
def build(source):
    uncorrupted = np.random.default_rng(2).normal(size=(70, 3, 4, 4)).astype(np.float32)
    return lambda text: make_method(
        text,
        None,
        network=lambda: TorchNetwork(
            lambda: copy.deepcopy(source), source=lambda count: uncorrupted[:count]
        ),
    )


def softmax(logits):
    return torch.softmax(logits, dim=1)


def entropy(logits):
    probs = softmax(logits)
    return -(probs * probs.log()).sum(dim=1)


def norms_of(model, keep=lambda name: True):
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if "norm" in name and keep(name)
    }


def gradients(named, loss):
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def stepped(named, loss, rate):
    """The parameters after one step of gradient descent."""
    return {name: named[name] - rate * grad for name, grad in gradients(named, loss).items()}


def assert_parameters(model, expected, source):
    """The named parameters are as expected, all others are the source's."""
    original = dict(source.named_parameters())
    for name, parameter in model.named_parameters():
        wanted = expected.get(name, original[name])
        assert_allclose(parameter.detach(), wanted.detach(), atol=1e-6, err_msg=name)


METHODS = ("torch-source", "tent", "eata", "sar", "cotta", "roid")


@pytest.mark.parametrize("name", METHODS)
def test_first_answer_is_the_source_and_reset_returns_to_it(name, build, batches):
    method = build(f"{name}:threshold=0" if name == "cotta" else name)
    answers = [method.predict(batch) for batch in batches]
    logits = torch.from_numpy(batches[0].logits)
    assert_allclose(answers[0], torch.log_softmax(logits, dim=1), atol=1e-5)
    for answer in answers:
        assert_allclose(np.exp(answer).sum(axis=1), 1.0, atol=1e-5)
    method.reset()
    for batch, answer in zip(batches, answers, strict=True):
        assert_array_equal(method.predict(batch), answer)


def test_tent_descends_the_mean_entropy(build, batches, source):
    method = build("tent:rate=0.1")
    method.predict(batches[0])
    norms = norms_of(source)
    loss = entropy(source(torch.from_numpy(batches[0].pixel_values))).mean()
    # The rate is for a batch of 64; here are 16.
    assert_parameters(method._network.model, stepped(norms, loss, 0.025), source)
    assert method.cost.num_parameters == sum(value.numel() for value in norms.values())


def reliable_of(logits):
    return (entropy(logits) < 0.4 * np.log(5)).nonzero().squeeze(1)


def test_eata_weights_the_reliable_samples_by_how_sure_they_are(build, batches, source):
    method = build("eata:rate=0.1:fisher=0")
    method.predict(batches[0])
    logits = source(torch.from_numpy(batches[0].pixel_values))
    chosen = reliable_of(logits)
    assert 0 < len(chosen) < 16
    sure = entropy(logits)[chosen]
    loss = (sure * torch.exp(0.4 * np.log(5) - sure).detach()).mean()
    assert_parameters(method._network.model, stepped(norms_of(source), loss, 0.1), source)
    assert method.cost.num_backward == 1.0


def test_eata_leaves_out_what_is_like_the_mean_of_what_counted(build, batches, source):
    method = build("eata:rate=0:fisher=0:similarity=0.6")
    method.predict(batches[0])
    first, second = (source(torch.from_numpy(batch.pixel_values)) for batch in batches[:2])
    mean = softmax(first)[reliable_of(first)].mean(dim=0)
    assert_allclose(method._mean_probs, mean.detach(), rtol=1e-5)
    reliable = reliable_of(second)
    probs = softmax(second)[reliable]
    cosine = (probs @ mean) / (probs.norm(dim=1) * mean.norm())
    unlike = reliable[cosine < 0.6]
    assert 0 < len(unlike) < len(reliable)
    assert method._chosen(second.detach()).tolist() == unlike.tolist()
    mean = 0.9 * mean + 0.1 * softmax(second)[unlike].mean(dim=0)
    assert_allclose(method._mean_probs, mean.detach(), rtol=1e-5)


def test_eata_takes_no_step_without_a_reliable_sample(build, batches, source):
    method = build("eata:rate=0.1:fisher=0:similarity=0")
    method.predict(batches[0])
    before = copy.deepcopy(method._network.model)
    method.predict(batches[1])
    assert_parameters(method._network.model, dict(before.named_parameters()), source)
    assert method.cost.num_backward == 0.5


def test_eata_measures_the_fisher_information_batch_by_batch(build, source):
    method = build("eata")
    uncorrupted = method._network.source_pixels(70, method="eata")
    norms = norms_of(source)
    expected = dict.fromkeys(norms, 0.0)
    for part in (uncorrupted[:64], uncorrupted[64:]):
        log_probs = torch.log_softmax(source(part), dim=1)
        grads = gradients(norms, -log_probs.max(dim=1).values.mean())
        expected = {name: expected[name] + grads[name] ** 2 / 2 for name in norms}
    for measured, by_hand in zip(method._information, expected.values(), strict=True):
        assert_allclose(measured, by_hand, rtol=1e-4, atol=1e-9)


def test_eata_is_held_near_the_source(build, batches):
    def moved(text):
        method = build(text)
        for batch in batches:
            method.predict(batch)
        pairs = zip(method._trained, method._source, strict=True)
        return sum(float(((now - then) ** 2).sum().detach()) for now, then in pairs)

    free = moved("eata:rate=0.01:similarity=1:fisher=0")
    bound = moved("eata:rate=0.01:similarity=1:fisher=50")
    assert 0 < bound < free


def test_eata_without_source_images_says_what_to_give(source):
    with pytest.raises(ConfigError, match=r"eata: .* got none; give --source-images, or eata:fish"):
        make_method("eata", None, network=lambda: TorchNetwork(lambda: copy.deepcopy(source)))


def test_sar_steps_with_the_gradient_at_the_sharpest_point(build, batches, source):
    method = build("sar:rate=0.1:rho=0.3:collapse=0")
    method.predict(batches[0])
    early = norms_of(source, lambda name: name.startswith(("blocks.0.", "blocks.1.")))
    pixels = torch.from_numpy(batches[0].pixel_values)
    margin = 0.4 * np.log(5)
    first = entropy(source(pixels))
    reliable = first < margin
    assert 0 < int(reliable.sum()) < 16
    grads = gradients(early, first[reliable].mean())
    length = torch.sqrt(sum((grad**2).sum() for grad in grads.values()))
    climbed = copy.deepcopy(source)
    there = norms_of(climbed, lambda name: name in early)
    with torch.no_grad():
        for name, parameter in there.items():
            parameter.add_(0.3 * grads[name] / length)
    second = entropy(climbed(pixels))[reliable]
    sharp = gradients(there, second[second < margin].mean())
    expected = {name: early[name] - 0.1 * sharp[name] for name in early}
    assert_parameters(method._network.model, expected, source)


def test_sar_returns_to_the_source_when_it_collapses(build, batches, source):
    method = build("sar:rate=0.1:collapse=100")
    method.predict(batches[0])
    assert_parameters(method._network.model, {}, source)


def test_sar_leaves_an_unreliable_batch_alone(build, batches, source):
    method = build("sar:rate=0.1")
    with torch.no_grad():
        method._network.model.head.weight.zero_()
        method._network.model.head.bias.zero_()
    flat = replace(batches[0], logits=np.full((16, 5), 1e-7, dtype=np.float32))
    method._network._checked = True
    before = copy.deepcopy(method._network.model)
    method.predict(flat)
    assert_parameters(method._network.model, dict(before.named_parameters()), source)


def test_cotta_teaches_the_student_and_follows_it(build, batches, source):
    method = build("cotta:rate=0.1:momentum=0.9:restore=0:threshold=0")
    method.predict(batches[0])
    pixels = torch.from_numpy(batches[0].pixel_values)
    logits = source(pixels)
    loss = -(softmax(logits).detach() * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()
    named = dict(source.named_parameters())
    student = stepped(named, loss, 0.1)
    assert_parameters(method._network.model, student, source)
    teacher = {name: 0.9 * named[name] + 0.1 * student[name] for name in named}
    assert_parameters(method._teacher, teacher, source)
    assert_parameters(method._anchor, {}, source)


def test_cotta_restores_weights_to_the_source(build, batches, source):
    method = build("cotta:rate=0.1:restore=1")
    method.predict(batches[0])
    assert_parameters(method._network.model, {}, source)


def test_cotta_averages_augmented_copies_when_the_source_is_unsure(build, batches):
    sure, unsure = build("cotta:threshold=0"), build("cotta:threshold=2:num_augmented=3")
    assert np.abs(sure.predict(batches[0]) - unsure.predict(batches[0])).max() > 0.01
    assert sure.cost.num_forward == 3
    assert unsure.cost.num_forward == 6


def test_roid_weights_by_hand(build):
    method = build("roid")
    logits = torch.tensor([[4.0, 0, 0, 0, 0], [0, 2.0, 0, 0, 0], [0.1, 0, 0, 0, 0]])
    probs = softmax(logits)
    closeness = torch.nn.functional.cosine_similarity(torch.full((1, 5), 0.2), probs)
    diversity = (closeness.max() - closeness) / (closeness.max() - closeness.min())
    certainty = -entropy(logits)
    certainty = (certainty - certainty.min()) / (certainty.max() - certainty.min())
    expected = torch.exp(3 * diversity * certainty)
    expected[diversity < diversity.mean()] = 0
    assert_allclose(method._weights(logits), expected, rtol=1e-4)
    assert int((expected == 0).sum()) == 1
    mean = 0.9 * torch.full((5,), 0.2) + 0.1 * probs.mean(dim=0)
    assert_allclose(method._mean_probs, mean, rtol=1e-5)


def test_soft_likelihood_ratio_by_hand():
    from gain_apps.evaluation.methods.augmented import soft_likelihood_ratio

    probs = np.array([0.7, 0.2, 0.1])
    by_hand = -(probs * np.log(probs / (1 - probs))).sum()
    ratio = soft_likelihood_ratio(torch.tensor(np.log(probs))[None], torch=torch)
    assert_allclose(ratio, [by_hand], rtol=1e-6)


def test_roid_trains_the_norms_and_draws_them_back(build, batches, source):
    free, bound = build("roid:rate=0.1:ensembling=1"), build("roid:rate=0.1:ensembling=0.25")
    free.predict(batches[0])
    bound.predict(batches[0])
    norms = norms_of(source)
    moved = norms_of(free._network.model)
    assert max(float((moved[name] - norms[name]).detach().abs().max()) for name in norms) > 1e-3
    expected = {name: 0.25 * moved[name] + 0.75 * norms[name] for name in norms}
    assert_parameters(bound._network.model, expected, source)
    assert_parameters(free._network.model, moved, source)


def test_other_weights_than_the_artifacts_are_refused(build, batches):
    wrong = replace(batches[0], logits=batches[0].logits + 1.0)
    with pytest.raises(ParityError, match=r"--weights: its logits differ .* exported from"):
        build("tent").predict(wrong)


def test_network_without_layer_norms_is_refused():
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    with pytest.raises(ConfigError, match="expected layer norms to train, found none"):
        make_method("tent", None, network=lambda: TorchNetwork(lambda: copy.deepcopy(plain)))


def test_beds_have_no_pixels(colour_dump, capsys):
    assert main([str(colour_dump), "--methods", "tent"]) == 1
    assert "give --timm and --weights" in capsys.readouterr().err


@pytest.mark.slow
def test_artifact_and_its_timm_model_in_one_run(tmp_path, colours, capsys):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    from gain_apps.export import main as gain_export

    torch.manual_seed(0)
    model = timm.create_model("test_vit", pretrained=False, num_classes=3)
    weights, artifact = tmp_path / "vit.pt", tmp_path / "vit.onnx"
    torch.save(model.state_dict(), weights)
    (tmp_path / "labels.txt").write_text("\n".join(colours.names) + "\n")
    exported = gain_export(
        [
            *(str(artifact), "--timm", "test_vit.r160_in1k", "--weights", str(weights)),
            *("--classes", "3", "--labels", str(tmp_path / "labels.txt")),
        ]
    )
    assert exported == 0, capsys.readouterr().err
    folder = colours.folders(tmp_path / "data", per_class=3)
    capsys.readouterr()
    status = main(
        [
            *(str(artifact), str(folder), "--cache", str(tmp_path / "cache"), "--json", "-"),
            *("--domains", "contrast", "--methods", "torch-source,tent,sar,cotta:num_augmented=2"),
            *("--timm", "test_vit", "--weights", str(weights), "--batch-size", "8"),
        ]
    )
    said = capsys.readouterr()
    assert status == 0, said.err
    methods = json.loads(said.out)["methods"]
    assert methods["torch-source"]["nll"] == pytest.approx(methods["source"]["nll"], abs=1e-3)
    assert methods["tent"]["cost"]["num_backward"] == 1
