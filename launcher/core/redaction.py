"""What is a secret, and how it is redacted from every text that leaves a process: files, logs, screens.

Three things are: the values of environment variables that are named like secrets, in any spelling (`spellings`); texts
that look like a token of a known service; and what stands beside a secret's name, in a URL or in a header. Innocent
text stays as it is: hashes, ids, paths, numbers. `redact` runs for every line of every log, so it looks for fixed
words first, which costs microseconds, and only then for patterns, each of which is bounded.

It loads little, and nothing of ours, as the processes that run foreign code begin with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

MARK = "[secret]"
MIN_LENGTH = 8  # characters of a value that is redacted wherever it stands; a shorter one would redact words, too
_SHORTEST = 6  # ... of one that is registered

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of `X-Api-Key`, `api_key`, `apiKey` and `API_KEY`
_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "cookie", "sshpass")
"""What a word of a secret's name ends with: PGPASSWORD."""
_SECRET = {
    "secrets", "passwords", "creds", "credential", "credentials", "cookies", "authorization", "jwt", "sas", "dsn",
    "webhook", "pat", "pwd", "auth",
}  # fmt: skip
"""Whole words of a secret's name."""
_OF_VARIABLE = {"tokens", "pass"}
"""... of an environment variable, where it is the last word: `PASS_RATE` is none."""
_LOGINS = {"db", "database", "user", "login", "smtp", "mail", "ssh", "ftp", "proxy", "root", "admin", "redis", "mysql",
           "postgres"}  # fmt: skip
"""A setting that ends with `pass` is a secret behind one of these; `first_pass` is none."""
_KEYS = {"key", "keys", "tokens"}
"""These are secrets where it is said of whom or what they are; any other key may be that of a dict."""
_OWNERS = {
    "api", "access", "private", "secret", "encryption", "signing", "master", "deploy", "ssh", "openai",
    "anthropic", "azure", "aws", "gcp", "google", "gemini", "hf", "huggingface", "wandb", "swanlab", "comet",
    "neptune", "kaggle", "modelscope", "dashscope", "deepseek", "mistral", "cohere", "groq", "xai", "together",
    "fireworks", "replicate", "openrouter", "perplexity", "moonshot", "zhipu", "nvidia", "ngc", "langsmith",
    "langfuse", "tavily", "serper", "pinecone", "stripe", "slack", "datadog", "sentry",
}  # fmt: skip
_BETWEEN = {"storage", "account", "project", "service", "live", "test", "prod", "dev"}
"""What may stand between an owner and its key: `azure_storage_key`."""
_POINTS = {"env", "path", "file", "dir", "sock", "name", "type", "mode", "domain", "endpoint", "count", "limit",
           "budget", "length"}  # fmt: skip
"""A variable that ends so names where the secret is, or something about it."""
_SETTING_POINTS = _POINTS | {"id", "url"}
"""... a setting; VAULT_SECRET_ID is a half of a secret, and the URL of a variable may hold one."""
_ARE_SECRET = (["key", "id"], ["webhook", "url"])
"""Ends of a name that are secrets themselves."""
_OF_TEXT = {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "special", "stop",
            "max", "min", "num", "total", "per"}  # fmt: skip
"""Tokens beside these are those that a model reads."""
_COUNTED = {"new", "input", "output", "prompt", "completion", "batched"}
"""... where there are several: NEW_TOKEN may be a secret."""


def is_secret_name(name: str, *, key: bool = False) -> bool:
    """Whether what has this name, a setting, a variable, a field or a header, is likely a secret and not only its
    place: HF_TOKEN, WANDB_API_KEY, `X-Api-Key`, but not `token_env`. `key` where the name stands before a value, in a
    query or a header: every key, and what would else only point to a secret, is one there."""
    words = [word.lower() for word in _WORD.findall(name)]
    if key:
        anywhere, last = _SECRET | {"key"}, {"pass"}
    elif name.isupper():
        words = _telling_words(words, _POINTS)
        anywhere, last = _SECRET, _OF_VARIABLE
    else:
        words = _telling_words(words, _SETTING_POINTS)
        anywhere, last = _SECRET, {"pass"} if words == ["pass"] or _LOGINS.intersection(words[-2:-1]) else set()
    if anywhere.intersection(words) or last.intersection(words[-1:]):
        return True
    return any(word.endswith(_ENDINGS) for word in words) or _is_owned(words, beside=not name.isupper())


