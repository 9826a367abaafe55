"""Print text that the trained model writes.

    python sample.py output/pass-00003
    python sample.py result/model/model.safetensors "The with statement"

The model is a merged file or the directory of a saved model.
"""

import argparse

import torch

from clusterctl.runtime import torch_state_dict
from model import continued, like


def main():
    parser = argparse.ArgumentParser(description="Print text that the model writes.")
    parser.add_argument("model", help="model.safetensors, or the directory of a saved model")
    parser.add_argument("start", nargs="?", default="The ", help='the beginning of the text (default "The ")')
    parser.add_argument("--count", type=int, default=400, help="bytes to write (default 400)")
    parser.add_argument("--seed", type=int, default=1, help="another number gives another text (default 1)")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tensors = torch_state_dict(options.model)
    model = like(tensors)
    model.load_state_dict(tensors)
    text = continued(model, options.start.encode(), options.count)
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
