"""Text as tokens: the published numbering, cuts, padding, vocabularies, bags and held-out shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastfed.data.loaders.text import (
    CHARACTER_TOKENS,
    CHARACTERS,
    PAD,
    SparseRows,
    Tokens,
    character_sequences,
    character_tokens,
    check_fraction,
    fill_words,
    held_out,
    most_common,
)
from fastfed.losses import IGNORED


def test_the_vocabulary_has_90_tokens() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 86
    assert len(CHARACTER_TOKENS) == 90
    ids = (PAD, CHARACTER_TOKENS.unknown, CHARACTER_TOKENS.begin, CHARACTER_TOKENS.end)
    assert ids == (0, 87, 88, 89)
    assert character_tokens(CHARACTERS.encode()).tolist() == list(range(1, 87))
    assert character_tokens("dé{".encode()).tolist() == [1, 87, 87, 87]  # é is two bytes


def plainly(text: bytes, length: int) -> list[tuple[list[int], list[int]]]:
    """What `character_sequences` says it does, one token at a time."""
    place = {character: number + 1 for number, character in enumerate(CHARACTERS.encode())}
    tokens = [88, *(place.get(byte, 87) for byte in text), 89]
    found = []
    for start in range(0, len(tokens), length + 1):
        piece = tokens[start : start + length + 1]
        missing = length + 1 - len(piece)
        if len(piece) > 1:
            found.append(((piece + [0] * missing)[:-1], piece[1:] + [-100] * missing))
    return found


@pytest.mark.parametrize("length", [1, 2, 5, 80])
def test_sequences_are_cut_and_padded(length: int) -> None:
    line = b"To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer {~}" * 3
    texts = [line[:size] for size in (0, 1, 3, 4, 5, 10, 78, 79, 80, 81, 160, 161, 200)]
    examples, counts = character_sequences(texts, length)
    wanted = [plainly(text, length) for text in texts]
    assert counts.tolist() == [len(pieces) for pieces in wanted]
    assert isinstance(examples.inputs, torch.Tensor)
    assert isinstance(examples.targets, torch.Tensor)
    assert examples.inputs.dtype is examples.targets.dtype is torch.int64
    assert examples.inputs.is_contiguous()
    assert examples.targets.is_contiguous()
    assert examples.inputs.tolist() == [inputs for pieces in wanted for inputs, _ in pieces]
    assert examples.targets.tolist() == [targets for pieces in wanted for _, targets in pieces]


def test_no_text_gives_no_sequence() -> None:
    examples, counts = character_sequences([], 80)
    assert isinstance(examples.inputs, torch.Tensor)
    assert examples.inputs.shape == (0, 80)
    assert counts.shape == (0,)


def test_sentences_are_cut_at_the_length_and_end_where_they_end() -> None:
    tokens, vocabulary = Tokens(10), {"a": 0, "b": 1}
    rows = np.full((3, 5), PAD, dtype=np.int64)
    fill_words(rows[0], ["a", "what", "b"], vocabulary, tokens)
    fill_words(rows[1], ["b", "a", "b", "a", "a"], vocabulary, tokens)
    fill_words(rows[2], [], vocabulary, tokens)
    assert rows.tolist() == [[12, 1, 11, 2, 13], [12, 2, 1, 2, 1], [12, 13, 0, 0, 0]]
    assert len(tokens) == 14
    assert IGNORED == -100


def test_equal_counts_are_taken_in_alphabetical_order() -> None:
    assert most_common({"pear": 2, "fig": 1, "apple": 1, "kiwi": 3}, 3) == {"kiwi": 0, "pear": 1, "apple": 2}


def test_bags_are_frequencies_of_known_words() -> None:
    rows = SparseRows(5)
    vocabulary = {"a": 3, "b": 1}
    rows.add_words(["a", "b", "a", "a", "what", "ever"], vocabulary)
    rows.add_words(["what"], vocabulary)
    rows.add_words(["a", "b", "a", "a", "what", "ever"], vocabulary, count_unknown=True)
    rows.add_tags(["b", "z", "a", "b"], vocabulary)
    wanted = torch.tensor([[0, 1 / 4, 0, 3 / 4, 0], [0] * 5, [0, 1 / 6, 0, 3 / 6, 0], [0, 1, 0, 1, 0]])
    torch.testing.assert_close(rows.sparse().dense(torch.arange(4)), wanted)


@pytest.mark.parametrize(
    ("count", "fraction", "wanted"),
    [(0, 0.5, 0), (1, 0.9, 0), (2, 0.2, 1), (5, 0.2, 1), (6, 0.2, 2), (50, 0.2, 10), (100, 0.07, 7), (9, 0, 0)],
)
def test_a_share_is_held_out_but_never_all(count: int, fraction: float, wanted: int) -> None:
    assert held_out(count, fraction) == wanted


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan"), True, "half"])
def test_what_is_no_share_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^test_fraction: must lie in \[0, 1\)"):
        check_fraction("test_fraction", value)
