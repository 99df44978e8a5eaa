"""Image tables in the files that they are published as: MNIST, Fashion-MNIST, CIFAR-10.

MNIST and Fashion-MNIST are IDX files, CIFAR-10's binary version is rows of bytes. Both are read as
plain numbers: CIFAR-10's other version are pickles, which run what they contain. Pixels lie in [0,
1]; nothing of one image meets another.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from _tables import find

CIFAR_SIDE = 32
CIFAR_ROW = 1 + 3 * CIFAR_SIDE**2  # the class, then the red, green and blue planes


def idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in a gzipped IDX file.

    Raises:
        ValueError: Another file, or one that was cut.
    """
    raw = gzip.decompress(path.read_bytes())
    # Two zeros, the type (8: unsigned bytes), the number of axes; a big-endian length for each
    # axis; the values.
    if raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise ValueError(
            f"{path} is no IDX file of unsigned bytes. Take the file as it is published."
        )
    axes = raw[3]
    shape = np.frombuffer(raw, ">i4", axes, 4).astype(int)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if len(values) != np.prod(shape):
        raise ValueError(
            f"{path} has {len(values):,} values, not those of {shape}. Take the file as it is published."
        )
    return values.reshape(shape)


def scaled(values: np.ndarray) -> np.ndarray:
    """Bytes as brightness in [0, 1]."""
    return values.astype(np.float32) / 255


def mnist(folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """MNIST's t10k files: 8,000 training images and labels, 2,000 for testing. Rows are images."""

    def read(name: str) -> np.ndarray:
        return idx(find(str(folder / name) if folder else name))

    images = scaled(read("t10k-images-idx3-ubyte.gz").reshape(-1, 784))
    labels = read("t10k-labels-idx1-ubyte.gz").astype(np.int32)
    return images[:8000], labels[:8000], images[8000:], labels[8000:]


def whole_mnist(folder: str = "") -> tuple[np.ndarray, np.ndarray]:
    """All training and test images of a table in MNIST's files, of shape (image, pixel)."""
    train, test = (
        idx(find(str(Path(folder, f"{part}-images-idx3-ubyte.gz")))) for part in ("train", "t10k")
    )
    return scaled(train.reshape(len(train), -1)), scaled(test.reshape(len(test), -1))


def fashion_mnist() -> tuple[np.ndarray, np.ndarray]:
    """The same of Fashion-MNIST, whose files have MNIST's names: in a folder of its own."""
    return whole_mnist("fashion-mnist")


def cifar_10() -> tuple[np.ndarray, np.ndarray]:
    """All training and test images of CIFAR-10's binary version, of shape (image, row, column, colour).

    Raises:
        ValueError: Another file, or one that was cut.
    """

    def read(name: str) -> np.ndarray:
        path = find(f"cifar-10-batches-bin/{name}.bin")
        values = np.fromfile(path, np.uint8)
        if len(values) == 0 or len(values) % CIFAR_ROW:
            raise ValueError(
                f"{path} is no file of rows of {CIFAR_ROW:,} bytes. Take CIFAR-10's binary version."
            )
        planes = values.reshape(-1, CIFAR_ROW)[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
        return scaled(planes.transpose(0, 2, 3, 1))

    return np.concatenate([read(f"data_batch_{number}") for number in range(1, 6)]), read(
        "test_batch"
    )
