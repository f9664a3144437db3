"""Models from names, folders and files, and into folders of our own."""

from eyeline.loading.loader import Loaded as Loaded
from eyeline.loading.loader import load as load
from eyeline.loading.loader import multiplies_bfloat16 as multiplies_bfloat16
from eyeline.loading.saver import save as save
