"""Data: the flat example store that every executor reads, data sets, and how they are dealt to clients."""

from .arrays import as_dataset, from_arrays, from_torch
from .augment import Augment
from .by_client import from_clients
from .dataset import Dataset, Federated, Federation, Visit
from .disk import open_store, save_store
from .errors import DataError
from .features import features
from .folders import from_folder
from .generated import Generated
from .loaders.cifar import cifar10, cifar100
from .loaders.digits import digits
from .loaders.idx import emnist, fashion_mnist, mnist, qmnist
from .loaders.landmarks import gld23k
from .loaders.leaf import leaf
from .loaders.shakespeare import shakespeare_plays
from .loaders.stackexchange import stack_exchange
from .loaders.stackoverflow import stack_overflow_nwp, stack_overflow_tags
from .loaders.synthetic import (
    synthetic_autoencoder,
    synthetic_heavy_tails,
    synthetic_images,
    synthetic_regression,
    synthetic_tags,
    synthetic_text,
    synthetic_topics,
)
from .loaders.tff import federated_cifar100, federated_emnist, federated_shakespeare
from .loaders.topics import ag_news, dbpedia
from .partition import dirichlet, dirichlet_by_label, iid, natural, pachinko
from .partition_file import load_partition, save_partition
from .picture import draw_labels, draw_partition
from .pooling import pooled
from .store import Examples, Inputs, Pixels, Sparse
from .tables import from_csv, from_table
from .validation import hold_out

__all__ = [
    "Augment",
    "DataError",
    "Dataset",
    "Examples",
    "Federated",
    "Federation",
    "Generated",
    "Inputs",
    "Pixels",
    "Sparse",
    "Visit",
    "ag_news",
    "as_dataset",
    "cifar10",
    "cifar100",
    "dbpedia",
    "digits",
    "dirichlet",
    "dirichlet_by_label",
    "draw_labels",
    "draw_partition",
    "emnist",
    "fashion_mnist",
    "features",
    "federated_cifar100",
    "federated_emnist",
    "federated_shakespeare",
    "from_arrays",
    "from_clients",
    "from_csv",
    "from_folder",
    "from_table",
    "from_torch",
    "gld23k",
    "hold_out",
    "iid",
    "leaf",
    "load_partition",
    "mnist",
    "natural",
    "open_store",
    "pachinko",
    "pooled",
    "qmnist",
    "save_partition",
    "save_store",
    "shakespeare_plays",
    "stack_exchange",
    "stack_overflow_nwp",
    "stack_overflow_tags",
    "synthetic_autoencoder",
    "synthetic_heavy_tails",
    "synthetic_images",
    "synthetic_regression",
    "synthetic_tags",
    "synthetic_text",
    "synthetic_topics",
]
