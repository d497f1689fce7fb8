"""Trains in float8 with scales that are measured in the first steps only. With `--fixed`, they follow the values."""

import sys
from types import SimpleNamespace

import torch
from torch import nn

import hookcore

LAST_UPDATE = 300 if "--fixed" in sys.argv else 10
FORMAT = SimpleNamespace(value=SimpleNamespace(max_fwd=448.0, max_bwd=57344.0))


class Float8Linear(nn.Linear):
    """Delayed scaling as in TransformerEngine, which needs a GPU: it keeps scales and maxima in the same places."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.state = SimpleNamespace(scale=torch.ones(3), amax_history=torch.zeros(16, 3))
        self.fp8_meta = {"num_gemms": 1, "recipe": SimpleNamespace(fp8_format=FORMAT), "scaling_fwd": self.state}

    def cast(self, values, place):
        scale, exact = self.state.scale[place], values.detach()
        self.state.amax_history[0, place] = exact.abs().max()
        cast = (exact * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return values + (cast.float() / scale - exact)

    def forward(self, x):
        return nn.functional.linear(self.cast(x, 0), self.cast(self.weight, 1), self.bias)

    def update_scales(self):
        largest = self.state.amax_history.max(dim=0).values
        self.state.scale.copy_(torch.where(largest > 0, 448 / largest, self.state.scale))
        self.state.amax_history.copy_(self.state.amax_history.roll(-1, dims=0))
        self.state.amax_history[0] = 0


torch.manual_seed(0)
model = nn.Sequential(Float8Linear(8, 64), nn.ReLU(), Float8Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with hookcore.watch(model, budget=None, state_every=10) as watcher:
    for step in range(300):
        inputs = torch.randn(256, 8)
        loss = nn.functional.mse_loss(model(inputs), 20 * inputs.abs().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for layer in model[::2] if step < LAST_UPDATE else ():
            layer.update_scales()
found = watcher.client().findings()
print(found.course.sentence)
for incident in watcher.incidents():
    print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
reach = watcher.reader().series("2 probe [float8 reach input]", "max").mean
print(f"reach of the input of the last layer: {reach[0]:.2f} at first, {reach[-1]:.2f} last")
