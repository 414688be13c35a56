"""The type of a field with a number of CPUs."""

from typing import Annotated

from pydantic import PlainValidator

from spotmpi.core.cpus import number_of_cpus

Cpus = Annotated[int | float, PlainValidator(number_of_cpus)]
