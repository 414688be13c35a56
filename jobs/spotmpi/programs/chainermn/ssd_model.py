"""SSD300 on VGG16 in Chainer, after Liu et al. 2016, and its multibox loss."""

from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from spotmpi.programs.augment import MEAN_COLOUR
from spotmpi.programs.boxes import BOXES_PER_CELL
from spotmpi.programs.multibox import hard_negatives
from spotmpi.programs.ssd import PIXEL_DEVIATION, scale_channels

SCALE = 20  # to which conv4_3, whose values are far larger than the others', is normalised
_TRUNK = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# Channels of the 1x1 and the 3x3 convolution, stride and padding of the latter.
_EXTRA = ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))


class Normalize(chainer.Chain):
    """Each position's channels at length 1, times a learnt scale per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        with self.init_scope():
            self.scale = chainer.Parameter(SCALE, (channels,))

    def forward(self, values: Any) -> Any:
        """*values* (b, channels, h, w), rescaled."""
        # The small number under the root keeps the gradient finite where all channels are 0.
        length = F.sqrt(F.sum(F.square(values), axis=1, keepdims=True) + 1e-12)
        scale = F.reshape(self.scale, (1, -1, 1, 1))
        return values / F.broadcast_to(length, values.shape) * F.broadcast_to(scale, values.shape)


class Trunk(chainer.Chain):
    """VGG16 with fc6 and fc7 as convolutions, and the extra layers: six feature maps, 38 to 1 cells wide."""

    def __init__(self, width: float) -> None:
        super().__init__()
        with self.init_scope():
            in_channels = 3
            for block, sizes in enumerate(_TRUNK, start=1):
                for layer, size in enumerate(sizes, start=1):
                    setattr(
                        self,
                        f"conv{block}_{layer}",
                        _convolution(in_channels, scale_channels(size, width), chainer.initializers.HeNormal),
                    )
                    in_channels = scale_channels(size, width)
            self.norm4 = Normalize(in_channels)
            self.conv6 = _convolution(in_channels, scale_channels(1024, width), pad=6, dilate=6)
            self.conv7 = _convolution(scale_channels(1024, width), scale_channels(1024, width), ksize=1, pad=0)
            in_channels = scale_channels(1024, width)
            for block, (narrow, wide, stride, pad) in enumerate(_EXTRA, start=8):
                setattr(
                    self,
                    f"conv{block}_1",
                    _convolution(in_channels, scale_channels(narrow, width), ksize=1, pad=0),
                )
                in_channels = scale_channels(wide, width)
                last = _convolution(scale_channels(narrow, width), in_channels, stride=stride, pad=pad)
                setattr(self, f"conv{block}_2", last)

    def forward(self, images: Any) -> list[Any]:
        """The feature maps of *images* (b, 3, 300, 300)."""
        hidden, maps = images, []
        for block, sizes in enumerate(_TRUNK, start=1):
            for layer in range(1, len(sizes) + 1):
                hidden = F.relu(self[f"conv{block}_{layer}"](hidden))
            if block == 4:
                maps.append(self.norm4(hidden))
            if block < 5:
                hidden = F.max_pooling_2d(hidden, 2, cover_all=True)
        hidden = F.max_pooling_2d(hidden, 3, stride=1, pad=1, cover_all=False)
        hidden = F.relu(self.conv7(F.relu(self.conv6(hidden))))
        maps.append(hidden)
        for block in range(8, 8 + len(_EXTRA)):
            hidden = F.relu(self[f"conv{block}_2"](F.relu(self[f"conv{block}_1"](hidden))))
            maps.append(hidden)
        return maps


class Ssd300(chainer.Chain):
    """SSD300: offsets (b, 8732, 4) and confidences (b, 8732, classes + 1) of images.

    Images are RGB (b, 3, 300, 300) from 0 to 255. *width* scales the number of channels; 1 is the paper's network.
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        self._columns = (4, classes + 1)
        self.add_persistent("pixel_deviation", PIXEL_DEVIATION)
        channels = [
            scale_channels(512, width),
            scale_channels(1024, width),
            *(scale_channels(wide, width) for _, wide, _, _ in _EXTRA),
        ]
        with self.init_scope():
            self.extractor = Trunk(width)
            self.offsets, self.confidences = (
                chainer.ChainList(
                    *(
                        _convolution(in_channels, boxes * columns)
                        for in_channels, boxes in zip(channels, BOXES_PER_CELL, strict=True)
                    )
                )
                for columns in self._columns
            )

    def forward(self, images: Any) -> tuple[Any, Any]:
        """Offsets and confidences."""
        mean = self.xp.array(MEAN_COLOUR, np.float32)[:, None, None]
        maps = self.extractor((images.astype(np.float32) - mean) / np.float32(self.pixel_deviation))
        offsets, confidences = (
            F.concat([_rows(head(values), columns) for head, values in zip(heads, maps, strict=True)], axis=1)
            for heads, columns in zip((self.offsets, self.confidences), self._columns, strict=True)
        )
        return offsets, confidences


def _rows(values: Any, columns: int) -> Any:
    """(b, boxes * columns, h, w) as (b, h * w * boxes, columns)."""
    return F.reshape(F.transpose(values, (0, 2, 3, 1)), (len(values), -1, columns))


def _convolution(
    in_channels: int, out_channels: int, initializer: Any = chainer.initializers.GlorotUniform, **options: int
) -> Any:
    """A convolution of 3 x 3 that keeps the size of a map, or with other *options* of Chainer's."""
    return L.Convolution2D(in_channels, out_channels, **{"ksize": 3, "pad": 1, **options}, initialW=initializer())


def trunk_names() -> list[str]:
    """The names of VGG16's convolutions, which any pretrained weights must hold."""
    layers = [f"conv{block}_{layer + 1}" for block, sizes in enumerate(_TRUNK, start=1) for layer in range(len(sizes))]
    return [f"extractor/{layer}/{part}" for layer in layers for part in ("W", "b")]


def multibox_sums(offsets: Any, confidences: Any, targets: Any, labels: Any) -> tuple[Any, Any]:
    """Undivided location and confidence loss of a batch, as `spotmpi.programs.multibox` defines them.

    *offsets* and *confidences* are variables, *targets* (b, 8732, 4) and *labels* (b, 8732) arrays beside them.
    """
    xp = chainer.backend.get_array_module(labels)
    positive = labels > 0
    location = F.huber_loss(offsets, targets, 1.0, reduce="no") * positive[..., None].astype(np.float32)
    rows = F.reshape(confidences, (-1, confidences.shape[2]))
    losses = F.reshape(F.softmax_cross_entropy(rows, labels.reshape(-1), reduce="no"), labels.shape)
    counted = positive | hard_negatives(losses.array, positive, xp)
    return F.sum(location), F.sum(losses * counted.astype(np.float32))
