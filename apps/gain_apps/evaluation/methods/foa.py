"""FOA: prompts found by an evolution strategy, with forward passes only, and a shifted answer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, TorchNetwork
from gain_core.errors import ConfigError
from gain_runtime.optional import require

POOLED_TOKENS = ("token", "avg")


class PromptedNetwork:
    """Runs a network of timm's with extra tokens before its blocks and a shift before its head.

    It is the network's model of now; another one after `reset` needs another of these. Prompts have
    no position: they stand behind the other tokens and are taken away after the last block, which
    attention cannot tell from any other place. A model that is no vision transformer that pools a
    class token or the mean over patches is a `ConfigError`.
    """

    def __init__(self, network: TorchNetwork, /) -> None:
        self._network = network
        model = network.model
        self._blocks = list(getattr(model, "blocks", ()))
        self._pooling = getattr(model, "global_pool", None)
        self._prefix = getattr(model, "num_prefix_tokens", 0)
        head = getattr(model, "head", None)
        if not self._blocks or head is None or self._pooling not in POOLED_TOKENS:
            raise ConfigError(
                f"foa: expected a vision transformer with `blocks` and a `head` that pools "
                f"{' or '.join(POOLED_TOKENS)}, got {type(model).__name__}"
            )
        self.width = int(model.embed_dim)
        self._prompts: Any = None
        self._shift: Any = None
        self._activations: list[Any] = []
        self.features: Any = None
        self._blocks[0].register_forward_pre_hook(self._add_prompts)
        for block in self._blocks:
            block.register_forward_hook(self._note)
        self._blocks[-1].register_forward_hook(self._drop_prompts)
        head.register_forward_pre_hook(self._move)

    def logits(self, pixel_values: Any, /, *, prompts: Any = None, shift: Any = None) -> Any:
        """Logits of a pass, (B, K), with prompts, (P, D), and a shift of the features, (D,).

        `features` then holds those of before the shift, (B, D).
        """
        self._prompts, self._shift = prompts, shift
        self._activations = []
        return self._network.logits(pixel_values)

    def statistics(self) -> list[tuple[Any, Any]]:
        """Mean and standard deviation over the last pass's batch, (D,) each, block by block."""
        return [(rows.mean(dim=0), rows.std(dim=0, unbiased=False)) for rows in self._activations]

    def _add_prompts(self, block: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._prompts is None:
            return None
        tokens, *others = inputs
        beside = self._prompts.expand(len(tokens), -1, -1)
        return (self._network.torch.cat([tokens, beside], dim=1), *others)

    def _note(self, block: Any, inputs: tuple[Any, ...], tokens: Any) -> None:
        end = tokens.shape[1] - (0 if self._prompts is None else len(self._prompts))
        if self._pooling == "token":
            self._activations.append(tokens[:, 0])
        else:
            self._activations.append(tokens[:, self._prefix : end].mean(dim=1))

    def _drop_prompts(self, block: Any, inputs: tuple[Any, ...], tokens: Any) -> Any:
        return tokens if self._prompts is None else tokens[:, : -len(self._prompts)]

    def _move(self, head: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        (self.features,) = inputs
        return inputs if self._shift is None else (self.features + self._shift,)


FULL_BATCH = 64
MEAN_RATE = 0.1


@dataclass(eq=False)
class Foa:
    """Forward-optimisation adaptation of a vision transformer of timm's.

    Each batch is shown to the network once per candidate prompt of a CMA evolution strategy. A
    candidate's fitness is the sum of the entropies and, weighted, how far mean and deviation of
    every block's activations are from the source's; the fittest candidate's logits are the
    answer. Features are moved by the running distance of their batch means from the source's.

    Activations are those the head pools: the class token's, or the mean over patches. The running
    mean that the shift follows is updated after the batch is answered, with the features of the
    fittest candidate before the shift.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    num_prompts: int = 3
    population: int = 28  # candidates per batch: as many forward passes
    # Weight of the activations' distance for a batch of 64, in proportion for others.
    discrepancy: float = 0.4
    sigma: float = 1.0  # first step size of the search, which starts at zero
    shift: float = 1.0  # of the features, in running distances
    num_source: int = 32  # uncorrupted images on which the activations are measured
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_prompts < 1 or self.population < 4:
            raise ConfigError(
                "foa: expected at least 1 prompt and a population of at least 4, "
                f"got {self.num_prompts} and {self.population}"
            )
        self._cmaes = require("cmaes", extra="eval")
        self._measured: Any = None
        self._mean: Any = None
        self.reset()

    @property
    def cost(self) -> Cost:
        """A forward pass per candidate; the strategy's covariance is most of the state."""
        count = self.num_prompts * self._prompted.width
        return Cost(
            num_forward=float(self.population),
            num_parameters=count,
            # Float64: covariance, its eigenvectors, eigenvalues, mean and two evolution paths;
            # float32: the source's means and deviations, and the running mean.
            state_bytes=8 * (2 * count * count + 4 * count) + 4 * self._num_statistics,
        )

    def predict(self, batch: Batch, /) -> Floats:
        """Search once, answer with the fittest candidate, and follow its features, (B, K)."""
        network, torch = self._network, self._network.torch
        pixels = network.pixels(batch)
        best: tuple[float, Any, Any] | None = None
        tried = []
        with torch.no_grad():
            self._check_parity(pixels, batch)
            for _ in range(self.population):
                candidate = self._search.ask()
                prompts = torch.from_numpy(candidate.astype(np.float32))
                logits = self._prompted.logits(
                    pixels, prompts=prompts.reshape(self.num_prompts, -1), shift=self._moved_by()
                )
                fitness = self._fitness(logits)
                tried.append((candidate, fitness))
                if best is None or fitness < best[0]:
                    best = (fitness, logits, self._prompted.features.mean(dim=0))
        self._search.tell(tried)
        assert best is not None
        _, answer, mean = best
        self._mean = mean if self._mean is None else torch.lerp(self._mean, mean, MEAN_RATE)
        return network.log_probs(answer)

    def reset(self) -> None:
        """Prompts searched from zero, nothing shifted."""
        self._network.reset()
        self._prompted = PromptedNetwork(self._network)
        if self._measured is None:
            self._measured = self._measure()
        self._search = self._cmaes.CMA(
            mean=np.zeros(self.num_prompts * self._prompted.width),
            sigma=self.sigma,
            population_size=self.population,
            seed=self.seed,
        )
        self._mean = None
        self._checked = False

    @property
    def _num_statistics(self) -> int:
        """Numbers kept about activations."""
        statistics, mean = self._measured
        kept = sum(centre.numel() + spread.numel() for centre, spread in statistics)
        return int(kept + 2 * mean.numel())

    def _measure(self) -> tuple[list[tuple[Any, Any]], Any]:
        """Mean and deviation of each block's activations, and the mean feature, on the source."""
        pixels = self._network.source_pixels(self.num_source, method="foa")
        with self._network.torch.no_grad():
            self._prompted.logits(pixels)
        return self._prompted.statistics(), self._prompted.features.mean(dim=0)

    def _check_parity(self, pixels: Any, batch: Batch) -> None:
        """One pass without prompts, on the first batch only."""
        if not self._checked:
            self._checked = True
            self._network.check_parity(self._prompted.logits(pixels), batch)

    def _moved_by(self) -> Any:
        """What is added to the features; None before the first batch."""
        return None if self._mean is None else self.shift * (self._measured[1] - self._mean)

    def _fitness(self, logits: Any) -> float:
        """Entropies and weighted distance of the activations of the pass just made."""
        apart = sum(
            (mean - source_mean).norm() + (spread - source_spread).norm()
            for (mean, spread), (source_mean, source_spread) in zip(
                self._prompted.statistics(), self._measured[0], strict=True
            )
        )
        weight = self.discrepancy * len(logits) / FULL_BATCH
        return float(self._network.entropy(logits).sum() + weight * apart)
