"""The JSON schema of configuration files, for editors that complete and check TOML."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ...privacy import Privacy
from . import logs, running
from . import method as methods
from .document import BASE, DIGEST, FROM, NAMED, SWEEP, WEIGHTS
from .kinds import CLIENTS, METHODS, MODELS, name_of
from .options import either, list_of, one_of, plain_model, table_model
from .parts import CHOICES, SCHEDULE, blend_model
from .source import data_models, lora_model


def json_schema() -> dict[str, Any]:
    """The schema, without what TOML lacks: null."""
    found: dict[str, Any] = _trimmed(file_model().model_json_schema())
    return found


def _trimmed(part: Any, names: bool = False) -> Any:
    """Without defaults of null, and without titles that only repeat a key; `names` where keys are those of a file."""
    if isinstance(part, list):
        return [_trimmed(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if names or not (key == "default" and value is None)}
    if not names and "properties" not in kept:
        kept.pop("title", None)
    return {key: _trimmed(value, names=not names and key in ("properties", "$defs")) for key, value in kept.items()}


def file_model() -> type[BaseModel]:
    """The pydantic model of whole files. It lets through what only the tables together show to be wrong, such as an
    option of another method's rule: `config.parse` refuses that."""
    keys: dict[str, Any] = {
        BASE: str,
        "name": str,
        "method": one_of(*METHODS),
        "method_options": either([methods.own_model(name) for name in METHODS]),
        "data": either([*data_models(), _own_table("data"), running.OWN_NAME]),
        "model": either([*_model_tables(), _own_table("model"), either([one_of(*MODELS), running.OWN_NAME])]),
        "run": running.model(_PLACE),
    }
    for name, table in CHOICES.items():
        keys[name] = either([table.model(kind) for kind in table.kinds])
        if name in NAMED:
            keys[name] = either([keys[name], _own_table(name)])
    keys["client"] = either([keys["client"], blend_model(), *_named_by_methods()])
    keys["privacy"] = table_model(Privacy)
    schedule = either([SCHEDULE.model(kind) for kind in SCHEDULE.kinds])
    keys["schedule"] = plain_model(
        "schedule", "Factors of learning rates by round.", dict.fromkeys(running.SIDES, schedule)
    )
    keys[logs.LOG] = logs.model()
    keys[SWEEP] = _sweep_model()
    return plain_model("FastFed", "A FastFed configuration.", keys)


def _model_tables() -> list[type[BaseModel]]:
    more = ((WEIGHTS, str), ("lora", lora_model()))
    return [table_model(make, (("name", one_of(name)), *more), title=f"model_{name}") for name, make in MODELS.items()]


_PLACE = {FROM: str, DIGEST: str}  # where a module of the user's own was looked for, and what it said


def _own_table(table: str) -> type[BaseModel]:
    """What names something of the user's own, whose arguments only its module tells."""
    words = 'A function or class of your own, as "package.module:function", and its arguments.'
    open_keys = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    told = {key: (kind, Field(default=None)) for key, kind in _PLACE.items()}
    keys: dict[str, Any] = {NAMED[table]: (running.OWN_NAME, ...), **told}
    made: type[BaseModel] = create_model(f"{table}_of_your_own", __doc__=words, __config__=open_keys, **keys)
    return made


def _sweep_model() -> type[BaseModel]:
    """The table that ``fastfed.app.sweep`` reads, and checks in its own words."""
    of_variant = {"name": str, "set": dict[str, Any], "grid": dict[str, Any]}
    variant = plain_model("variant", "Several settings with a name.", of_variant)
    judged = {"metric": str, "select": str, "last": int, "last_rounds": int, "tune_on": dict[str, Any]}
    keys = {"seeds": int, **judged, "grid": dict[str, Any], "variants": list_of(variant)}
    return plain_model(SWEEP, "What `fastfed sweep` varies.", keys)


def _named_by_methods() -> list[type[BaseModel]]:
    """Clients whose rule is a word of a method's own, which makes another rule of it."""
    named = [name for name in METHODS if methods.takes_name(name, "client")]
    made = {name: CLIENTS[name_of(CLIENTS, methods.example(name)["client"])] for name in named}
    return [table_model(kind, (("rule", str),), title=f"client_of_{name}") for name, kind in made.items()]
