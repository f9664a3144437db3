"""Models, one file each: configuration, name map and module, to be read from top to bottom."""

from eyeline.models.llama import Llama as Llama
from eyeline.models.llama import LlamaConfig as LlamaConfig
