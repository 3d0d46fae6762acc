"""The one definition of density: names and operators for each line of code, the same number on every Python."""

import ast
import io
import keyword
import tokenize

CLOSING = set(")]},:;")  # one bracket of a pair counts; commas and colons do not


def code_lines(source):
    """The numbers of lines that are neither empty, nor comment, nor docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    strings = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    inside = {line for each in strings for line in range(each.lineno, each.end_lineno + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return [n for n, line in lines if n not in inside and line.strip() and not line.strip().startswith("#")]


def tokens(source):
    """The tokens of a source, without those in an f-string, which is one string to Python 3.11 and many to 3.12."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        depth += kind.endswith("STRING_START")
        if depth == 0:
            yield token
        depth -= kind.endswith("STRING_END")


def counted(token):
    """Whether a token is a name that is no keyword, or an operator that neither closes nor separates."""
    is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    return is_name or (token.type == tokenize.OP and token.string not in CLOSING)


def density(*sources):
    """Names and operators for each line of code, on average over all the sources together."""
    count = sum(counted(token) for source in sources for token in tokens(source))
    return count / sum(len(code_lines(source)) for source in sources)