def _is_owned(words: list[str], *, beside: bool) -> bool:
    """Whether a name says of a key whose it is; `beside`: by the word before or after."""
    pairs = {frozenset(pair) for pair in pairwise(word for word in words if word not in _BETWEEN)}
    if not beside and "public" not in words:
        pairs.add(frozenset(words))
    return {"connection", "string"} in pairs or any(pair & _OWNERS and pair & _KEYS for pair in pairs)


def _telling_words(words: list[str], points: set[str]) -> list[str]:
    """Those of a name that may say of its value that it is a secret: none where the name points to one, and no tokens
    that a model reads."""
    if words == ["pwd"] or (words and words[-1] in points and words[-2:] not in _ARE_SECRET):
        return []
    counted = {"token", "tokens"} if not _OWNERS.intersection(words) else {"tokens"}  # VIDEO_API_TOKEN is a secret
    if _OF_TEXT.intersection(words):
        return [word for word in words if word not in counted]
    return [word for word in words if word != "tokens"] if _COUNTED.intersection(words) else words


# ---- the environment

_LOGIN = re.compile(r"://([^\s/?#]*)@")


def secrets_of_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each secret: variables that are named so, and logins in the URLs of the others (proxies)."""
    for name, value in environment.items():
        if is_secret_name(name):
            yield name, value.strip()
        yield from ((name, word) for word in passwords_in_urls(value))


def passwords_in_urls(text: str) -> Iterator[str]:
    """The password of each URL in a text, or the name where that stands alone."""
    for login in _LOGIN.finditer(text):
        user, colon, word = login[1].partition(":")
        yield word if colon else user


def _guessable(value: str) -> bool:
    """Whether innocent text may well hold it: a short word or number, a path."""
    word = value.isalpha() and value in (value.lower(), value.title(), value.upper())
    if len(value) < MIN_LENGTH or value in MARK or (len(value) < 12 and (word or _number(value))):
        return True
    return value.startswith(("/", "~/", "./", "../")) and value.count("/") > 1 and _is_place(value)


def _number(value: str) -> bool:
    """Whether it is a measure, and so no secret: redacting it would leave invalid JSON."""
    try:
        float(value.rstrip("."))
    except ValueError:
        return False
    return True


def _is_place(value: str) -> bool:
    try:
        return os.path.exists(os.path.dirname(os.path.expanduser(value)))
    except ValueError:  # a NUL
        return False


def spellings(value: str) -> list[str]:
    """How a value may be written: as it is, in a URL, in JSON, as Python shows it, and within base64."""
    import base64  # noqa: PLC0415  # late: most processes have no secret to look for
    import json  # noqa: PLC0415  # late, as above
    from urllib.parse import quote, quote_plus, unquote  # noqa: PLC0415  # late, as above

    found = [value, unquote(value)]
    for plain in tuple(found):
        found += [quote(plain, safe=""), quote(plain), quote_plus(plain), repr(plain)[1:-1]]
        found += [json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]]
        data = plain.encode("utf-8", "surrogateescape")
        for before in range(3):  # three bytes make four letters, so it depends on where the value begins
            bits = 8 * (before + len(data))
            text = base64.b64encode(bytes(before) + data).decode()[-(-8 * before // 6) : bits // 6]
            found += [text, text.replace("+", "-").replace("/", "_")]
    lines = [line for line in value.splitlines() if len(line) >= 2 * MIN_LENGTH]  # logs hold a key of several lines so
    return [form for form in dict.fromkeys([*found, *lines]) if len(form) >= _SHORTEST]


_registered: set[str] = set()


def register_secret(value: str) -> None:
    """Redact this value, too, from here on, in this process."""
    if len(value) >= _SHORTEST and value not in MARK:
        _registered.add(value)


def known_secrets() -> tuple[str, ...]:
    """Every text that is a secret's, the longest first. The environment is read once."""
    return secrets_of(len(_registered))


