import torch
from results import COUNT, DEVICE, show
from vision import torchvision

torch.manual_seed(1)
model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
    weights=None, weights_backbone=None).eval().to(DEVICE)
with torch.inference_mode():
    for _ in range(COUNT):
        out = model(torch.rand(1, 3, 64, 96).to(DEVICE))['out']
        show('segment', out.argmax(1).to('cpu'), out[0, 0].cpu())
