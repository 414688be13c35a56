"""The data that SSD training was asked for."""

import argparse

from jobs.programs import page_cache
from jobs.programs.dataset import Dataset
from jobs.programs.detection_data import DetectionData, load_data
from jobs.programs.synthetic_detection import SyntheticDetection
from jobs.programs.world import World


def ssd_data(options: argparse.Namespace, world: World) -> tuple[Dataset, DetectionData]:
    """Training and test data; drawn images have nothing to test with."""
    if options.synthetic:
        data = SyntheticDetection(options.seed)
        return data, DetectionData([], data.fingerprint(), augmented=False)
    if options.data_cache:
        page_cache.prepare(options.data, options.data_cache, world)
    return load_data(options.data, (options.train_sets, options.test_sets), not options.no_augmentation, world)
