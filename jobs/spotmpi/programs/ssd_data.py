"""The data that SSD training was asked for."""

import argparse

from spotmpi.programs import page_cache
from spotmpi.programs.dataset import Dataset
from spotmpi.programs.detection_data import DetectionData, load_data
from spotmpi.programs.synthetic_detection import SyntheticDetection
from spotmpi.programs.world import World


def ssd_data(options: argparse.Namespace, world: World) -> tuple[Dataset, DetectionData]:
    """Training and test data; drawn images have nothing to test with."""
    if options.synthetic:
        data = SyntheticDetection(options.seed)
        return data, DetectionData([], data.fingerprint(), augmented=False)
    if options.data_cache:
        page_cache.prepare(options.data, options.data_cache, world)
    return load_data(options.data, (options.train_sets, options.test_sets), not options.no_augmentation, world)
