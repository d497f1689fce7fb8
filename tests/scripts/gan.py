"""Two networks that compete, each with its own optimizer."""

import sys

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, noise):
        return self.net(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, points):
        return self.net(points)


if __name__ == "__main__":
    torch.manual_seed(3)
    generator, discriminator = Generator(), Discriminator()
    makes = torch.optim.Adam(generator.parameters(), lr=0.01)
    judges = torch.optim.Adam(discriminator.parameters(), lr=0.01)
    judge = nn.BCEWithLogitsLoss()
    for _ in range(10):
        real, fake = torch.randn(16, 2) + 2, generator(torch.randn(16, 4))
        judges.zero_grad()
        loss = judge(discriminator(real), torch.ones(16, 1)) + judge(discriminator(fake.detach()), torch.zeros(16, 1))
        loss.backward()
        judges.step()
        makes.zero_grad()
        judge(discriminator(fake), torch.ones(16, 1)).backward()
        makes.step()
    torch.save({"generator": generator.state_dict(), "discriminator": discriminator.state_dict()}, sys.argv[1])
