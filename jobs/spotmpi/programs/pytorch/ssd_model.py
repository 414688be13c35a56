"""torchvision's SSD300 on VGG16, and the multibox loss of this project in PyTorch."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection import ssd300_vgg16

from spotmpi.programs.augment import MEAN_COLOUR
from spotmpi.programs.multibox import NEGATIVES_PER_POSITIVE
from spotmpi.programs.ssd import PIXEL_DEVIATION, scale_channels
from spotmpi.programs.weights import read_arrays

_VGG16 = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # places of convolutions in torchvision's vgg16.features
_KEPT = 23  # of those places, how many torchvision's SSD keeps in one row; the rest follow its fourth pooling


class Ssd300(nn.Module):
    """SSD300: offsets (b, 8732, 4) and confidences (b, 8732, classes + 1) of images.

    Images are RGB (b, 3, 300, 300) from 0 to 255. *width* scales the number of channels; 1 is the paper's network.
    Parameters are torchvision's `ssd300_vgg16` and named as there. Its default boxes, matching and loss are not used:
    they are those of COCO, and the loss divides by the positives of one rank.
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        with torch.device("meta"):  # it would initialise all of VGG16 and infer once, two seconds of each start
            built = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=classes + 1)
        self.backbone = built.backbone
        self.head = built.head
        self.to_empty(device="cpu")
        _initialise(self)
        self.register_buffer("mean", torch.tensor(MEAN_COLOUR, dtype=torch.float32)[:, None, None], persistent=False)
        self.register_buffer("pixel_deviation", torch.tensor(PIXEL_DEVIATION))
        if width != 1:
            _thin(self, width)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Offsets and confidences."""
        maps = self.backbone((images.float() - self.mean) / self.pixel_deviation)
        output = self.head(list(maps.values()))
        return output["bbox_regression"], output["cls_logits"]


def _initialise(model: Ssd300) -> None:
    """Give every parameter its first value, as torchvision does."""
    trunk = set(trunk_names())
    nn.init.constant_(model.backbone.scale_weight, 20)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif name in trunk:
            nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")
        elif name != "backbone.scale_weight":
            nn.init.xavier_uniform_(parameter)


def _thin(model: Ssd300, width: float) -> None:
    """Replace every convolution by one of *width* times the channels, newly initialised."""
    heads = {conv for conv in model.head.modules() if isinstance(conv, nn.Conv2d)}
    for parent in list(model.modules()):
        for name, old in list(parent.named_children()):
            if not isinstance(old, nn.Conv2d):
                continue
            in_channels = old.in_channels if old.in_channels == 3 else scale_channels(old.in_channels, width)
            out_channels = old.out_channels if old in heads else scale_channels(old.out_channels, width)
            new = nn.Conv2d(in_channels, out_channels, old.kernel_size, old.stride, old.padding, old.dilation)
            if old in heads:
                nn.init.xavier_uniform_(new.weight)
            else:
                nn.init.kaiming_normal_(new.weight, nonlinearity="relu")
            nn.init.zeros_(new.bias)
            setattr(parent, name, new)
    scale = model.backbone.scale_weight
    model.backbone.scale_weight = nn.Parameter(scale.detach()[: scale_channels(len(scale), width)].clone())


def multibox_sums(
    offsets: torch.Tensor, confidences: torch.Tensor, targets: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Undivided location and confidence loss of a batch, as `spotmpi.programs.multibox` defines them."""
    positive = labels > 0
    # Masked rather than indexed: an index would make the host wait for the GPU.
    location = F.smooth_l1_loss(offsets, targets, reduction="none").sum(dim=2) * positive
    losses = F.cross_entropy(confidences.flatten(0, 1), labels.flatten().long(), reduction="none").view(labels.shape)
    counted = positive | _hard_negatives(losses.detach(), positive)
    return location.sum(), (losses * counted).sum()


def _hard_negatives(losses: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    ranked = losses.masked_fill(positive, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = ranked.argsort(dim=1)
    return (places < NEGATIVES_PER_POSITIVE * positive.sum(dim=1, keepdim=True)) & ~positive


def read_state(path: Path) -> dict[str, Any]:
    """The tensors of a state dict, by the names of Ssd300.

    It may be torchvision's SSD300 or VGG16, or a checkpoint's ``state.safetensors`` of this program.
    """
    if path.suffix in (".npz", ".safetensors"):
        return {name: torch.from_numpy(value) for name, value in read_arrays(path).items()}
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError("no state dict of tensors")
    renamed = {f"features.{place}.{part}": _trunk_name(place, part) for place in _VGG16 for part in ("weight", "bias")}
    return {renamed.get(str(name), str(name)): value for name, value in state.items()}


def trunk_names() -> list[str]:
    """The names of VGG16's convolutions, which any pretrained weights must hold."""
    return [_trunk_name(place, part) for place in _VGG16 for part in ("weight", "bias")]


def _trunk_name(place: int, part: str) -> str:
    return f"backbone.features.{place}.{part}" if place < _KEPT else f"backbone.extra.0.{place - _KEPT}.{part}"
