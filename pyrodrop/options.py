"""The command line, from the arguments of functions and the words of their docstrings.

    entry: Annotated[str, "ENTRY"]                 ENTRY
    output: Annotated[Path | None, "-o"] = None    --output PATH, -o PATH
    steps: int | None = None                       --steps NUMBER
    data: list[str] | None = None                  --data NAME [NAME ...]
    preset: Literal["a", "b"] = "a"                --preset {a,b}
    quiet: bool = False                            --quiet

Options are never abbreviated, and given once. What is wrong is a ValueError with the option, what is allowed and what
arrived.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import textwrap
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser

from pyrodrop.names import one_of

_KINDS = {int: ("a whole number", "NUMBER"), float: ("a number", "NUMBER"), str: ("", "NAME"), Path: ("", "PATH")}
_WIDE = 36  # letters of all choices, above which a usage line of 80 columns has no room for them
_GIVEN = " given"  # in a namespace: names of the options so far


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors in words; ``--help`` and ``--version`` print and raise SystemExit(0)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "allow_abbrev": False,
            "exit_on_error": False,
            "add_help": False,
            "formatter_class": _Help,
        }
        super().__init__(*args, **defaults | options)
        self.add_argument("--help", "-h", action="help", help="show this and end")
        self.add_argument("--version", action=_Version, help="show the version and end")
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The values by name.

        Raises:
            ValueError: an unknown or repeated option, or a value that is missing or not allowed.
        """
        try:
            parsed, left = self.parse_known_intermixed_args(words)
        except argparse.ArgumentError as error:
            raise ValueError(self._wrong(error, words)) from None
        if left:
            raise ValueError(self._unknown(left))
        return {name: value for name, value in vars(parsed).items() if name not in ("debug", _GIVEN)}

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)

    def _wrong(self, error: argparse.ArgumentError, words: Sequence[str]) -> str:
        """An error of argparse in our words."""
        if error.argument_name is None:
            options = [word for word in words if word.startswith("--") and word.strip("-")]
            unknown = [word for word in options if word.partition("=")[0] not in self._option_string_actions]
            needed = next(action.help for action in self._actions if not action.option_strings)
            return f"{self.prog} needs {needed}; got none" + (f", and {self._unknown(unknown)}" if unknown else "")
        name, *others = error.argument_name.split("/")
        if isinstance(error.__context__, argparse.ArgumentTypeError):  # of a `_Value`
            return f"{name} {error.__context__}"
        nargs = self._option_string_actions[name].nargs  # otherwise there are too few values or too many
        if nargs != 0:
            return f"{name} needs {'at least one' if nargs == '+' else 'a'} value; got none"
        given = [word.partition("=")[2] for word in words if word.partition("=")[0] in (name, *others)]
        given += [word[2:] for word in words if word[:2] in others]  # as in -hx
        return f"{name} takes no value; got {given[0]!r}"

    def _unknown(self, left: Sequence[str]) -> str:
        names = [word.partition("=")[0] for word in left if word.startswith("-") and word.strip("-")]
        if not names:
            return f"{self.prog} takes no more words; got {' '.join(left)!r}; {self.prog} --help shows what it takes"
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(names[0], options, 1, 0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{self.prog} has no option {names[0]}; {hint}{self.prog} --help lists its options"

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Parser:
        """The parser of a command: its description is the first sentence of the function's docstring, the others follow."""
        about = docstring_parser.parse(function.__doc__ or "")
        parser = cls(name, description=about.short_description, epilog=about.long_description)
        parser.add_function(function)
        return parser

    @property
    def words(self) -> str:
        """What the command takes besides options, as its usage shows it."""
        positional = [action for action in self._actions if not action.option_strings]
        return " ".join(
            f"{action.metavar or action.dest.upper()}{' ...' if action.nargs else ''}" for action in positional
        )

    def add_function(self, function: Callable[..., Any], *, leave_out: Collection[str] = ()) -> None:
        """An option for every argument of a function that is not left out, a word for one that has no default.

        Raises:
            TypeError: an argument of a kind for which there is no option, or without a description.
        """
        hints = get_type_hints(function, include_extras=True)
        described = {p.arg_name: p.description or "" for p in docstring_parser.parse(function.__doc__ or "").params}
        for name, parameter in inspect.signature(function).parameters.items():
            if name in leave_out or parameter.kind is parameter.VAR_POSITIONAL:
                continue
            if not described.get(name):
                raise TypeError(f"argument {name} of {function.__module__}.{function.__qualname__} has no description")
            self._add(name, hints[name], parameter.default, _phrase(described[name]))

    def _add(self, name: str, hint: Any, default: Any, words: str) -> None:
        kind, many, marks = _inner(hint)
        option, required = f"--{name.replace('_', '-')}", default is inspect.Parameter.empty
        options = [name] if required else list(dict.fromkeys([option, f"--{name}", *marks]))
        if kind is bool:
            self.add_argument(*options, action="store_true", default=default, help=_shown(words))
            return
        literal = get_origin(kind) is Literal
        if not literal and kind not in _KINDS:
            raise TypeError(f"argument {name} is a {kind}, for which there is no option")
        what, metavar = ("", None) if literal else _KINDS[kind]
        about: dict[str, Any] = {"choices": get_args(kind) if literal else None, "nargs": "+" if many else None}
        if literal and len("".join(about["choices"])) > _WIDE:
            metavar = "NAME"  # what the names are is in the docstring
        about |= {"action": _Once, "type": _Value(kind, what), "metavar": marks[0] if required and marks else metavar}
        words += f"; {what}" if what and not many else ""
        if not required:
            about["default"] = default
            usual = ", ".join(map(str, default)) if isinstance(default, list | tuple) else default
            words += "" if usual is None else f" (default: {usual})"
        self.add_argument(*options, help=_shown(words), **about)


@dataclass(frozen=True)
class _Value:
    """Reads a value: a whole number, a number, text, a path, or one of a few words."""

    kind: Any
    what: str = ""

    def __call__(self, text: str) -> Any:
        if not text.strip():
            raise argparse.ArgumentTypeError("needs a value; got none")
        try:
            return one_of(text, self.kind, "") if get_origin(self.kind) is Literal else self.kind(text)
        except ValueError as error:
            words = f"must be {self.what}; got {text!r}" if self.what else str(error).strip()
            raise argparse.ArgumentTypeError(words) from None


class _Help(argparse.HelpFormatter):
    """Help whose words are not broken at hyphens, which are part of names."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            textwrap.fill(
                line,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
            )
            for line in text.splitlines()
        )


class _Once(argparse.Action):
    """Stores a value, and refuses a second one."""

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        given = vars(namespace).setdefault(_GIVEN, set())
        if self.dest in given:
            raise ValueError(f"{self.option_strings[0]} is given twice: leave one of them out")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class _Version(argparse.Action):
    """Prints the version."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import pyrodrop

        print(f"pyrodrop {pyrodrop.__version__}")
        parser.exit()


def _inner(hint: Any) -> tuple[Any, bool, tuple[str, ...]]:
    """What an argument is besides None, whether it is a list of that, and what it is annotated with."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is list:
        inner, _, more = _inner(get_args(kind)[0])
        return inner, True, (*marks, *more)
    return kind, False, tuple(marks)


def _phrase(words: str) -> str:
    """A description in one line and without its full stop."""
    line = " ".join(words.split())
    return line if line.endswith("...") else line.removesuffix(".")


def _shown(words: str) -> str:
    """Text of the help, in which argparse reads a per cent sign as the beginning of a name."""
    return words.replace("%", "%%")
