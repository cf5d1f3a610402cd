"""Renders chat templates in a separate process: reads a JSON object from standard input, writes one to standard output.

Run by chat_template.py as a script that imports nothing of anyformer. A template that loops, or exceeds the limits on
memory or output, ends only this process.
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any


def limit(seconds: int, memory: int) -> None:
    """Limit processor time and memory, and forbid files and child processes, if the system supports it."""
    try:
        import resource
    except ImportError:  # Windows; the caller's timeout still applies
        return
    limits = {"RLIMIT_CPU": seconds, "RLIMIT_AS": memory, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, most in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (ValueError, OSError, AttributeError):
            continue


def environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %}: marks assistant text for training; here it is plain text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def render(template: Any, variables: dict[str, Any], most: int) -> str:
    written, size = [], 0
    for piece in template.generate(**variables):
        size += len(piece)
        if size > most:
            raise OverflowError
        written.append(piece)
    return "".join(written)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        template = environment().from_string(request["template"])
        return {"texts": [render(template, variables, request["output"]) for variables in request["variables"]]}
    except OverflowError:
        return {"problem": "output"}
    except MemoryError:
        return {"problem": "memory"}
    except RecursionError:
        return {"problem": "recursion"}
    except Exception as error:
        return {"problem": "error", "says": f"{type(error).__name__}: {error}"}


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["path"]
    import jinja2.sandbox  # noqa: F401 - before the limits, which apply to the template

    limit(request["seconds"], request["memory"])
    sys.stdout.buffer.write(json.dumps(answer(request)).encode())


if __name__ == "__main__":
    main()
