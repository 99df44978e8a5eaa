"""Image tables are read from files of the published form, here made up; others are refused, absent ones left out by name."""

import gzip
import importlib
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def made_up_images(rng, size, *shape):
    """A bright square at one of four places: what a network can learn in a few steps."""
    images = rng.integers(0, 30, size=(size, *shape), dtype=np.uint8)
    for number, place in enumerate(rng.integers(4, size=size)):
        row, column = 2 + 12 * (place // 2), 2 + 12 * (place % 2)
        images[number, ..., row : row + 12, column : column + 12] = 250
    return images


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All three tables, with a few images each."""
    rng = np.random.default_rng(0)
    for name in (".", "fashion-mnist"):
        (tmp_path / name).mkdir(exist_ok=True)
        write_idx(tmp_path / name / "train-images-idx3-ubyte.gz", made_up_images(rng, 300, 28, 28))
        write_idx(tmp_path / name / "t10k-images-idx3-ubyte.gz", made_up_images(rng, 50, 28, 28))
    cifar = tmp_path / "cifar-10-batches-bin"
    cifar.mkdir()
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        planes = made_up_images(rng, 50, 3, 32, 32).reshape(50, -1)
        classes = rng.integers(10, size=(50, 1), dtype=np.uint8)
        np.concatenate([classes, planes], axis=1).tofile(cifar / f"{name}.bin")
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def example(repository, monkeypatch):
    """A function from the name of an example's module to the module."""
    folders = [repository / "examples" / "paper", repository / "examples", repository]
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    return importlib.import_module


def test_pixels_are_where_the_files_have_them(folder, example):
    images = example("_images")
    array = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    write_idx(folder / "train-images-idx3-ubyte.gz", array)
    train, test = images.whole_mnist()
    assert np.array_equal(train * 255, array.reshape(2, 784))
    assert train.dtype == np.float32
    assert len(test) == 50
    assert not np.array_equal(images.fashion_mnist()[1], test)

    rows = np.zeros((2, 3073), np.uint8)
    rows[:, 0] = 200  # the class, which is no pixel
    rows[1, 1 + 32 * 5 + 7] = 51  # red, sixth row, eighth column
    rows[1, 1 + 2 * 1024 + 31] = 102  # blue, first row, last column
    rows.tofile(folder / "cifar-10-batches-bin" / "data_batch_2.bin")
    train, test = images.cifar_10()
    assert train.shape == (4 * 50 + 2, 32, 32, 3)
    assert test.shape == (50, 32, 32, 3)
    assert train[51, 5, 7].tolist() == pytest.approx([0.2, 0, 0])
    assert train[51, 0, 31].tolist() == pytest.approx([0, 0, 0.4])
    assert train[50:52].sum() == pytest.approx(0.6)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", b"\0\0\x08\x02\0\0\0\x02\0\0\0\x02abc"]
)
def test_other_files_and_cut_ones_are_refused(folder, example, content):
    images = example("_images")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz .*as it is published"):
        images.whole_mnist()
    (folder / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"\x01" * 3072)
    with pytest.raises(ValueError, match=r"test_batch\.bin .*binary version"):
        images.cifar_10()


def test_a_table_that_is_absent_is_left_out_by_name(folder, example, monkeypatch, capsys):
    experiment = example("vae_images")
    (folder / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    monkeypatch.setattr(
        experiment, "losses_after", lambda name, network, training, *_: [(name, training.shape)]
    )
    assert experiment.run(experiment.QUICK) == [
        ("MNIST", (300, 784)),
        ("Fashion-MNIST", (300, 784)),
    ]
    assert (
        "CIFAR-10 is left out. No table 'cifar-10-batches-bin/data_batch_4.bin'"
        in capsys.readouterr().out
    )


def test_without_files_the_runner_gives_the_reason(repository, tmp_path):
    """The runner of all experiments takes it for a table that is not here, and goes on."""
    command = [
        sys.executable,
        repository / "examples" / "paper",
        "vae_images",
        "--quick",
        "--out",
        tmp_path,
    ]
    environment = {**os.environ, "DISCREET_DATA": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    if "MNIST" in done.stdout:
        pytest.skip("the tables are beside the repository")
    assert done.returncode == 0, done.stderr
    assert "no data, left out" in done.stdout
    for name in ("MNIST", "Fashion-MNIST", "CIFAR-10"):
        assert f"{name} is left out. No table" in done.stderr


@pytest.mark.exhaustive
def test_files_of_the_published_form_are_fitted(folder, repository, tmp_path):
    """Losses have the order that the check asks for by 100 nats and more; the noise is that of fixed seeds."""
    script = repository / "examples" / "paper" / "vae_images.py"
    command = [sys.executable, script, "--quick", "--out", tmp_path / "found"]
    environment = {**os.environ, "DISCREET_DATA": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "found" / "vae_images.json").read_text())
    assert [row["what"].split(",")[0] for row in kept["rows"][::2]] == [
        "MNIST",
        "Fashion-MNIST",
        "CIFAR-10",
    ]
