"""The tables that say how a simulation runs: each becomes one of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from ...clients import Blend, Client, Part
from ...privacy import Privacy
from .errors import ConfigError
from .kinds import (
    AGGREGATIONS,
    CLIENTS,
    COMPRESSIONS,
    EXCHANGES,
    SCHEDULES,
    SERVERS,
    TIMINGS,
    TUNERS,
    Kinds,
    find,
    name_of,
)
from .options import arguments_of, call, checked, either, list_of, one_of, owners, plain_model, table_model, written


@dataclass(frozen=True)
class Choice:
    """A table with a choice: `key` names one of the `kinds`, the other keys are its options."""

    name: str
    key: str
    kinds: Kinds
    word: str  # what a kind is, for errors

    def model(self, kind: str) -> type[BaseModel]:
        chosen = self.kinds[kind]
        return table_model(chosen, ((self.key, one_of(kind)),), title=f"{self.name}_{kind}")

    def make(self, table: Mapping[str, Any], where: str = "") -> Any:
        """Settings from a table alone."""
        kind = self.chosen(table, where or self.name)
        given = self.given(kind, table, f"{self.word} {kind!r}", where)
        return call(self.kinds[kind], where or self.name, given, f"{self.word} {kind!r}")

    def change(self, made: Any, table: Mapping[str, Any], method: str) -> Any:
        """The settings that a method made, with what the table says of them."""
        kind = name_of(self.kinds, made)
        constructor = self.kinds[kind]
        subject = f"method {method!r} with {self.word} {kind!r}"
        given = self.given(kind, table, subject)
        held = {name: getattr(made, name) for name in arguments_of(constructor)}
        return call(constructor, self.name, {**held, **given}, subject)

    def chosen(self, table: Mapping[str, Any], where: str) -> str:
        """The kind that a table names; where there is only one, it need not."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: must be a table, got {table!r}")
        if self.key not in table and len(self.kinds) == 1:
            return next(iter(self.kinds))
        if self.key not in table:
            raise ConfigError(f"{where}.{self.key}: must be given, one of {', '.join(self.kinds)}")
        find(self.kinds, f"{where}.{self.key}", table[self.key])
        return str(table[self.key])

    def given(self, kind: str, table: Mapping[str, Any], subject: str, where: str = "") -> dict[str, Any]:
        """The options of a table, checked."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where or self.name}: must be a table, got {table!r}")
        named = {key: value for key, value in table.items() if key != self.key}
        return checked(table_model(self.kinds[kind]), where or self.name, named, subject, self.owner)

    def owner(self, key: str) -> str | None:
        """Which kinds have an option of that name."""
        return owners(self.word, self.kinds, key)

    def written(self, made: Any) -> dict[str, Any]:
        """The table that makes these settings."""
        return {self.key: name_of(self.kinds, made), **written(made)}


CLIENT = Choice("client", "rule", CLIENTS, "client rule")
SERVER = Choice("server", "rule", SERVERS, "server rule")
TIMING = Choice("timing", "kind", TIMINGS, "timing")
TUNER = Choice("tuner", "kind", TUNERS, "tuner")
COMPRESSION = Choice("compression", "kind", COMPRESSIONS, "compression")
AGGREGATION = Choice("aggregation", "kind", AGGREGATIONS, "aggregation")
EXCHANGE = Choice("exchange", "kind", EXCHANGES, "exchange")
SCHEDULE = Choice("schedule", "kind", SCHEDULES, "schedule")
CHOICES = {table.name: table for table in (CLIENT, SERVER, TIMING, TUNER, COMPRESSION, AGGREGATION, EXCHANGE)}

BLEND = "blend"
_OF_PART = tuple(field.name for field in fields(Part) if field.name != "client")


# ---- tables with a shape of their own -------------------------------------------------------------------------------


def make_blend(table: Mapping[str, Any]) -> Blend:
    """``rule = "blend"`` and ``[[client.parts]]``: each a client rule with its options, and what `Part` says of it."""
    for key in table:
        if key not in ("rule", "parts"):
            raise ConfigError(f"client.{key}: a blend has only parts, [[client.parts]]; give {key} to each of them")
    parts = table.get("parts")
    if not isinstance(parts, list) or not parts:
        raise ConfigError(f"client.parts: must be one or more tables [[client.parts]], got {parts!r}")
    return Blend([_part(f"client.parts[{number}]", part) for number, part in enumerate(parts)])


def _part(where: str, table: Any) -> Part:
    rule = CLIENT.chosen(table, where)
    words = f"a part with client rule {rule!r}"
    given = checked(_part_model(rule), where, table, words, CLIENT.owner)
    of_part = {key: value for key, value in given.items() if key in _OF_PART}
    of_client = {key: value for key, value in given.items() if key not in (*_OF_PART, CLIENT.key)}
    client = call(CLIENTS[rule], where, of_client, words)
    made: Part = call(Part, where, {"client": client, **of_part}, words)
    return made


def _part_model(rule: str) -> type[BaseModel]:
    whole = tuple((name, option.type) for name, option in arguments_of(Part).items() if name in _OF_PART)
    return table_model(CLIENTS[rule], ((CLIENT.key, one_of(rule)), *whole), title=f"part_{rule}")


def blend_model() -> type[BaseModel]:
    """The pydantic model of a blend, for the schema."""
    keys = {CLIENT.key: one_of(BLEND), "parts": list_of(either([_part_model(rule) for rule in CLIENTS]))}
    return plain_model("client_blend", "Every client of a round takes one of the parts.", keys)


def write_client(client: Client | Blend) -> dict[str, Any]:
    """The table of a client optimizer, or of a blend of them."""
    if not isinstance(client, Blend):
        return CLIENT.written(client)
    parts = [
        {**CLIENT.written(part.client), **{name: getattr(part, name) for name in _OF_PART}} for part in client.parts
    ]
    return {"rule": BLEND, "parts": parts}


def make_privacy(table: Any) -> Privacy:
    """Differential privacy, with ``[privacy.adaptive]`` for adaptive clipping."""
    words = "[privacy]"
    made: Privacy = call(Privacy, "privacy", checked(table_model(Privacy), "privacy", table, words), words)
    return made
