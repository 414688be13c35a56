"""VOC2007's mean average precision of a network, worked out by all ranks together."""

from collections.abc import Callable

import numpy as np

from spotmpi.programs.augment import Pixels, plain
from spotmpi.programs.boxes import Floats, default_boxes
from spotmpi.programs.detection import Detections, detect
from spotmpi.programs.detection_data import DetectionData, open_image
from spotmpi.programs.mean_average_precision import average_precisions
from spotmpi.programs.world import World

# Raw output (offsets and confidences) of pixels (b, 3, 300, 300).
Predict = Callable[[Pixels], tuple[Floats, Floats]]
_AT_ONCE = 8


def evaluate(predict: Predict, data: DetectionData, world: World) -> dict[str, float]:
    """`mean_average_precision` and `ap_<class>` of each class that has objects which count, equal on all ranks.

    Without images there is nothing to say.
    """
    if not len(data):
        return {}
    share = range(world.rank, len(data), world.size)
    mine = [found for start in range(0, len(share), _AT_ONCE) for found in _detect(predict, data, share, start)]
    everyone = world.gather(mine)
    found = [everyone[index % world.size][index // world.size] for index in range(len(data))]
    precisions = average_precisions(found, [image.objects for image in data.images])
    mean = float(np.mean(list(precisions.values()))) if precisions else float("nan")
    return {"mean_average_precision": mean, **{f"ap_{name}": value for name, value in precisions.items()}}


def _detect(predict: Predict, data: DetectionData, share: range, start: int) -> list[Detections]:
    chosen = [data.images[index] for index in share[start : start + _AT_ONCE]]
    pixels = [plain(open_image(path), objects.boxes, objects.labels).pixels for path, _, objects in chosen]
    offsets, confidences = predict(np.stack(pixels))
    defaults = default_boxes()
    return [detect(*raw, defaults) for raw in zip(offsets, confidences, strict=True)]
