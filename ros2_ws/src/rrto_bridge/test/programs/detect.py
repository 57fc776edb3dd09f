"""A detector like YOLOv5: the first inference makes a grid; each inference then selects boxes."""

import torch
from results import COUNT, DEVICE, show
from torch import nn


class Detect(nn.Module):
    def __init__(self, classes=3, anchors=2):
        super().__init__()
        self.outputs, self.anchors = classes + 5, anchors
        self.grid = torch.zeros(1)
        self.head = nn.Conv2d(16, anchors * self.outputs, 1)

    def forward(self, x):
        x = self.head(x)
        batch, _, ny, nx = x.shape
        x = x.view(batch, self.anchors, self.outputs, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        if self.grid.shape[2:4] != x.shape[2:4] or self.grid.device != x.device:
            yv, xv = torch.meshgrid(torch.arange(ny, device=x.device),
                                    torch.arange(nx, device=x.device), indexing='ij')
            self.grid = torch.stack((xv, yv), 2).view(1, 1, ny, nx, 2).float()
        y = x.sigmoid()
        y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + self.grid) * 8
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2
        return y.view(batch, -1, self.outputs)


def select(prediction, confidence=0.5, overlap=0.5):
    boxes = prediction[prediction[..., 4] > confidence]
    if not boxes.shape[0]:
        return boxes.cpu()
    boxes[:, 5:] *= boxes[:, 4:5]
    score, label = boxes[:, 5:].max(1, keepdim=True)
    boxes = torch.cat((boxes[:, :4], score, label.float()), 1)
    boxes = boxes[boxes[:, 4].argsort(descending=True)][:20]
    centre, size = boxes[:, :2], boxes[:, 2:4]
    low, high = centre - size / 2, centre + size / 2
    width = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0)
    inner = width.prod(2)
    area = size.prod(1)
    iou = inner / (area[:, None] + area - inner)
    keep = (iou.triu(diagonal=1) <= overlap).all(dim=0)
    return boxes[keep].cpu()


torch.manual_seed(2)
model = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.SiLU(inplace=True),
                      nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU(inplace=True), Detect()).eval().to(DEVICE)
with torch.no_grad():
    for _ in range(COUNT):
        show('detect', select(model(torch.randn(1, 3, 64, 64).to(DEVICE))))
