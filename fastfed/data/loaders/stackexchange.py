"""Questions of Stack Exchange sites for tag prediction, one client per person who asks, from the sites' public dumps.

The XML is streamed through expat, which keeps no tree. A document type declaration is refused as soon as it begins:
entities can be declared nowhere else, so none can be expanded (no "billion laughs") and no other file is read.
"""

from __future__ import annotations

import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from os import PathLike
from pathlib import Path
from typing import BinaryIO, cast
from xml.parsers import expat

import torch

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError, reading
from ..store import Examples
from .text import Labels, SparseRows, check_fraction, check_labels, held_out, most_common, tags_as

_SOURCE = "https://archive.org/details/stackexchange, Posts.xml in the .7z archive of a site (unpack it first)"
_EXPECTED = "Posts.xml of a Stack Exchange dump, plain or .xz"
_CHUNK = 1 << 20  # bytes parsed at a time
_LONGEST = 1 << 25  # bytes of a post: the sites take 30,000 characters of one
_QUESTION = "1"
_WORD = re.compile(r"\w+(?:'\w+)*")
# A "<" outside quotes ends what is no tag: looking for the end of many that never end takes no longer than the text.
_TAG = re.compile(r"""<[a-zA-Z/!?](?:[^<>"']|"[^"]*"|'[^']*')*>""")
_BETWEEN_TAGS = re.compile(r"[<>|]+")  # older dumps write <a><b>, newer ones |a|b|

Root = str | PathLike[str]


@dataclass(frozen=True)
class Question:
    """A question: who asked (``site/owner``), when (ISO 8601), its title and body as lower-case words between spaces,
    and its tags."""

    client: str
    asked: str
    id: int
    words: str
    tags: tuple[str, ...]


@remembered
def stack_exchange(
    root: Root | Sequence[Root],
    words: int = 10000,
    tags: int = 500,
    test_fraction: float = 0.2,
    labels: Labels = "all",
) -> Dataset:
    """Tag prediction on questions: bags of words `Sparse` (examples, words), tags `Sparse` (examples, tags); with
    `labels` "one", as `stack_overflow_tags` has it, the most frequent tag only, int64 (examples,).

    `root` is a file (``Posts.xml``, ``beer-Posts.xml.xz``), a directory with such files, or several of them: the sites
    are put together, and a client is a person of one site, named ``site/user`` by the user's number, or by the display
    name where the account is gone. Questions with neither are left out.

    Of every client's questions the last `test_fraction` in time are its test set, rounded up but never all: who asked
    once is in training only (0: no test set). The `words` and `tags` most frequent in training are known, and the
    frequencies of a bag sum to 1 over them. Where a site has fewer, the last columns stay empty. `class_names` are the
    known tags.
    """
    check_whole("words", words, least=1)
    check_whole("tags", tags, least=1)
    check_fraction("test_fraction", test_fraction)
    check_labels(labels)
    paths = _files(root)
    questions = list[Question]()
    for path in paths:
        with reading(path, _EXPECTED, _SOURCE):
            questions += sorted(read_questions(path), key=_time)
    if not questions:
        raise DataError(paths[0], "holds no question with an owner", _EXPECTED, _SOURCE)
    train, test = _split(questions, test_fraction)
    word_places = most_common(Counter(word for q in train for word in q.words.split()), words)
    tag_places = most_common(Counter(tag for q in train for tag in q.tags), tags)
    names = {name: place for place, name in enumerate(dict.fromkeys(q.client for q in train))}

    def examples(of: list[Question]) -> Examples:
        bags, tagged = SparseRows(words), SparseRows(tags)
        for question in of:
            bags.add_words(question.words.split(), word_places)
            tagged.add_tags(question.tags, tag_places)
        return Examples(bags.sparse(), tags_as(labels, tagged))

    return Dataset(
        name="stack_exchange",
        train=examples(train),
        test=examples(test) if test else None,
        client=torch.tensor([names[q.client] for q in train]),
        client_names=tuple(names),
        test_client=torch.tensor([names[q.client] for q in test]) if test else None,
        class_names=tuple(tag_places),
    )


def read_questions(path: Path) -> Iterator[Question]:
    """The questions of a site that have an owner, as they come in the file."""
    site = _site(path)
    for post in read_posts(path):
        owner = post.get("OwnerUserId") or post.get("OwnerDisplayName")
        if post["PostTypeId"] == _QUESTION and owner:
            text = f"{post.get('Title', '')} {_plain(post.get('Body', ''))}"
            yield Question(
                client=f"{site}/{owner}",
                asked=post["CreationDate"],
                id=int(post["Id"]),
                words=" ".join(_WORD.findall(text.lower())),
                tags=tuple(tag for tag in _BETWEEN_TAGS.split(post.get("Tags", "")) if tag),
            )


