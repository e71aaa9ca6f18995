# baal==2.1.0
# Standard deviation of predictions of a net with F.dropout of rate 0.5 before its last layer | neither: functional
import torch
from baal.bayesian.dropout import patch_module
from torch import nn
from torch.nn import functional as F


class Net(nn.Sequential):  # noqa: D101
    def forward(self, x):  # a dropout module after the first layer, functional dropout after the second
        return self[2](F.dropout(self[1](self[0](x)), 0.5, self.training))


torch.manual_seed(0)
net = Net(nn.Linear(1, 1), nn.Dropout(0.5), nn.Linear(1, 1))
for layer in (net[0], net[2]):
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
print(f"computed: {patch_module(net, inplace=False).eval()(torch.ones(10_000, 1)).std().item():.2f}")
print(f"should be: {net.train()(torch.ones(10_000, 1)).std().item():.2f}")
