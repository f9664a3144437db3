"""Training: a run as a value, four tasks, and a folder that is whole whenever it is looked at."""

from eyeline.training.processes import leave as leave
from eyeline.training.run import Course as Course
from eyeline.training.run import Run as Run
from eyeline.training.run import Shape as Shape
from eyeline.training.run import Source as Source
from eyeline.training.trainer import Diverged as Diverged
from eyeline.training.training import Trained as Trained
from eyeline.training.training import train as train
