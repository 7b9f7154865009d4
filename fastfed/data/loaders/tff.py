"""Federated EMNIST, CIFAR-100 and Shakespeare as TensorFlow Federated has them, in the files of `tff_file`.

AFO is the paper "Adaptive Federated Optimization".
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import torch

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..augment import augment_of
from ..dataset import Dataset
from ..store import Examples, Pixels
from .text import Integers, character_sequences
from .tff_file import LABEL, TEXT, ClientFile, Field, Root


@remembered
def federated_emnist(root: Root, only_digits: bool = False, autoencoder: bool = False) -> Dataset:
    """Handwritten characters by writer: ``fed_emnist_train.h5`` and ``_test.h5``, or ``fed_emnist_digitsonly_*.h5``.

    Inputs float32 (examples, 1, 28, 28), as TFF has them: 1 is the background, 0 is ink. Targets int64 (examples,):
    digits, capital and small letters, 62 classes, or 10 with `only_digits`. 3,400 (3,383) clients.

    `autoencoder`: AFO's other task; inputs and targets are the same float32 (examples, 784), with 1 as ink.
    """
    classes = digits if only_digits else digits + ascii_uppercase + ascii_lowercase
    stem = "fed_emnist_digitsonly" if only_digits else "fed_emnist"
    fields = {"pixels": Field("f", (28, 28)), "label": LABEL}

    def examples(clients: ClientFile) -> Examples:
        labels = clients.labels(len(classes))
        pixels = clients.fill("pixels", np.float32)
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # so that NaN is refused too
            raise clients.error(f"has pixels from {pixels.min()} to {pixels.max()}, not from 0 to 1")
        if autoencoder:
            ink = torch.from_numpy(np.subtract(1, pixels, out=pixels)).reshape(-1, 784)
            return Examples(ink, ink)
        return Examples(torch.from_numpy(pixels).unsqueeze(1), labels)

    with (
        ClientFile(Path(root) / f"{stem}_train.h5", fields, stem) as train,
        ClientFile(Path(root) / f"{stem}_test.h5", fields, stem) as test,
    ):
        return Dataset(
            name="federated_emnist",
            train=examples(train),
            test=examples(test),
            client=train.keys(),
            client_names=train.names,
            test_client=test.keys_among(train.names),
            class_names=tuple(classes),
        )


@remembered
def federated_cifar100(root: Root, crop: int | None = None, flip: bool = False, standardise: bool = False) -> Dataset:
    """CIFAR-100 as AFO dealt it to 500 clients: ``fed_cifar100_train.h5`` and ``fed_cifar100_test.h5``.

    Inputs `Pixels` (examples, 3, 32, 32), targets int64 (examples,), 100 classes; `coarse` holds the 20 coarse labels.
    The 100 clients of the test file are others than those of training, in spite of equal names: `test_client` is None.
    `crop`, `flip`, `standardise`: see `Augment`. AFO has 24, True, True.
    """
    augment = augment_of(crop, flip, standardise)
    if augment is not None:
        augment.shape((3, 32, 32))  # before anything is read
    archive = "fed_cifar100"
    fields = {"image": Field("u", (32, 32, 3)), "label": LABEL, "coarse_label": LABEL}

    def examples(clients: ClientFile) -> Examples:
        labels = clients.labels(100)
        images = clients.fill("image", np.uint8, lambda images: images.transpose(0, 3, 1, 2))
        return Examples(Pixels(torch.from_numpy(images), augment=augment), labels)

    with (
        ClientFile(Path(root) / "fed_cifar100_train.h5", fields, archive) as train,
        ClientFile(Path(root) / "fed_cifar100_test.h5", fields, archive) as test,
    ):
        return Dataset(
            name="federated_cifar100",
            train=examples(train),
            test=examples(test),
            client=train.keys(),
            client_names=train.names,
            coarse=train.labels(20, "coarse_label"),
        )


@remembered
def federated_shakespeare(root: Root, length: int = 80) -> Dataset:
    """Next-character prediction, a client per speaking role: ``shakespeare_train.h5`` and ``shakespeare_test.h5``.

    Every snippet is cut into sequences as AFO does: inputs and targets int64 (examples, length), tokens below 90,
    targets `IGNORED` (-100) where padded. 715 clients.
    """
    check_whole("length", length, least=1)
    fields = {"snippets": Field(TEXT)}

    def examples(clients: ClientFile) -> tuple[Examples, Integers]:
        everything = ((client, slice(None)) for client in range(len(clients.names)))
        texts = [text for (snippets,) in clients.texts(everything, "snippets") for text in snippets]
        found, counts = character_sequences(texts, length)
        of_text = np.repeat(np.arange(len(clients.names)), clients.sizes)
        return found, np.bincount(of_text, weights=counts, minlength=len(clients.names)).astype(np.int64)

    with (
        ClientFile(Path(root) / "shakespeare_train.h5", fields, "shakespeare") as train,
        ClientFile(Path(root) / "shakespeare_test.h5", fields, "shakespeare") as test,
    ):
        sequences, sizes = examples(train)
        test_sequences, test_sizes = examples(test)
        return Dataset(
            name="federated_shakespeare",
            train=sequences,
            test=test_sequences,
            client=train.keys_among(train.names, sizes),
            client_names=train.names,
            test_client=test.keys_among(train.names, test_sizes),
        )
