"""Ports a model to other code. Its outputs differ from those of the reference; with `--fixed`, they are equal."""

import sys
from collections import OrderedDict

import torch
from torch import nn

import hookcore

APPROXIMATE = "tanh" if "--fixed" in sys.argv else "none"


class Layer(nn.Module):
    """A layer of the reference."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Block(nn.Sequential):
    """The same layer in the port."""

    def __init__(self):
        act = nn.GELU(approximate=APPROXIMATE)
        layers = {"norm": nn.LayerNorm(32), "up": nn.Linear(32, 64), "act": act, "down": nn.Linear(64, 32)}
        super().__init__(OrderedDict(layers))

    def forward(self, x):
        return x + super().forward(x)


def run(model, name, inputs):
    with hookcore.watch(model, name=name, budget=None) as watcher:
        model(inputs).sum().backward()
        watcher.step()
    return watcher.client().overview().run


torch.manual_seed(0)
embed, head = nn.Linear(16, 32), nn.Linear(32, 8)
reference = nn.Sequential(OrderedDict(embed=embed, encoder=nn.Sequential(*(Layer() for _ in range(3))), head=head))
port = nn.Sequential(OrderedDict(embed=embed, blocks=nn.Sequential(*(Block() for _ in range(3))), head=head))
port.load_state_dict({key.replace("encoder.", "blocks."): value for key, value in reference.state_dict().items()})

inputs = torch.randn(4, 16)
one, two = run(reference, "reference", inputs), run(port, "port", inputs)
rename = r"^blocks\. -> encoder."
print(hookcore.Client().compare(one, two, kind="output", tolerance=1e-5, rename=rename).verdict.message)