@lru_cache(1)  # by their number: a thread that counts while another registers keeps nothing that is out of date
def secrets_of(registered: int) -> tuple[str, ...]:
    """The same while so many are registered."""
    values = {value for _, value in secrets_of_environment(os.environ) if not _guessable(value)} | _registered
    return tuple(sorted({form for value in values for form in spellings(value)}, key=len, reverse=True))


# ---- what tokens look like

_EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt]))"  # a line's end is `\n` in JSON, and no letter before a token
_LINE_END = r"(?:\r?\n|\\{1,4}[nr])"
_PEM = (  # a whole line is the key's, or a long run is; what follows is not, also where the end was cut off
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
    rf"(?:{_LINE_END}[ \t]{{0,16}}(?:Proc-Type|DEK-Info): [A-Za-z0-9,-]{{1,80}}(?={_LINE_END})){{0,2}}"
    rf"(?:(?:{_LINE_END}){{1,3}}[ \t]{{0,16}}[A-Za-z0-9+/=]{{1,4096}}+(?=[\s\\\"'-]|\Z)"
    r"|[ \t]{0,3}[A-Za-z0-9+/=]{32,4096}+){0,200}"
    rf"(?:(?:{_LINE_END}|[ \t]){{0,3}}[A-Za-z0-9+/=]{{0,64}}(?:{_LINE_END}|[ \t]){{0,3}}-----END)?"
)
_SHAPES = {
    "hf_": r"hf_[A-Za-z0-9]{20,}",
    "api_org_": r"api_org_[A-Za-z0-9]{20,}",
    "sk-": _EDGE + r"sk-(?:(?:proj|svcacct|admin|or-v1|ant-[a-z]{2,6}[0-9]{2})-[A-Za-z0-9_-]{20,}"
                   r"|[A-Za-z0-9_]{20,}[A-Za-z0-9_-]*)",
    **{f"gh{kind}_": _EDGE + rf"gh{kind}_[A-Za-z0-9]{{20,}}" for kind in "pousr"},
    "github_pat_": r"github_pat_[A-Za-z0-9_]{20,}",
    "glpat-": r"glpat-[A-Za-z0-9_-]{16,}",
    "xox": _EDGE + r"xox[abeprs]-[A-Za-z0-9-]{10,}",
    "AKIA": _EDGE + r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "ASIA": _EDGE + r"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "AIza": _EDGE + r"AIza[A-Za-z0-9_-]{35}",
    "eyJ": r"eyJ[A-Za-z0-9_-]{8,}+(\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*)?",  # without the group it is none
    "ms-": _EDGE + r"ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "nvapi-": r"nvapi-[A-Za-z0-9_-]{20,}",
    "npm_": _EDGE + r"npm_[A-Za-z0-9]{30,}",
    "pypi-": _EDGE + r"pypi-[A-Za-z0-9_-]{40,}",
    "dckr_pat_": r"dckr_pat_[A-Za-z0-9_-]{16,}",
    "PRIVATE KEY-----": _PEM,
}  # fmt: skip
_PATTERNS = [(word, re.compile(shape)) for word, shape in _SHAPES.items()]
_USER = re.compile(r"(:/{1,2})([^\s/?#\"'<>\\:@]{0,256}:[^\s/?#\"'<>\\]{1,256}|[^\s/?#\"'<>\\:@]{16,256})@")
_QUERY = re.compile(r"([?&;]|%26|%3F)([A-Za-z0-9_.-]{1,64})(=|%3D)([^&\s\"'<>\\#;]{6,})")
_SIGNED = {"sig", "signature", "credential", "policy", "x-amz-signature", "x-amz-credential", "awsaccesskeyid"}

# ---- what stands beside a name

_BESIDE = re.compile(
    r"(?:api[_-]?key|(?:secret|access|private|signing)[_-]?(?:access[_-]?)?key(?:[_-]?id)?|token|secret|passw(?:or)?d|passphrase"
    r"|credentials?|cookie)(?:\\{0,3}[\"'])?\s{0,3}[:=]\s{0,3}(?:\\{0,3}[\"'])?"
    r"(?!\.{0,2}/|~/|https?://)([A-Za-z0-9+/_~!@#$%^*.-][^\s\"'\\,;&<>(){}\[\]]{7,})",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"authorization(?:\\{0,3}[\"'])?\s{0,3}[:=]\s{0,3}(?:\\{0,3}[\"'])?"
    r"(?:(?:bearer|basic|token|digest|negotiate)\s{1,3})?((?!\[secret\]|(?:bearer|basic|token|digest|negotiate)\b)[^\s\"'\\,;(){}\[\]]{4,})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?:bearer|basic)\s{1,3}([A-Za-z0-9._~+/=-]{12,})", re.IGNORECASE)
