# probly==0.3.0
# Standard deviation of predictions of a net with F.dropout of rate 0.5 before its last layer | neither: functional
import torch
from probly.representation import Dropout
from torch import nn
from torch.nn import functional as F


class Net(nn.Sequential):  # noqa: D101
    def forward(self, x):  # probly adds a dropout module before the last layer
        return self[1](F.dropout(self[0](x), 0.5, self.training))


torch.manual_seed(0)
method = Dropout(Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), p=0.5)
for weight in method.parameters():
    nn.init.ones_(weight)
method.eval()
print(f"computed: {method.predict_representation(torch.ones(1, 1), 10_000, logits=True).std().item():.2f}")
print(f"should be: {(4 * torch.bernoulli(torch.full((2, 10_000), 0.5)).prod(0)).std().item():.2f}")
