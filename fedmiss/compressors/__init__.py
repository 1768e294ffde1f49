"""Quant: what turns a vector into bytes, unbiasedly."""

from __future__ import annotations

from fedmiss.compressors.blocks import Blocks
from fedmiss.compressors.dither import Dithering, block_quantization
from fedmiss.compressors.identity import Identity
from fedmiss.compressors.natural import Natural
from fedmiss.compressors.sparse import RandK, TopK

__all__ = ["Blocks", "Dithering", "Identity", "Natural", "RandK", "TopK", "block_quantization"]