_HEX = re.compile(r"(?:(?<![0-9a-z])|(?<=wandb))[0-9a-f]{40}(?![0-9a-f])")  # a key of W&B, or a hash
_BY_WORD = [
    *((word, _BESIDE) for word in ("token", "secret", "passw", "passphrase", "credential", "cookie")),
    *((word, _BESIDE) for word in ("api_key", "api-key", "apikey", "access_key", "accesskey", "access-key")),
    *((word, _BESIDE) for word in ("private_key", "private-key", "privatekey", "signing_key", "secretkey")),
    ("authorization", _HEADER), ("bearer", _BEARER), ("basic", _BEARER),
]  # fmt: skip


def redact(text: str) -> str:
    """`text` with each secret replaced by MARK. Doing it twice changes nothing more, and JSON stays JSON."""
    for value in known_secrets():
        if value in text:
            text = text.replace(value, MARK)
    for word, pattern in _PATTERNS:
        if word in text:
            text = pattern.sub(_without_token, text)
    if ":/" in text and "@" in text:
        text = _USER.sub(_without_login, text)
    if ("=" in text and ("?" in text or "&" in text)) or "%3D" in text:
        text = _QUERY.sub(_without_value, text)
    return _beside(text)


def _without_token(match: re.Match[str]) -> str:
    return match[0] if match.re.groups and match[1] is None else MARK


def _without_login(match: re.Match[str]) -> str:
    innocent = ":" not in match[2] and match[2].isalpha()
    return match[0] if innocent else f"{match[1]}{MARK}@"


def _without_value(match: re.Match[str]) -> str:
    name, value = match[2], match[4]
    likely = is_secret_name(name, key=True) or name.lower() in _SIGNED
    return f"{match[1]}{name}{match[3]}{MARK}" if likely and not _number(value) else match[0]


def _beside(text: str) -> str:
    """Without what stands beside a name that says `secret`."""
    small = text.lower()
    if len(small) != len(text):  # a letter whose small form is two
        small = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    spans: list[tuple[int, int]] = []
    for word, pattern in _BY_WORD:
        at = small.find(word)
        while at >= 0:
            match = pattern.match(text, at)
            if match and _random(match[1], letters=pattern is not _BESIDE):
                spans.append(match.span(1))
            # a part of what is none is none either, so that nothing is read twice
            at = small.find(word, match.end(1) if match else at + len(word))
    if "wandb" in small:
        near = ((hex_.span(), small[max(0, hex_.start() - 66) : hex_.start()]) for hex_ in _HEX.finditer(small))
        spans += [span for span, before in near if "wandb" in before.rpartition("\n")[2]]
    pieces, done = list[str](), 0
    for begin, end in sorted(spans):
        if begin >= done:
            pieces += [text[done:begin], MARK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _random(value: str, *, letters: bool) -> bool:
    """Whether a value beside such a name is no word, number or call of a program; one of letters may be."""
    if _number(value):
        return False
    return letters or (any(map(str.isalpha, value)) and any(map(str.isdigit, value)))


def printable(text: str, layout: str = "\n") -> str:
    """`text` for a screen or a page: secrets redacted; control and direction characters other than those of `layout`,
    and lone surrogates, as escapes."""
    safe = redact(text).encode("utf-8", "backslashreplace").decode()
    if safe.isprintable():  # nearly all
        return safe
    return "".join(c if c.isprintable() or c in layout else f"\\x{ord(c):02x}" for c in safe)


def cut_middle(text: str, most: int, gap: str = " [... {} characters ...] ") -> str:
    """The beginning and the end of `text`, of `most` characters together, without secrets."""
    if len(text) <= most:
        return text
    text, half = redact(text), max(most // 2, 1)
    return f"{text[:half]}{gap.format(len(text) - 2 * half)}{text[-half:]}" if len(text) > most else text
