"""Classifies images. The loss is NaN from step 100 on; with `--fixed`, it isn't."""

import sys

import torch
from torch import nn
from torch.nn import functional

import hookcore

FIXED = "--fixed" in sys.argv
EPSILON = 1e-5 if FIXED else 0.0


class Standardize(nn.Module):
    """Gives each image mean 0 and standard deviation 1."""

    def forward(self, images):
        deviation, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
        return (images - mean) / (deviation + EPSILON)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.standardize = Standardize()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 8 * 8, 10)

    def forward(self, images):
        features = self.norm(self.conv(self.standardize(images))).relu()
        return self.head(features.flatten(1))


def load_images():
    labels = torch.randint(10, (4096,))
    images = torch.randn(10, 1, 8, 8)[labels] + torch.randn(4096, 1, 8, 8)
    images[3210] = 0.0  # one photo is black
    return images, labels


if __name__ == "__main__":
    torch.manual_seed(0)
    images, labels = load_images()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with hookcore.watch(model, budget=None) as watcher:
        for step in range(128):
            batch = slice(32 * step, 32 * step + 32)
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = watcher.client().findings()
    print(found.course.sentence, found.scope.sentence, sep="\n")
    for incident in watcher.incidents():
        print(f"{incident.severity}: {incident.rule}: {incident.sentence}")
