"""Quant: what turns a vector into bytes, unbiasedly. Kernels are loaded when first used."""

from __future__ import annotations

from fedmiss.compressors.dither import Dithering, block_quantization
from fedmiss.compressors.identity import Identity

__all__ = ["Dithering", "Identity", "block_quantization"]
