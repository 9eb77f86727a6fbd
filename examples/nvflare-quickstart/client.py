"""An ordinary NVFlare client script for PyTorch: it receives a model, trains and sends it back."""

import argparse

import nvflare.client as flare
import torch
from net import Net
from nvflare.app_common.abstract.fl_model import FLModel
from sklearn.datasets import load_digits
from torch.nn import functional


def load_partition(site):
    """Return a site's part of the first 1500 digits, and the others. site-1 has 2 classes, site-5 all 10."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    labels = torch.tensor(labels)[order]
    number = int(site.rpartition("-")[2]) - 1
    rows = torch.arange(1500)[number::5]
    rows = rows[labels[rows] < 2 * number + 2]
    return (inputs[rows], labels[rows]), (inputs[1500:], labels[1500:])


def train(model, inputs, labels, lr, seed):
    """Train for five epochs by plain SGD; return the number of steps."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    steps = 0
    for _ in range(5):
        for rows in torch.randperm(len(labels), generator=generator).split(16):
            optimiser.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()
            steps += 1
    return steps


@torch.no_grad()
def accuracy(model, inputs, labels):
    return (model(inputs).argmax(dim=1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    lr = parser.parse_args().lr
    torch.set_num_threads(1)
    flare.init()
    train_set, test_set = load_partition(flare.get_site_name())
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        metrics = {"accuracy": accuracy(model, *test_set)}
        steps = train(model, *train_set, lr, seed=received.current_round)
        flare.send(
            FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": steps})
        )


if __name__ == "__main__":
    main()
