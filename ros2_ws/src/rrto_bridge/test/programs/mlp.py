"""An estimator like those of scikit-learn: input and output are numpy arrays."""

import numpy as np
import torch
from results import COUNT, DEVICE, show


class Classifier:
    def __init__(self, weights, biases):
        self.weights = [torch.from_numpy(w).to(DEVICE) for w in weights]
        self.biases = [torch.from_numpy(b).to(DEVICE) for b in biases]

    def predict_proba(self, x):
        x = torch.from_numpy(x).float().to(DEVICE)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.relu(x @ weight + bias)
        return torch.softmax(x @ self.weights[-1] + self.biases[-1], -1).cpu().numpy()

    def predict(self, x):
        return self.predict_proba(x).argmax(-1)


rng = np.random.default_rng(4)
sizes = [64, 32, 16, 10]
model = Classifier([rng.normal(size=s).astype('f') for s in zip(sizes, sizes[1:], strict=False)],
                   [rng.normal(size=s).astype('f') for s in sizes[1:]])
for _ in range(COUNT):
    batch = rng.integers(0, 16, (5, 64)).astype('f')
    show('mlp', torch.from_numpy(model.predict_proba(batch)),
         torch.from_numpy(model.predict(batch)))
