import torch
from results import COUNT, DEVICE, show
from vision import torchvision

torch.manual_seed(0)
model = torchvision.models.resnet18().eval().to(DEVICE)
with torch.no_grad():
    for _ in range(COUNT):
        image = torch.rand(1, 3, 64, 64)
        probabilities = torch.softmax(model(image.to(DEVICE)), dim=1)
        score, label = probabilities.max(dim=1)
        show('classify', score.cpu(), label.cpu())
