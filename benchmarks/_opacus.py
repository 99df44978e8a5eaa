"""Meta's Opacus on CPU: ghost clipping and hooks, on the dense auto-encoder written in PyTorch.

The batch is gathered from one tensor (no DataLoader, which would cost more than the step), the
noise is torch's default generator (not a secure one), and Adam is the fused one: all in the peer's
favour.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks._fits import Problem
from benchmarks._harness import Program
from benchmarks._peers import load

NOTES = {
    "non-private": "the same network, sum of losses, fused Adam",
    "ghost": "ghost clipping, torch's default generator for the noise, batches of one size",
    "hooks": "per-record gradients by hooks, torch's default generator for the noise, batches of one size",
}


class TorchFit:
    """One PyTorch contender.

    Args:
        problem: data and numbers; records are flat.
        hidden: units of the hidden layers.
        latent_dim: of a record's latent.
        batch_size: rows a step.
        steps: steps a run.
        way: "non-private", "ghost" or "hooks".
    """

    def __init__(
        self, problem: Problem, hidden: int, latent_dim: int, batch_size: int, steps: int, way: str
    ) -> None:
        """See the class."""
        self.torch = load("torch")
        self.images = self.torch.from_numpy(np.array(problem.data[0]))
        self.batch_size, self.steps, self.way = batch_size, steps, way
        network = _network(self.torch, self.images.shape[1], hidden, latent_dim)
        self.num_parameters = sum(p.numel() for p in network.parameters())
        optimizer = self.torch.optim.Adam(
            network.parameters(), lr=problem.learning_rate, fused=True
        )
        self.criterion: Any = NegativeELBO(self.torch)
        self.network, self.optimizer = network, optimizer
        if way != "non-private":
            self._make_private(problem)

    def _make_private(self, problem: Problem) -> None:
        # Images need no gradient, which is what the warning is about.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        # What PrivacyEngine.make_private assembles, without its DataLoader.
        clip, samples = problem.clipping_norm, load("opacus.grad_sample")
        options = {
            "noise_multiplier": problem.noise_multiplier,
            "max_grad_norm": clip,
            "expected_batch_size": self.batch_size,
            "loss_reduction": "sum",
        }
        if self.way == "hooks":
            self.network = samples.GradSampleModule(self.network, loss_reduction="sum")
            self.optimizer = load("opacus.optimizers").DPOptimizer(self.optimizer, **options)
            return
        self.network = samples.GradSampleModuleFastGradientClipping(
            self.network, loss_reduction="sum", max_grad_norm=clip, use_ghost_clipping=True
        )
        self.optimizer = load("opacus.optimizers").DPOptimizerFastGradientClipping(
            self.optimizer, **options
        )
        utils = load("opacus.utils.fast_gradient_clipping_utils")
        self.criterion = utils.DPLossFastGradientClipping(
            self.network, self.optimizer, self.criterion, "sum"
        )

    def gradient(self, images: Any) -> None:
        """One forward and backward: clipped in the ghost way, per record with hooks."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.network(images), images)
        (loss if self.way == "ghost" else loss.sum()).backward()

    def run(self) -> None:
        """Make `steps` steps."""
        for _ in range(self.steps):
            index = self.torch.randint(len(self.images), (self.batch_size,))
            self.gradient(self.images[index])
            self.optimizer.step()

    def program(self, name: str) -> Program:
        """As a contender."""
        return Program(name, self.run, self.steps, NOTES[self.way])


class NegativeELBO:
    """Loss of each record, one draw of the latent: what NumPyro's Trace_ELBO computes."""

    # Opacus's wrapper reads and sets this; a record's loss is returned either way.
    reduction = "sum"

    def __init__(self, torch: Any) -> None:
        """See the class."""
        self.torch = torch

    def __call__(self, outputs: Any, images: Any) -> Any:
        """One number a record."""
        logits, latent, loc, scale = outputs
        entropy = self.torch.nn.functional.binary_cross_entropy_with_logits
        pixels = entropy(logits, images, reduction="none").sum(1)
        standard = (latent - loc) / scale
        divergence = (0.5 * latent**2 - 0.5 * standard**2 - scale.log()).sum(1)
        return pixels + divergence


def _network(torch: Any, pixels: int, hidden: int, latent_dim: int) -> Any:
    nn = torch.nn

    class AutoEncoder(nn.Module):
        """Pixels -> hidden -> latent -> hidden -> logits."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.Softplus())
            self.loc, self.log_scale = nn.Linear(hidden, latent_dim), nn.Linear(hidden, latent_dim)
            self.decoder = nn.Sequential(
                nn.Linear(latent_dim, hidden), nn.Softplus(), nn.Linear(hidden, pixels)
            )

        def forward(self, images: Any) -> Any:
            features = self.encoder(images)
            loc, scale = self.loc(features), self.log_scale(features).exp()
            latent = loc + scale * torch.randn_like(loc)
            return self.decoder(latent), latent, loc, scale

    return AutoEncoder()
