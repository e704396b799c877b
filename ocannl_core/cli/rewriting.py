"""Programs rewritten to new names: edits of the source text at positions of its syntax tree.

    rewrite("import ocannl_core as oc\\ny = oc.mul(a, b)  # note\\n").text
        -->  "import ocannl_core as oc\\ny = oc.multiply(a, b)  # note\\n"

Names are resolved through imports and scopes, so that another library's `mul` stays. Comments,
strings and the layout are kept. Calls with other arguments are rewritten innermost first, one level
in each round.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

import ocannl_core
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.moved import new_name
from ocannl_core.base.renamings import CALLS, KEYWORDS, METHODS, MODULES, NAMES, SETTINGS, Rewritten
from ocannl_core.base.setting_sources import OPTION, PREFIX

_CORE = "ocannl_core"
_SCOPES = (
    ast.Module
    | ast.ClassDef
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.Lambda
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)
_METHODS = {old: new for renamed in METHODS.values() for old, new in renamed.items()}
_METHOD_KEYWORDS = {
    title.removeprefix("oc."): renamed
    for title, renamed in KEYWORDS.items()
    if hasattr(ocannl_core.Tensor, title.removeprefix("oc."))
}


_WORDS = {PREFIX + old.upper(): PREFIX + new.upper() for old, new in SETTINGS.items()} | {
    OPTION + old: OPTION + new for old, new in SETTINGS.items()
}
"""New names of environment variables and options, by old names."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The text of a program with new names."""

    text: str
    notes: tuple[str, ...] = ()
    """Lines with old names that a person has to rewrite, with the reason."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def rewrite(text: str) -> Rewriting:
    """Return a program with new names.

    Raises:
        SyntaxError: if the text is no program of this version of Python.
    """
    notes: tuple[str, ...] = ()
    rewritten: set[str] = set()
    for _ in range(len(text) + 1):
        program = _Program(text, rewritten)
        edits = program.edits()
        notes = tuple(dict.fromkeys(program.notes))
        if not edits:
            break
        for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
    return Rewriting(text, notes)


class _Scope:
    """The names that a module, a class, a function or a comprehension binds."""

    def __init__(self, node: _SCOPES, outer: _Scope | None) -> None:
        self.node = node
        self.outer = outer
        self.titles: dict[str, str | None] = {}
        """Of each name, the public name that it is bound to, or None for anything else."""

    def bind(self, name: str, title: str | None) -> None:
        if name in self.titles and self.titles[name] != title:
            title = None
        self.titles[name] = title

    def find(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            is_visible = scope is self or not isinstance(scope.node, ast.ClassDef)
            if is_visible and name in scope.titles:
                return scope.titles[name]
            scope = scope.outer
        return None

    def name_of(self, title: str) -> str | None:
        """Return a name that is bound to a public name here, or None."""
        scope: _Scope | None = self
        while scope is not None:
            for name, found in scope.titles.items():
                if found == title and self.find(name) == title:
                    return name
            scope = scope.outer
        return None


class _Program:
    """The syntax tree of a text, with the edits that its names need."""

    def __init__(self, text: str, rewritten: set[str]) -> None:
        self.text = text
        self.rewritten = rewritten  # names of functions of which calls have been rewritten
        self.tree = ast.parse(text)
        self.notes: list[str] = []
        self._starts = [0]
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[_Edit] = []
        self._scope_of: dict[ast.AST, _Scope] = {}
        self._parents: dict[ast.AST, ast.AST] = {}
        self._optimizers: set[str] = set()
        self._needed: dict[str, None] = {}

    def edits(self) -> list[_Edit]:
        """Return the edits of one round."""
        if _CORE not in self.text and not any(each in self.text for each in _WORDS):
            return []
        self._enter(self.tree, _Scope(self.tree, None))
        nodes = list(self._scope_of)
        self._optimizers = set(self._find_optimizers(nodes))
        for node in nodes:
            match node:
                case ast.Import():
                    self._rename_modules(node)
                case ast.ImportFrom():
                    self._rename_imported(node)
                case ast.Attribute():
                    self._rename_attribute(node)
                case ast.Call():
                    self._rename_keywords(node)
                case ast.Constant(value=str(value)) if value in _WORDS:
                    new = self._source(node).replace(value, _WORDS[value])
                    self._replace(*self._span(node), new)
        if not self._edits:
            self._rewrite_calls([node for node in nodes if isinstance(node, ast.Call)])
        if not self._edits:
            self._drop_unused(nodes)
        if not self._edits:
            self._note_rest(nodes)
        self._add_imports()
        return self._edits

    # scopes

    def _enter(self, node: ast.AST, scope: _Scope) -> None:
        """Record the scope of each node, and the names that each scope binds."""
        pending: list[tuple[ast.AST, _Scope]] = [(node, scope)]
        while pending:
            node, scope = pending.pop()
            self._scope_of[node] = scope
            self._bind(node, scope)
            inner = scope
            if isinstance(node, _SCOPES) and not isinstance(node, ast.Module):
                inner = _Scope(node, scope)
            for child in reversed(list(ast.iter_child_nodes(node))):
                self._parents[child] = node
                if isinstance(node, ast.arguments | ast.arg) and isinstance(child, ast.expr):
                    pending.append((child, scope.outer or scope))  # a default, an annotation
                elif inner is not scope and self._is_outside(node, child):
                    pending.append((child, scope))
                else:
                    pending.append((child, inner))

    @staticmethod
    def _is_outside(node: ast.AST, child: ast.AST) -> bool:
        """True of the parts of a definition that are evaluated where it stands."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return child in node.decorator_list or child is node.returns
        if isinstance(node, ast.ClassDef):
            return child in node.decorator_list or child in node.bases or child in node.keywords
        return False

    def _bind(self, node: ast.AST, scope: _Scope) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    bound = alias.asname or top
                    title = _title(alias.name if alias.asname else top)
                    scope.bind(bound, title)
            case ast.ImportFrom():
                for alias in node.names:
                    scope.bind(alias.asname or alias.name, _imported(node, alias))
            case ast.Name(ctx=ast.Store() | ast.Del()):
                scope.bind(node.id, None)
            case ast.arg():
                scope.bind(node.arg, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                scope.bind(node.name, None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                scope.bind(name, None)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.bind(name, None)
            case ast.Global() | ast.Nonlocal():
                for name in node.names:  # an assignment here is one of an outer scope
                    outer = scope.outer
                    while outer is not None:
                        if name in outer.titles:
                            outer.titles[name] = None
                        outer = outer.outer

    def _title_of(self, node: ast.AST) -> str | None:
        """Return the public name of an expression, such as `oc.nn.softmax`, or None."""
        match node:
            case ast.Name():
                return self._scope_of[node].find(node.id)
            case ast.Attribute():
                owner = self._title_of(node.value)
                return None if owner is None else f"{owner}.{node.attr}"
        return None

    # positions

    def _offset(self, line: int, column: int) -> int:
        """Return the position of a line and a column in bytes of UTF-8."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def _span(self, node: ast.expr | ast.stmt | ast.alias | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _replace(self, start: int, end: int, text: str) -> None:
        if self.text[start:end] != text:
            self._edits.append(_Edit(start, end, text))

    def _note(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.notes.append(f"line {node.lineno}: {text}")

    # imports

    def _rename_modules(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.startswith(f"{_CORE}."):
                new = new_name(alias.name.removeprefix(f"{_CORE}."))
                if new is None:
                    continue
                start, _ = self._span(alias)
                owner, _, name = f"{_CORE}.{new}".rpartition(".")
                if alias.asname and new.startswith("tensor.") and len(node.names) == 1:
                    # `import ocannl_core.tensor.custom as m` reads the function `oc.tensor`
                    text = f"from {owner} import {name} as {alias.asname}"
                    self._replace(*self._span(node), text)
                else:
                    self._replace(start, start + len(alias.name), f"{owner}.{name}")

    def _rename_imported(self, node: ast.ImportFrom) -> None:
        module = _module_title(node)
        if module is None:
            return
        moved = new_name(module.removeprefix("oc.")) if module != "oc" else None
        if moved is not None:
            start, _ = self._span(node)
            found = re.compile(r"from\s+([\w.]+)").match(self.text, start)
            if found is not None:
                self._replace(*found.span(1), f"{_CORE}.{moved}")
            return
        leaving: list[tuple[ast.alias, str]] = []
        for alias in node.names:
            title = f"{module}.{alias.name}"
            new = _new_title(title)
            if new is None:
                continue
            if new.rpartition(".")[0] == module:
                start, end = self._span(alias)
                name = new.rpartition(".")[2]
                self._replace(start, end, f"{name} as {alias.asname or alias.name}")
            else:
                leaving.append((alias, new))
        if leaving:
            self._move_imports(node, leaving)

    def _move_imports(self, node: ast.ImportFrom, leaving: Sequence[tuple[ast.alias, str]]) -> None:
        """Import names from other modules, by statements after this one; of some of its names,
        the last one in this round.
        """
        if len(leaving) < len(node.names):
            leaving = leaving[-1:]
        added = []
        for alias, new in leaving:
            module, _, name = new.rpartition(".")
            bound = alias.asname or alias.name
            renamed = "" if bound == name else f" as {bound}"
            added.append(f"from {_place(module)} import {name}{renamed}")
        start, end = self._span(node)
        gone = {alias for alias, _ in leaving}
        line_start = self.text.rfind("\n", 0, start) + 1
        indent = self.text[line_start:start]
        separator = f"\n{indent}" if not indent.strip() else "; "
        if len(gone) == len(node.names):
            self._replace(start, end, separator.join(added))
            return
        for alias in gone:
            self._drop(node, alias)
        self._edits.append(_Edit(end, end, separator + separator.join(added)))

    def _drop(self, node: ast.ImportFrom, alias: ast.alias) -> None:
        """Remove a name with its comma from an import of several."""
        start, end = self._span(alias)
        position = node.names.index(alias)
        after = re.compile(r"[ \t]*,[ \t]*(?:(?:\r\n|\n|\r)[ \t]*)?").match(self.text, end)
        if after is not None and position < len(node.names) - 1:
            self._edits.append(_Edit(start, after.end(), ""))
            return
        before = re.compile(r",[^,]*\Z").search(self.text[:start])
        if before is not None and "#" not in before[0]:
            self._edits.append(_Edit(before.start(), end, ""))
        elif after is not None:
            self._edits.append(_Edit(start, after.end(), ""))

    def _drop_unused(self, nodes: Sequence[ast.AST]) -> None:
        """Remove imports of functions all of whose calls have been rewritten."""
        used = {each.id for each in nodes if isinstance(each, ast.Name)}
        for node in nodes:
            if not isinstance(node, ast.ImportFrom):
                continue
            unused = [
                alias
                for alias in node.names
                if _imported(node, alias) in self.rewritten
                and (alias.asname or alias.name) not in used
            ]
            if len(unused) < len(node.names):
                for alias in unused[:1]:  # one in each round
                    self._drop(node, alias)
                continue
            start, end = self._span(node)
            line_start = self.text.rfind("\n", 0, start) + 1
            line_end = re.compile(r"[ \t]*(?:\r\n|\n|\r|\Z)").match(self.text, end)
            body = getattr(self._parents.get(node), "body", ())
            if line_end is not None and not self.text[line_start:start].strip() and len(body) > 1:
                self._edits.append(_Edit(line_start, line_end.end(), ""))
            else:
                self._replace(start, end, "pass")

    def _add_imports(self) -> None:
        """Import the names of modules that rewritten calls need, after the imports of the core."""
        if not self._needed:
            return
        imports = [
            node
            for node in self.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            and any(title is not None for title in _titles_of(node))
        ]
        if imports:
            _, end = self._span(imports[0])
            added = "".join(f"\n{line}" for line in self._needed)
        else:
            body = self.tree.body
            doc = ast.get_docstring(self.tree, clean=False) is not None
            skipped = [
                each
                for each in body
                if isinstance(each, ast.ImportFrom) and each.module == "__future__"
            ]
            after = skipped[-1] if skipped else body[0] if doc else None
            end = 0 if after is None else self._span(after)[1]
            lines = "\n".join(self._needed)
            added = f"{lines}\n" if after is None else f"\n{lines}"
        self._edits.append(_Edit(end, end, added))

    # names

    def _rename_attribute(self, node: ast.Attribute) -> None:
        parent = self._parents.get(node)
        title = self._title_of(node)
        _, end = self._span(node)
        start = end - len(node.attr)
        if title is None:
            if node.attr in _METHODS and self._is_optimizer(node.value):
                self._replace(start, end, _METHODS[node.attr])
            return
        new = _new_title(title)
        if new is None or not isinstance(node.ctx, ast.Load):
            return
        if isinstance(parent, ast.Attribute) and _new_title(self._title_of(parent)) is not None:
            return  # the longer name has moved, too
        self._replace(*self._span(node), self._spelled(node, new))

    def _spelled(self, node: ast.Attribute, new: str) -> str:
        """Return the text of a public name in the scope of an expression."""
        owner: ast.expr = node.value
        while True:
            title = self._title_of(owner)
            if title is not None and new.startswith(f"{title}."):
                return self._source(owner) + new.removeprefix(title)
            if not isinstance(owner, ast.Attribute):
                break
            owner = owner.value
        return self._root(node) + new.removeprefix("oc")

    def _root(self, node: ast.AST) -> str:
        """Return a name of the core in the scope of a node, imported if there is none."""
        scope = self._scope_of[node]
        name = scope.name_of("oc")
        if name is not None:
            return name
        taken = {each.id for each in ast.walk(self.tree) if isinstance(each, ast.Name)} | {
            each.arg for each in ast.walk(self.tree) if isinstance(each, ast.arg)
        }
        if "oc" in taken:
            self._needed[f"import {_CORE}"] = None
            return _CORE
        self._needed[f"import {_CORE} as oc"] = None
        return "oc"

    def _find_optimizers(self, nodes: Sequence[ast.AST]) -> Iterator[str]:
        """Yield the texts of variables that hold optimizers."""
        for node in nodes:
            match node:
                case ast.Assign(targets=targets, value=value) if self._makes_optimizer(value):
                    yield from (ast.unparse(target) for target in targets)
                case ast.AnnAssign(target=target, value=value, annotation=note):
                    if (value is not None and self._makes_optimizer(value)) or self._is_class(note):
                        yield ast.unparse(target)
                case ast.NamedExpr(target=target, value=value) if self._makes_optimizer(value):
                    yield ast.unparse(target)
                case ast.arg(arg=name, annotation=ast.expr() as note) if self._is_class(note):
                    yield name

    def _is_class(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return False
        title = self._title_of(node) or ""
        owner, _, name = title.rpartition(".")
        return owner.startswith("oc.train") and name[:1].isupper()

    def _makes_optimizer(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self._is_class(node.func)

    def _is_optimizer(self, node: ast.expr) -> bool:
        return self._makes_optimizer(node) or ast.unparse(node) in self._optimizers

    # calls

    def _renamed_keywords(self, node: ast.Call) -> Mapping[str, str]:
        title = self._title_of(node.func)
        if title is not None:
            return KEYWORDS.get(title, {})
        if isinstance(node.func, ast.Attribute) and not self._is_foreign(node.func.value):
            return _METHOD_KEYWORDS.get(node.func.attr, {})
        return {}

    def _is_foreign(self, node: ast.expr) -> bool:
        """True of a module of another library."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        name = node.id
        return any(
            (alias.asname or alias.name.partition(".")[0]) == name
            for each in ast.walk(self.tree)
            if isinstance(each, ast.Import)
            for alias in each.names
        )

    def _rename_keywords(self, node: ast.Call) -> None:
        renamed = self._renamed_keywords(node)
        given = {each.arg for each in node.keywords}
        for each in node.keywords:
            if each.arg is not None and renamed.get(each.arg, each.arg) not in given:
                start, _ = self._span(each)
                self._replace(start, start + len(each.arg), renamed[each.arg])

    def _rewrite_calls(self, calls: Sequence[ast.Call]) -> None:
        """Rewrite calls of functions with other arguments, but those around another such call."""
        titles = [(node, self._title_of(node.func)) for node in calls]
        found = [(node, CALLS[title]) for node, title in titles if title in CALLS]
        around = {
            outer
            for node, replaced in found
            if self._arguments(node, replaced) is not None
            for outer in self._outer(node)
        }
        for node, replaced in found:
            arguments = self._arguments(node, replaced)
            if arguments is None or node in around:
                continue
            call = replaced.call
            used = set(re.findall(r"{(\w+)}", call))
            extra = [f"{name}={{{name}}}" for name in arguments if name not in used]
            if extra:
                call = f"{call[:-1]}, {', '.join(extra)})"
            if "oc." in call:
                call = call.replace("oc.", f"{self._root(node)}.")
            self._replace(*self._span(node), self._filled_in(call, arguments))
            self.rewritten.add(str(self._title_of(node.func)))

    def _filled_in(self, call: str, arguments: Mapping[str, ast.expr]) -> str:
        """Return a call with arguments in place of parameters, in parentheses where needed."""

        def argument(place: re.Match[str]) -> str:
            value = arguments[place[1]]
            source = self._source(value)
            before, after = call[: place.start()], call[place.end() :]
            is_whole = before.endswith(("(", ", ", "=")) and after.startswith((")", ","))
            if is_whole and not isinstance(value, ast.GeneratorExp | ast.NamedExpr):
                return source
            is_atom = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            return source if is_atom and "\n" not in source else f"({source})"

        return re.sub(r"{(\w+)}", argument, call)

    def _outer(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def _arguments(self, node: ast.Call, replaced: Rewritten) -> dict[str, ast.expr] | None:
        """Return the arguments of a call by parameter; None if they are unknown, or do not fit."""
        positional = _before_star(replaced.parameters)
        allowed = [name for name in replaced.parameters if name != "*"]
        if any(isinstance(each, ast.Starred) for each in node.args):
            return None
        if len(node.args) > len(positional):
            return None
        arguments = dict(zip(positional, node.args, strict=False))
        for each in node.keywords:
            if each.arg is None or each.arg in arguments or each.arg not in allowed:
                return None
            arguments[each.arg] = each.value
        return arguments if all(name in arguments for name in positional) else None

    def _note_rest(self, nodes: Sequence[ast.AST]) -> None:
        """Name the places that no edit changes."""
        for node in nodes:
            title = self._title_of(node) if isinstance(node, ast.Name | ast.Attribute) else None
            if title in CALLS and title is not None:
                parent = self._parents.get(node)
                has_axes = isinstance(parent, ast.Call) and len(parent.args) > 1
                if title == "oc.transpose" and has_axes:
                    continue
                new = CALLS[title].call.translate(str.maketrans("", "", "{}"))
                self._note(node, f"{title} is now {new}")  # type: ignore[arg-type]
            elif isinstance(node, ast.Attribute) and node.attr in _METHODS and title is None:
                self._note(node, f".{node.attr} of an optimizer is now .{_METHODS[node.attr]}")


def _before_star(parameters: Sequence[str]) -> Sequence[str]:
    return parameters[: parameters.index("*")] if "*" in parameters else parameters


def _title(module: str) -> str | None:
    """Return the public name of a module of the core, or None."""
    if module == _CORE or module.startswith(f"{_CORE}."):
        return module.replace(_CORE, "oc", 1)
    return None


def _place(title: str) -> str:
    return title.replace("oc", _CORE, 1)


def _module_title(node: ast.ImportFrom) -> str | None:
    return None if node.level or node.module is None else _title(node.module)


def _imported(node: ast.ImportFrom, alias: ast.alias) -> str | None:
    module = _module_title(node)
    return None if module is None or alias.name == "*" else f"{module}.{alias.name}"


def _titles_of(node: ast.Import | ast.ImportFrom) -> Iterator[str | None]:
    if isinstance(node, ast.ImportFrom):
        yield _module_title(node)
    else:
        yield from (_title(alias.name) for alias in node.names)


def _new_title(title: str | None) -> str | None:
    """Return the new spelling of a public name or of a module of the core, or None."""
    if title is None or title == "oc":
        return None
    if (new := NAMES.get(title)) is not None:
        return new
    path = title.removeprefix("oc.")
    top = path.partition(".")[0]
    if top in MODULES and top in ocannl_core.__all__:
        return None  # an attribute, such as `oc.settings`
    moved = new_name(path)
    return None if moved is None else f"oc.{moved}"
