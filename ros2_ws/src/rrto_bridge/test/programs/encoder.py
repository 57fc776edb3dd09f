import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(3)
embed = nn.Embedding(50, 32)
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
embed.to(DEVICE)
model.to(DEVICE)
for _ in range(COUNT):
    tokens = torch.randint(50, (2, 12))
    with torch.no_grad():
        show('encoder', model(embed(tokens.to(DEVICE))).mean(1).cpu())
