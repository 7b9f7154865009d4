"""A Flower grid without a network: its nodes are the clients of a federation, a whole cohort trains in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal
from uuid import uuid4

import torch
from torch import Tensor

from ...train import Outcome
from ..local import LocalTraining, RoundSettings
from . import messages as flower_messages
from .host import Grid, Message, MessageType, RecordDict, be_somebody


class NativeGrid(Grid):
    """The clients of `training`, one node each, for ``strategy.start(grid, ...)``: no server, no processes.

    `node_ids` names them, in the federation's order: whole numbers below 2**64, each once, as Flower's are (default:
    2, 3, ...; 1 is the server). They key nothing: a client's randomness follows from its place, so that a run does not
    depend on them. `replies`: "each" node's model, as everywhere in Flower, or only their "mean" over all examples, in
    one reply in the first node's name, which is the same to every strategy that averages and keeps memory from growing
    with the cohort.
    """

    def __init__(
        self,
        training: LocalTraining,
        *,
        node_ids: Sequence[int] | None = None,
        replies: Literal["each", "mean"] = "each",
    ) -> None:
        if not isinstance(training, LocalTraining):
            raise TypeError(f"training: must be a fastfed.integrations.LocalTraining, got {training!r}")
        if replies not in ("each", "mean"):
            raise ValueError(f"replies: must be 'each' or 'mean', got {replies!r}")
        self.training, self.replies = training, replies
        self._places = _places(node_ids, len(training))
        self._kept: dict[str, Any] = {}  # replies that nobody has pulled yet
        self._run: Any = None
        be_somebody()

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self._places)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        """The replies to these messages, in their order. All that ask for the same training are trained at once.
        Nothing is waited for, so that there is no `timeout` to keep."""
        given = list(messages)
        answered: dict[int, Any] = {}
        for type_ in {message.metadata.message_type for message in given}:
            chosen = [i for i, message in enumerate(given) if message.metadata.message_type == type_]
            answer = self._answers(type_)
            answered |= dict(zip(chosen, answer([given[i] for i in chosen]), strict=True))
        return [answered[i] for i in sorted(answered) if answered[i] is not None]

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Answers these messages, for `pull_messages` to hand over; an id for each."""
        given = list(messages)
        ids = [uuid4().hex for _ in given]
        if self.replies == "mean" and len(given) > 1:
            raise ValueError("messages: a mean answers several at once; use send_and_receive, or replies='each'")
        self._kept |= dict(zip(ids, self.send_and_receive(given), strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """The replies to pushed messages, each once."""
        return [self._kept.pop(name) for name in message_ids if name in self._kept]

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """Keeps what Flower says of its run."""
        self._run = run

    @property
    def run(self) -> Any:
        """What Flower said of its run; None if it did not."""
        return self._run

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _answers(self, message_type: str) -> Any:
        kind = message_type.partition(".")[0]
        if kind == MessageType.TRAIN:
            return self._train
        if kind == MessageType.EVALUATE:
            return self._evaluate
        raise ValueError(f"message: nodes can {MessageType.TRAIN} and {MessageType.EVALUATE}, got {message_type!r}")

    def _cohort(self, messages: list[Any]) -> Tensor:
        ids = [message.metadata.dst_node_id for message in messages]
        unknown = [each for each in ids if each not in self._places]
        if unknown:
            raise ValueError(f"message: there is no node {unknown[0]} in this grid")
        return torch.tensor([self._places[each] for each in ids], dtype=torch.int64)

    def _train(self, messages: list[Any]) -> list[Any]:
        """One reply for each message, or one and None for the others; messages with the same settings go together."""
        replies: list[Any] = [None] * len(messages)
        asked = [flower_messages.settings_of(message) for message in messages]
        for settings in dict.fromkeys(asked):
            chosen = [i for i, each in enumerate(asked) if each == settings]
            for i, reply in zip(chosen, self._train_alike([messages[i] for i in chosen], settings), strict=True):
                replies[i] = reply
        return replies

    def _train_alike(self, messages: list[Any], settings: RoundSettings) -> list[Any]:
        records = [flower_messages.arrays_of(message)[1] for message in messages]
        distinct = list({id(record): record for record in records}.values())
        which = {id(record): i for i, record in enumerate(distinct)}
        if self.replies == "mean" and len(distinct) > 1:
            raise ValueError(
                f"replies: a mean is of one model's clients, but the messages carry {len(distinct)} models"
            )
        packing = self.training.packing
        starts = packing.zeros(len(distinct))
        for record, out in zip(distinct, starts, strict=True):
            flower_messages.pack(record, packing, out)
        index = torch.tensor([which[id(record)] for record in records])
        outcome = self.training.train(
            starts, self._cohort(messages), settings, start_index=index, keep_deltas=self.replies == "each"
        )
        if self.replies == "mean":
            return [self._mean_reply(messages[0], records[0], starts[0], outcome)] + [None] * (len(messages) - 1)
        return [
            self._reply(message, record, starts[index[i]], outcome, i)
            for i, (message, record) in enumerate(zip(messages, records, strict=True))
        ]

    def _reply(self, message: Any, record: Any, start: Tensor, outcome: Outcome, i: int) -> Any:
        if bool(outcome.refused[i]):
            node = message.metadata.dst_node_id
            return flower_messages.refused_reply(message, f"node {node}: the trained model is not finite")
        assert outcome.deltas is not None
        arrays = flower_messages.unpack(start + outcome.deltas[i], self.training.packing, record)
        scalars = outcome.scalars
        loss = float(scalars["mean_loss"][i])
        return flower_messages.trained_reply(message, arrays, float(scalars["examples"][i]), loss)

    def _mean_reply(self, message: Any, record: Any, start: Tensor, outcome: Outcome) -> Any:
        return flower_messages.mean_reply(message, record, start, outcome, self.training.packing)

    def _evaluate(self, messages: list[Any]) -> list[Any]:
        packing, cohort = self.training.packing, self._cohort(messages)
        replies, packed = [], dict[int, Tensor]()
        for i, message in enumerate(messages):
            _, record = flower_messages.arrays_of(message)
            if id(record) not in packed:
                packed[id(record)] = packing.zeros()
                flower_messages.pack(record, packing, packed[id(record)])
            found = self.training.evaluate(packed[id(record)], cohort[i : i + 1])
            replies.append(flower_messages.evaluated_reply(message, found))
        return replies


def _places(node_ids: Sequence[int] | None, clients: int) -> dict[int, int]:
    """The place of each node's client in the federation."""
    ids = range(2, clients + 2) if node_ids is None else list(node_ids)
    if len(ids) != clients:
        raise ValueError(f"node_ids: must name {clients} nodes, one for each client, got {len(ids)}")
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < 1 << 64:
            raise ValueError(f"node_ids: must be whole numbers in [0, 2**64), got {each!r}")
    places = {each: place for place, each in enumerate(ids)}
    if len(places) != clients:
        raise ValueError("node_ids: each must be there once")
    return places
