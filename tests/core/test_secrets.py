"""Secrets are redacted however they are written, and innocent text stays as it is."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core import redaction
from launcher.core.events import Sample, from_line, to_line
from launcher.core.files import AppendOnlyFile, write_atomic
from launcher.core.problems import error_message, short_repr
from launcher.core.redaction import MARK, redact
from launcher.core.user_code import CallFailure, try_call

VALUE = 'p4ss/w+rd "of=mine\\ é'


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test reads an environment of its own, and leaves nothing learned behind."""
    redaction.secrets_of.cache_clear()
    yield
    redaction._registered.clear()
    redaction.secrets_of.cache_clear()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MY_DB_PASSWORD", VALUE)
    return VALUE


@pytest.mark.parametrize(
    "written",
    [
        VALUE,
        repr(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        json.dumps(VALUE),
        json.dumps({"a": [VALUE]}, ensure_ascii=False),
        *(base64.b64encode(b"x" * before + VALUE.encode() + b"y").decode() for before in range(3)),
        base64.urlsafe_b64encode(b"me:" + VALUE.encode()).decode(),
    ],
)
def test_a_value_of_the_environment_is_found_in_every_spelling(written: str, planted: str) -> None:
    told = redact(f"before {written} after")
    assert MARK in told and told.startswith("before") and told.endswith("after")
    assert VALUE[:6] not in told and "w+rd" not in told and "dyZvcmQ" not in told


SECRET_NAMES = """
HF_TOKEN HF_TOKEN_READ TOKEN_HF WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID PGPASSWORD KAGGLE_KEY
CLIENT_SECRET SENTRY_DSN SMTP_PASS MY_SECRET_1 MYSQL_PWD API_TOKENS MY_CREDS AZURE_SAS KEY_OPENAI ENCRYPTION_KEY_BASE64
accessKey SLACK_WEBHOOK_URL AZURE_STORAGE_CONNECTION_STRING X-Api-Key judge.api_key webhook_url accessKeyId api_keys
VAULT_SECRET_ID MODAL_TOKEN_ID GH_TOKENS HTTP_AUTH auth_header VIDEO_API_TOKEN NEW_TOKEN GITHUB_PAT
AZURE_PROD_KEY openai.key DOCKER_AUTH_CONFIG REGISTRY_AUTH_JSON AUTH_HEADER db_pass pass stripe_live_key
azure_storage_key AUTH_CFG
"""
OTHER_NAMES = """
AWS_REGION HF_TOKEN_PATH TOKENIZERS_PARALLELISM SSH_AUTH_SOCK PATH KEYBOARD MAX_TOKENS OPENAI_MAX_TOKENS COMPASS
FOO_COMPAT PASS_RATE PWD OLDPWD SORT_KEY K8S_SECRET_NAME DB_PASSWORD_FILE LANGFUSE_PUBLIC_KEY EOS_TOKEN token_env _ 1
RAY_AUTH_MODE AUTH0_DOMAIN token_url first_pass openai.response_key MAX_NEW_TOKENS NEW_TOKENS langfuse.public_key
token_id pad_token_id total_num_tokens auth_mode
"""


def test_names_of_secrets() -> None:
    assert [name for name in SECRET_NAMES.split() if not redaction.is_secret_name(name)] == []
    assert [name for name in OTHER_NAMES.split() if redaction.is_secret_name(name)] == []
    before_value = ["sort_key", "secret_id", "token_id", "x-auth-id", "video_api_token", "user_pass", "pwd"]
    assert [name for name in before_value if not redaction.is_secret_name(name, key=True)] == []
    assert [name for name in ("sort", "max_tokens", "pass_rate", "") if redaction.is_secret_name(name, key=True)] == []


@pytest.mark.parametrize("value", ["false", "1234567", "training", "/usr/bin/env", "secret"])
def test_a_value_that_innocent_text_may_hold_is_left(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word, a small number or a path that is set as a token would be redacted from every path and metric."""
    monkeypatch.setenv("SOME_TOKEN", value)
    assert redact(f"read {value}.jsonl") == f"read {value}.jsonl"


LEAKS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz123456", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", "sk-" + "0f" * 16,
    "sk-ant-api03-" + "aB1-" * 12, "ghp_" + "a1B2" * 9, "github_pat_" + "a1B2" * 9, "glpat-" + "a1B2" * 5,
    "xoxb-123456789012-abcdefABCDEF", "AKIAIOSFODNN7EXAMPLE", "AIza" + "a1B2-" * 7,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_123", "ms-01234567-89ab-cdef-0123-456789abcdef",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END",
]  # fmt: skip


@pytest.mark.parametrize("token", LEAKS)
def test_tokens_of_known_services(token: str) -> None:
    for around in ("{}", "x='{}'", '{{"t":"line\\n{}"}}', "https://h/{}?a=1"):
        told = redact(around.format(token))
        assert token[10:] not in told and MARK in told


BESIDE = [
    ("Authorization: Bearer abcdefghijklmnop", "abcdefgh"), ("'authorization': 'Basic dXNlcjpwdw=='", "dXNl"),
    ('{"Authorization": "token abcd-efgh"}', "abcd-efgh"), (r'{\"api_key\": \"a1b2c3d4e5\"}', "a1b2c3"),
    ("api-key=a1b2c3d4e5", "a1b2c3"), ("X-Api-Key: a1b2c3d4e5", "a1b2c3"), ("password = 'hunter22x'", "hunter22x"),
    ("https://me:pw@host/x", "me:pw"), ("http://me:p@ss@host", "p@ss"), ("https:/me:pw12@host/x", "pw12"),
    ("GET /x?api_key=abcdefgh&n=1", "abcdefgh"), ("/x?a=1&X-Amz-Signature=0f0f0f0f", "0f0f0f0f"),
    ("%3Ftoken%3Dabcdefgh", "abcdefgh"), (f"wandb: key {'0a' * 20}", "0a0a"), ("token='a1b2c3d4e5f6'", "a1b2c3"),
    ("https://a:b@host", "a:b"), ("/x?token=abcdef", "abcdef"),
    ("aB3 token=a1b2c3d4e5 b token=f6a7b8c9d0 c", "f6a7b8"), ("authorization: abcdefgh", "abcdefgh"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), BESIDE)
def test_what_stands_beside_a_name(text: str, secret: str) -> None:
    assert secret not in redact(text) and MARK in redact(text)


INNOCENT = [
    "0123456789abcdef" * 4, "0a" * 20, "sha256:" + "0f" * 32,  # hashes
    "step:12 - critic/score/mean:0.125 - response_length/mean:1024.0 - perf/total_num_tokens:65536",
    "/data/some/long/path/to/file-00001-of-00002.safetensors", "runs/rlrun/grpo-tiny-12/checkpoints/step_000020",
    "eos_token='<|im_end|>', pad_token=[PAD1234]", "max_tokens=4096, token_env: HF_TOKEN", "tokenizer: Qwen2Tokenizer",
    "https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main/config.json?download=true", "git@github.com:a/b.git",
    "ssh://git@github.com/a/b", "mail me@example.com", "token=12345678, key=value, secret: no", "sk-learn-things",
    "def check(password): return password == stored_password", "task-0123456789abcdefghijklmnop", "a@b://c",
    "/x?api_key=12345678", "https://h/x?name=abcdefgh",
    "550e8400-e29b-41d4-a716-446655440000", "1795240018.4975293", "the secret: is unknown", "password=get_password()",
]  # fmt: skip


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_stays(text: str) -> None:
    assert redact(text) == text


def test_a_name_alone_in_an_address_is_a_secret_unless_it_is_of_letters() -> None:
    """The name of the test is in the environment, so that it must not hold the address."""
    letters = "abcdefghijklmnop"
    assert redact(f"https://{letters}@host/x") == f"https://{letters}@host/x"
    assert redact(f"https://{letters[:15]}1@host/x") == f"https://{MARK}@host/x"
    assert redact(f"https://{letters[:14]}1@host/x") == f"https://{letters[:14]}1@host/x"


@given(st.text(max_size=40), st.sampled_from([*LEAKS, *(text for text, _ in BESIDE)]), st.text(max_size=40))
def test_twice_is_as_once_and_json_stays_json(before: str, secret: str, after: str) -> None:
    line = json.dumps({"a": before + secret + after, "n": 1.5}, ensure_ascii=False)
    told = redact(line)
    assert redact(told) == told
    assert json.loads(told)["n"] == 1.5


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=12, max_size=40),
    st.text(max_size=30),
)
def test_a_learned_value_never_stays(value: str, around: str) -> None:
    redaction.register_secret(value)
    for written in (value, repr(value)[1:-1], json.dumps(value)[1:-1]):
        assert value not in redact(around + written + around)


def test_every_way_out_is_one_of_these(tmp_path, planted: str) -> None:
    """What is cut is redacted before: a half of a secret is not known as one."""
    write_atomic(tmp_path / "whole", f"a {planted}\n")
    log = AppendOnlyFile.open(tmp_path / "log")
    log.append(f"b {planted}")
    log.close()
    far = "." * 276

    def fails() -> None:
        raise RuntimeError(f"{far}{planted}")

    fault = try_call(fails)
    assert isinstance(fault, CallFailure)
    texts = [(tmp_path / "whole").read_text(), (tmp_path / "log").read_text(), fault.reason,
             error_message(ValueError(planted)), short_repr(f"{'.' * 70}{planted}")]  # fmt: skip
    assert not [text for text in texts if planted[:4] in text]


PEM = "-----BEGIN RSA PRIVATE KEY-----"
BODY = "MIIEpAIBAAKCAQEA7b0mZt4yJq3vWc9dLx2sHfKpRnUeTgBoXiYzCaQwSdEl1N5k"


@pytest.mark.parametrize("body", ["", f"\n{BODY}\n{BODY[:9]}", f"\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0F\n\n{BODY}"])
def test_a_key_that_was_cut_off_takes_nothing_else_along(body: str) -> None:
    """Whoever reads the events, or the settings of the run, still finds what came after it."""
    sample = Sample(step=1, data_source="s", prompt=f"a {PEM}{body}", response="hello", ground_truth="4", score=1.0)
    told = from_line(redact(to_line(sample)))
    assert isinstance(told, Sample) and told.prompt == f"a {MARK}"
    assert (told.response, told.ground_truth, told.score) == ("hello", "4", 1.0)
    assert redact(f"prompt: {PEM}{body}\nseed: 7\nmodel:\n  path: x\n").endswith("seed: 7\nmodel:\n  path: x\n")
    assert BODY[:9] not in redact(f"{PEM}{body}\n-----END RSA PRIVATE KEY-----")


@given(st.floats(allow_nan=False) | st.integers())
def test_a_number_is_no_secret_whatever_its_name(number: float) -> None:
    line = json.dumps(dict.fromkeys(("perf/time_per_token", "authorization", "acc/cookie"), number))
    assert redact(line) == line


HEAVY = [  # of each kind of pattern the beginnings that cost most
    "eyJaaaaaaaa.eyJ", "token=/", "token=a1", "secret='", "authorization: bearer ", "basic aaaaaaaaaaaa", "wandb-",
    "sk-proj-", "xoxb-", "://a:b@", ":/a@", "&token=", "%3Ftoken%3D", f"{PEM}\n", f"{PEM}aaaa ", f"{PEM}\n\n\n aaa:",
    "PRIVATE KEY-----BEGIN ", "\\n",
]  # fmt: skip


@pytest.mark.parametrize("part", HEAVY)
def test_a_text_of_any_kind_costs_little(part: str) -> None:
    text = (part * 2**18)[: 2**18 - 64] + f"@ = ? {PEM}"  # each pattern has to look for its end
    plain = ("a plain line of text, " * 2**18)[: len(text)]
    redact("once")
    least, of_plain = (min(_seconds(each) for _ in range(3)) for each in (text, plain))
    assert least < 30 * of_plain  # at most 9 times was measured; a pattern that is not linear takes thousands of times


def _seconds(text: str) -> float:
    began = time.process_time()
    redact(text)
    return time.process_time() - began
