"""The 70,000 handwritten digits: read from IDX files or fetched through scikit-learn, reduced by PCA."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from fedmiss.arrays import F64, I64, U8, Bool
from fedmiss.errors import ConfigError, InputError
from fedmiss.files import hash_file

__all__ = ["IDX_FILES", "load_mnist", "pca", "read_idx"]

IDX_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def read_idx(path: Path) -> U8:
    """Read an IDX file of bytes, gzipped or not; the shape is in its header."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if raw[:3] != b"\x00\x00\x08":
            raise ValueError(
                f"it starts with {raw[:4].hex() or 'nothing'}, not 000008 and the number of axes"
            )
        shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
        return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, struct.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path} is not a whole IDX file of bytes ({error}); fetch it again.", path=str(path)
        ) from None


def load_mnist(folder: Path | None) -> tuple[U8, I64, Bool, dict[str, str]]:
    """Return images (N, pixels), labels (N,), the pixels in use, and the hashes of what was read.

    A pixel is in use when some training image has it above 0 (717 of 784, as in the paper).

    From the four IDX files (``.gz`` or plain) in ``folder``, training images first; without a folder, through
    scikit-learn's ``fetch_openml("mnist_784")``, which needs the network once.
    """
    if folder is None:
        return _from_openml()
    images, labels, hashes = [], [], {}
    for name in IDX_FILES:
        path = next((file for file in (folder / f"{name}.gz", folder / name) if file.exists()), None)
        if path is None:
            raise InputError(
                f"{folder} has no {name}.gz; --data needs the four MNIST files {', '.join(IDX_FILES)} (.gz or plain).",
                path=str(folder),
            )
        array = read_idx(path)
        hashes[path.name] = hash_file(path)
        if "images" in name:
            images.append(array.reshape(len(array), -1))
        else:
            labels.append(array)
    for image, label in zip(images, labels, strict=True):
        if len(image) != len(label):
            raise InputError(
                f"{folder} has {len(image)} images and {len(label)} labels in one part; fetch the files again."
            )
    # images[0] are the training images: the test images have no say in which pixels are used.
    used: Bool = np.asarray(images[0].any(axis=0))
    return np.concatenate(images), np.concatenate(labels).astype(np.int64), used, hashes


def _from_openml() -> tuple[U8, I64, Bool, dict[str, str]]:
    try:
        # scikit-learn is an optional extra.
        from sklearn.datasets import fetch_openml
    except ImportError:
        raise ConfigError(
            "without --data the digits are fetched by scikit-learn, which is not installed; give --data FOLDER with "
            "the four IDX files, or install fedmiss[experiments]."
        ) from None
    try:
        got = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff")
    except OSError as error:
        raise InputError(
            f"the digits could not be fetched from OpenML ({error}); give --data FOLDER with the four IDX files."
        ) from None
    images = got.data.astype(np.uint8)
    used: Bool = np.asarray(images[:60_000].any(axis=0))  # OpenML keeps the training images first
    return images, got.target.astype(np.int64), used, {"openml": "mnist_784 version 1"}


def pca(images: U8, k: int, used: Bool) -> F64:
    """Return the (N, k) principal components of the ``used`` pixels (scaled to 0..1).

    From the eigenvectors of the (pixels x pixels) covariance, largest first, each with the sign that makes its
    largest entry positive.
    """
    pixels = images[:, used].astype(np.float32) / np.float32(255)
    pixels -= pixels.mean(axis=0, dtype=np.float64).astype(np.float32)
    if k > pixels.shape[1]:
        raise ConfigError(f"PCA to {k} components of images with {pixels.shape[1]} pixels in use; lower it.")
    # sums in double over blocks: the covariance is good to the last digit without an N x pixels double copy
    covariance = np.zeros((pixels.shape[1], pixels.shape[1]))
    for block in np.array_split(pixels, max(len(pixels) // 10_000, 1)):
        covariance += block.T @ block
    vectors = np.linalg.eigh(covariance / len(pixels))[1][:, ::-1][:, :k]
    # The sign of an eigenvector is free, and differs between libraries.
    vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(k)])
    return (pixels @ vectors.astype(np.float32)).astype(np.float64)
