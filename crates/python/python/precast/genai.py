"""The classes of onnxruntime-genai for text decoders: `import precast.genai as og` in place of `import onnxruntime_genai as og`.

What is not here belongs to images and audio, which precast does not run.
"""

from precast import _precast
from precast.generate import Adapters, Config, Generator, GeneratorParams, Model, Tokenizer, TokenizerStream

__all__ = [
    "Adapters",
    "Config",
    "Generator",
    "GeneratorParams",
    "Model",
    "Tokenizer",
    "TokenizerStream",
    "is_cuda_available",
    "is_rocm_available",
]


def is_cuda_available() -> bool:
    """Whether this machine has a GPU of NVIDIA's that a driver was found for."""
    return any(name.startswith("cuda") for name in _precast.devices())


def is_rocm_available() -> bool:
    """Whether this machine has a GPU of AMD's that a driver was found for."""
    return any(name.startswith("hip") for name in _precast.devices())
