"""Odd values, and JSON documents with one of them put somewhere."""

from __future__ import annotations

import json
from random import Random
from typing import Any

SECRET = "../secret.txt"  # beside every folder that is damaged; nothing in it may come out again
ODD_TEXTS = (
    "",
    " ",
    "x" * 5000,
    "\x1b[2J\x1b]0;owned\x07",
    "\x00",
    "\ud800",
    "a\r\nb",
    "\u202etxt.exe",
    "../../../../etc/passwd",
    SECRET,
    ".",
    "..",
    "/dev/stdin",
    "nan",
    "-1",
    "1e400",
    "[" * 300,
    "None",
    "{0.__class__}",
    "é" * 300,
)
ODD_NUMBERS = (
    *(0, -1, 1, 2, 3, 7, 255, 1000, 65_537, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 2**63, 10**30, -(10**40)),
    *(0.5, -0.5, 1.0, 2.5, 1e-40, 1e30, 1e308, float("nan"), float("inf"), float("-inf")),
)


class Raw(str):
    """JSON text that stands in a document as it is."""


def odd(chance: Random) -> Any:
    kinds = ("number", "number", "number", "text", "text", "plain", "list", "object", "deep", "long", "digits")
    kind = chance.choice(kinds)
    if kind == "number":
        return chance.choice(ODD_NUMBERS)
    if kind == "text":
        return chance.choice(ODD_TEXTS)
    if kind == "plain":
        return chance.choice((None, True, False))
    if kind == "list":
        return [odd(chance) for _ in range(chance.choice((0, 1, 2, 5)))]
    if kind == "object":
        return {str(odd_name(chance)): odd(chance) for _ in range(chance.choice((0, 1, 3)))}
    if kind == "deep":
        depth = chance.choice((20, 70, 900, 100_000))
        return Raw(("[" * depth + "]" * depth) if chance.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth)
    if kind == "digits":
        return Raw("9" * 5000)  # more than Python makes an integer of
    return [chance.choice((0, "a", None))] * 20_000


def odd_name(chance: Random) -> str:
    return chance.choice(("a", "0", "-1", "id", "name", "type", "path", "model_type", "\x1b[31m", "", "x" * 1000, "é"))


def mutate_json(text: str, chance: Random) -> tuple[str, str]:
    """The document with one thing changed, and what that was. What is no JSON comes back as it is."""
    try:
        whole = json.loads(text)
        if chance.random() < 0.03 or not isinstance(whole, (dict, list)) or not whole:
            whole, said = odd(chance), "the whole document"
        else:
            said = _change(whole, chance)
        return dump(whole), said
    except (ValueError, RecursionError):  # damaged before, or too deep to be written again
        return text, "no JSON"


def _change(whole: Any, chance: Random) -> str:
    """One change somewhere, deep places as likely as those at the top."""
    place, path = whole, "$"
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        inner = place[key]
        path += f".{str(key)[:40]!s}"
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.7:
            place = inner
            continue
        return _change_at(place, key, chance, path)


def _change_at(place: Any, key: Any, chance: Random, path: str) -> str:
    value = place[key]
    how = chance.choice(("swap", "swap", "swap", "near", "remove", "wrap", "double", "rename", "add", "twice"))
    if how == "near" and type(value) in (int, float):
        place[key] = chance.choice(
            (value + 1, value - 1, -value, value * 1000, value * 10**9, float(value), str(value))
        )
    elif how == "remove":
        del place[key]
    elif how == "wrap":
        place[key] = [value] if chance.random() < 0.5 else {"a": value}
    elif how == "double" and isinstance(value, (list, str)):
        place[key] = value + value
    elif how == "rename" and isinstance(place, dict):
        place[odd_name(chance)] = place.pop(key)
    elif how == "add":
        if isinstance(place, dict):
            place[odd_name(chance)] = odd(chance)
        else:
            place.insert(chance.randrange(len(place) + 1), odd(chance))
    elif how == "twice" and isinstance(place, dict):
        place[key] = Raw(f"{dump(value)}, {json.dumps(str(key))}: {dump(odd(chance))}")  # a key that stands there twice
    else:
        place[key] = odd(chance)
    return f"{how} {path}"


def dump(value: Any) -> str:
    """json.dumps that writes `Raw` text as it is."""
    raw: list[str] = []

    def mark(one: Any) -> Any:
        if isinstance(one, Raw):
            raw.append(one)
            return f"\x01raw{len(raw) - 1}\x01"
        if isinstance(one, dict):
            return {name: mark(inner) for name, inner in one.items()}
        return [mark(inner) for inner in one] if isinstance(one, list) else one

    text = json.dumps(mark(value))
    for i, inner in enumerate(raw):
        text = text.replace(f'"\\u0001raw{i}\\u0001"', inner)
    return text
