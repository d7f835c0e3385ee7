"""A vision transformer with prompts beside its tokens, and its activations laid open."""

from __future__ import annotations

from typing import Any

from gain_apps.evaluation.methods.torch_network import TorchNetwork
from gain_core.errors import ConfigError

__all__ = ["PromptedNetwork"]

POOLED_TOKENS = ("token", "avg")


class PromptedNetwork:
    """Runs a network of timm's with extra tokens before its blocks and a shift before its head.

    Prompts have no position: they stand behind the other tokens and are taken away after the last
    block, which attention cannot tell from any other place.

    Parameters
    ----------
    network : TorchNetwork
        Its model of now; another one after `reset` needs another of these.

    Raises
    ------
    ConfigError
        If the model is no vision transformer that pools a class token or the mean over patches.
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
        """Logits of a pass, (B, K).

        Parameters
        ----------
        pixel_values : tensor, (B, 3, H, W)
        prompts : tensor, (P, D), optional
        shift : tensor, (D,), optional
            Added to the features.

        Returns
        -------
        tensor, (B, K)
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
