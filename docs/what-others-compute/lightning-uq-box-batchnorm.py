# lightning-uq-box==0.2.0
# Predictions at x = 1 and x = 100 in one batch (dropout rate 0, BatchNorm at its initial statistics) | default
import torch
from lightning_uq_box.uq_methods import MCDropoutRegression
from torch import nn

net = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.0), nn.Linear(1, 1))
nn.init.ones_(net[2].weight)
nn.init.zeros_(net[2].bias)
with torch.no_grad():
    expected = net.eval()(torch.tensor([[1.0], [100.0]])).tolist()
method = MCDropoutRegression(net, num_mc_samples=5, loss_fn=nn.MSELoss())
pair = method.predict_step(torch.tensor([[1.0], [100.0]]))["pred"].flatten().tolist()
print(f"running mean after the prediction: {net[0].running_mean.item():.2f}")
print(f"computed: {pair[0]:.2f} and {pair[1]:.2f}")
print(f"should be: {expected[0][0]:.2f} and {expected[1][0]:.2f}")
