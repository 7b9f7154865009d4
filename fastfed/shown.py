"""How things show themselves: one line in a console, a small table in a notebook, never what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape


class Shown:
    """Something whose class says in `_facts` what is worth a look."""

    def _facts(self) -> Mapping[str, object]:
        raise NotImplementedError

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._facts().items() if value is not None)
        return f"{type(self).__name__}({told})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align: left">{escape(name.replace("_", " "))}</th>'
            f'<td style="text-align: left">{escape(_in_words(value))}</td></tr>'
            for name, value in self._facts().items()
            if value is not None
        )
        return f'<table><caption style="text-align: left">{type(self).__name__}</caption><tbody>{rows}</tbody></table>'


def brief(settings: object) -> str:
    """Settings with what differs from their defaults: SGD(lr=0.1)."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return repr(settings)
    given = [field for field in fields(settings) if _is_told(getattr(settings, field.name), field.default)]
    told = ", ".join(f"{field.name}={brief(getattr(settings, field.name))}" for field in given)
    return f"{type(settings).__name__}({told})"


def _is_told(value: object, default: object) -> bool:
    return not (value is default or (isinstance(value, (bool, int, float, str)) and value == default))


def _in_words(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
