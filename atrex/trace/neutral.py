"""Decide which texts of a trace may be shared, and write something neutral for the others.

Words are allowed, never forbidden: a value with a word that is not listed here is replaced. Only
the names of operators and kernels are free text, for matching needs them whole; they lose whatever
looks like a path, a file, a host or an address.
"""

from __future__ import annotations

import re

from atrex.trace.steps import ATOM, CAPTURE, DIFFUSION, EXECUTE, LOGGED, SGLANG, parse_step

OTHER = "other"  # stands for a word that is not known

# what may stand in a string: dtypes, devices, flags and modes of operators, names of collectives
WORDS_TEXT = """
    true false none null auto default other inf infinity nan
    c10 at torch bfloat16 half float double long int short signed unsigned char bool byte complex
    complexfloat complexdouble float4 float8 float16 float32 float64 int4 int8 int16 int32 int64
    uint8 uint16 uint32 uint64 bf16 fp4 fp8 fp16 fp32 fp64 e4m3 e4m3fn e4m3fnuz e5m2 e5m2fnuz
    e8m0fnu e2m1fn x2 mxfp4 mxfp8 nvfp4
    scalar scalarlist tensor tensorlist genericlist optional device
    cuda hip cpu meta strided contiguous nhd hnd bshd sbhd thd bhsd
    silu gelu relu relu2 swiglu swigluoai geglu sigmoid tanh softmax quick fast new mul no and
    sum mean max min prod avg constant reflect replicate circular zeros border
    linear bilinear trilinear nearest bicubic area causal flash math efficient
    per token group tensor block channel static dynamic
    allreduce allgather reducescatter alltoall alltoallv all to reduce gather scatter broadcast
    barrier send recv base coalesced nccl rccl gloo mpi ucc
"""
# words of step annotations
STEP_WORDS_TEXT = """
    execute context generation sq sk sqsq sqsk diffusion x capture FULL PIECEWISE DECODE
    step bs toks tok EXTEND PREFILL MIXED IDLE TARGET VERIFY DRAFT SPLIT c g prefill decode mixed
    ctx d NONE atrex other
"""
WORDS = frozenset(WORDS_TEXT.split())
STEP_WORDS = frozenset(STEP_WORDS_TEXT.split())
STEPS = (LOGGED, EXECUTE, SGLANG, ATOM, CAPTURE, DIFFUSION)
PROFILER_STEP = re.compile(r"ProfilerStep#\d+")

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
TOKENS = re.compile(r"[^\s\[\](),'\"]+")
PARTS = re.compile(r"[_.:\-]+")
LETTERS = re.compile(r"[^\W\d_]+")
NO_STEP_TEXT = re.compile(r"[^\w\[\]()=, ]")
PADDED = re.compile(r"(?<==)(\d+)/(?=\d)")  # bs=117/128

# what gives a machine, a person or a project away inside a name, and what stands for it
WITHIN = r"[^\s\"'`<>(),;=|\[\]{}]"  # what a path consists of; it begins after anything else
FRACTION = r"\d+/\d+(?![\w/\\])"  # no path
FILE = r"[\w.\-]*\w\.(?:py|pyx|ipynb|cu|cuh|cc|cpp|cxx|c|h|hpp|hip|so|json|yaml|toml|txt|sh)\b"
GIVEAWAYS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("address", re.compile(r"[\w.+\-]+@[\w\-]+(?:\.[\w\-]+)*")),
    ("path", re.compile(rf"(?<!{WITHIN})(?!{FRACTION}){WITHIN}*[/\\][^\s\"'`<>,;|\[\]{{}}]*")),
    ("address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?")),
    ("address", re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,}[0-9a-fA-F:]+")),
    ("file", re.compile(FILE + r"(?:(?::|, line )\d+|\(\d+\))?|[\w.\-]+\.\w{1,5}:\d+\b")),
    ("host", re.compile(r"\b(?:[\w\-]+\.)+(?:com|net|org|io|ai|edu|gov|dev|cloud|local|internal|"
                        r"localdomain|lan|corp)(?![\w.\-])(?::\d+)?")),
)  # fmt: skip


def clean_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Replace what looks like a path, a file or an address; return the name and what it was."""
    found: list[str] = []
    for kind, pattern in GIVEAWAYS:
        name, count = pattern.subn(kind, name)
        found += [kind] * count
    return name, tuple(found)


def clean_annotation(text: str) -> str | None:
    """Return the part of an annotation that says what step it marks, None if it marks none."""
    if PROFILER_STEP.fullmatch(text):
        return text
    if parse_step(text) is None:
        return None
    if _is_step(text):
        return text
    # something follows, or stands inside, that is not known
    marked = next((found[0] for pattern in STEPS if (found := pattern.match(text))), "")
    known = LETTERS.sub(lambda word: word[0] if word[0] in STEP_WORDS else OTHER, marked)
    return known if _is_step(known) else NO_STEP_TEXT.sub("_", known)


def _is_step(text: str) -> bool:
    """Whether a text consists of what step annotations consist of; 117/128 is a padded batch."""
    known = STEP_WORDS.issuperset(LETTERS.findall(text))
    return known and not NO_STEP_TEXT.search(PADDED.sub(r"\1", text))


def is_known(text: str) -> bool:
    """Whether a value's text consists of numbers and known words: [True, False], cuda:0."""
    return all(NUMBER.fullmatch(token) or _is_word(token) for token in TOKENS.findall(text))


def _is_word(token: str) -> bool:
    parts = [part.lower() for part in PARTS.split(token) if part]
    words = [part for part in parts if part in WORDS]
    numbers = [part for part in parts if part.isdecimal()]
    return bool(words) and len(numbers) <= 1 and len(words) + len(numbers) == len(parts)