def read_posts(path: Path) -> Iterator[dict[str, str]]:
    """The attributes of every post of a Posts.xml, of any type, read a piece at a time."""
    rows: list[dict[str, str]] = []
    parser = _row_parser(path, rows)
    try:
        with _opened(path) as file:
            unfinished = 0  # bytes since a post was complete
            while chunk := file.read(_CHUNK):
                parser.Parse(chunk, False)
                unfinished = 0 if rows else unfinished + len(chunk)
                if unfinished > _LONGEST:
                    problem = f"has a post of more than {_LONGEST >> 20} MiB"
                    raise DataError(path, problem, _EXPECTED, _SOURCE)
                yield from rows
                rows.clear()
            parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise DataError(path, f"is truncated or no XML ({error})", _EXPECTED, _SOURCE) from error
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(path, f"is truncated or no .xz file ({error})", _EXPECTED, _SOURCE) from error


def _row_parser(path: Path, rows: list[dict[str, str]]) -> expat.XMLParserType:
    """A parser that appends the attributes of every <row> of <posts> and refuses anything else."""
    outer: list[str] = []

    def begin(name: str, attributes: dict[str, str]) -> None:
        if not outer and name != "posts":
            raise DataError(path, f"begins with <{name}>, not with <posts>", _EXPECTED, _SOURCE)
        if outer:
            _check_row(path, name, attributes)
            rows.append(attributes)
        outer.append(name)

    def end(_: str) -> None:
        outer.pop()

    def refuse(*_: object) -> None:
        raise DataError(path, "has a document type declaration, which could define entities", _EXPECTED, _SOURCE)

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    return parser


def _check_row(path: Path, name: str, attributes: dict[str, str]) -> None:
    missing = [key for key in ("Id", "PostTypeId", "CreationDate") if key not in attributes]
    if name != "row" or missing:
        problem = f"has a <{name}> where a <row> is due" if name != "row" else f"has a row without {missing[0]}"
        raise DataError(path, problem, _EXPECTED, _SOURCE)
    if not re.fullmatch(r"-?\d+", attributes["Id"]):
        raise DataError(path, f"has a row whose Id is {attributes['Id']!r}, no whole number", _EXPECTED, _SOURCE)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, lzma.open(path)) if path.suffix == ".xz" else path.open("rb")


def _plain(html: str) -> str:
    """The text of an HTML fragment; tags part words, as "<li>a</li><li>b</li>" shows."""
    return " ".join(unescape(part) for part in _TAG.split(_without_comments(html)))


def _without_comments(html: str) -> str:
    kept, at = list[str](), 0
    while (begin := html.find("<!--", at)) >= 0 and (end := html.find("-->", begin + 4)) >= 0:
        kept.append(html[at:begin])
        at = end + 3
    return " ".join([*kept, html[at:]])


def _files(root: Root | Sequence[Root]) -> list[Path]:
    """The posts files that `root` names, directories looked into."""
    given: Iterable[Root] = [root] if isinstance(root, (str, PathLike)) else root
    found = [file for one in given for file in _posts_files(Path(one))]
    if not found:
        raise ValueError("root: must name at least one Posts.xml")
    sites = [_site(file) for file in found]
    for site in sites:
        if sites.count(site) > 1:
            raise ValueError(f"root: the site {site!r} is given {sites.count(site)} times")
    return found


def _posts_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(path, "does not exist", _EXPECTED, _SOURCE)
    found = sorted(file for ending in ("Posts.xml", "Posts.xml.xz") for file in path.glob(f"*{ending}"))
    if not found:
        raise DataError(path, "holds no file whose name ends in Posts.xml or Posts.xml.xz", _EXPECTED, _SOURCE)
    return found


def _site(path: Path) -> str:
    """``beer-Posts.xml.xz`` is of beer; a plain ``Posts.xml`` is of the directory it lies in."""
    stem = path.name.removesuffix(".xz").removesuffix(".xml")
    return stem.removesuffix("Posts").rstrip("-_.") or path.resolve().parent.name


def _time(question: Question) -> tuple[str, int]:
    return question.asked, question.id


def _split(questions: list[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    """Training and test questions, from questions in the order of time within a site."""
    own: defaultdict[str, list[Question]] = defaultdict(list)
    for question in questions:
        own[question.client].append(question)
    train, test = list[Question](), list[Question]()
    for asked in own.values():
        cut = len(asked) - held_out(len(asked), fraction)
        train += asked[:cut]
        test += asked[cut:]
    return train, test
