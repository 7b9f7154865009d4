"""Axes: every form of values, and a sentence for every mistake."""

from __future__ import annotations

import pytest

from fastfed.app.config import ConfigError
from fastfed.app.sweep import parse_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("client.lr=1e-3:1e0:log7", (0.001, 0.00316228, 0.01, 0.0316228, 0.1, 0.316228, 1.0)),
        ("client.lr=1:0.01:log3", (1, 0.1, 0.01)),
        ("run.epochs=1:9:lin5", (1, 3, 5, 7, 9)),
        ("run.batch_size=1:1000:log4", (1, 10, 100, 1000)),
        ("x=0:1:lin3", (0, 0.5, 1)),
        ("x=0.1, 1,1e-5", (0.1, 1, 1e-5)),
        ("x=.5,2.", (0.5, 2.0)),
        ("method=fedavg,fedyogi", ("fedavg", "fedyogi")),
        ("x=true,false", (True, False)),
        ("x=1,true", (1, True)),
        ('x="a,b",c', ("a,b", "c")),
        ("x=[1,2],[3]", ([1, 2], [3])),
        ('client={rule="sgd",lr=0.1},{rule="adam"}', ({"rule": "sgd", "lr": 0.1}, {"rule": "adam"})),
        ('x=none,{kind="a"},b', ("none", {"kind": "a"}, "b")),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    axis = parse_axis(text)
    assert axis.key == text.partition("=")[0]
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


def test_the_ends_of_a_range_are_exactly_what_was_written() -> None:
    assert parse_axis("x=0.00316228:3.16228:log7").values[0] == 0.00316228
    assert parse_axis("x=1e-7:0.1234567891:lin3").values[-1] == 0.1234567891


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client.lr", "must be a dotted key and its values"),
        ("=1,2", "must begin with a dotted key"),
        ("client lr=1,2", "must begin with a dotted key"),
        ("x=", "x has no values"),
        ("x=1,,2", "x has an empty value between two commas"),
        ("x=1,2,1", "x has the value 1 twice"),
        ("x=1:2", "must be a list a,b,c, or a range"),
        ("x=1:2:3", "a range must end in logN or linN with the number of values, got '1:2:3'"),
        ("x=1:2:log", "a range must end in logN or linN"),
        ("x=1:2:cubic3", "a range must end in logN or linN"),
        ("x=1:2:log1", "a range must have 2 to"),
        ("x=0:2:log3", "the ends of a logarithmic range must be > 0"),
        ("x=-1:2:log3", "the ends of a logarithmic range must be > 0"),
        ("x=2:2:lin3", "the ends of a range must differ"),
        ("x=a:2:lin3", "the ends of a range must be numbers, got 'a'"),
        ("x=nan:2:lin3", "the ends of a range must be numbers, got 'nan'"),
        ("x={a=1,{b=2}", "quotes, brackets or braces do not close"),
        ("x={a},b", "'{a}' is not a TOML value"),
    ],
)
def test_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_axis(text)
    assert str(caught.value).startswith("--grid: ")
    assert sentence in str(caught.value)
