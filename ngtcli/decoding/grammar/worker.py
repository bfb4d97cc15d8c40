"""The process in which grammars are compiled for the first time; it may crash or be ended.

llguidance is native code. A schema that makes it recurse without an end, or take all memory, must
not take along the process that holds a model and the answers of others. `process.py` starts this
one and talks with it: one line of JSON each for a request and for its reply.

This file loads nothing of the package: the process starts in 0.1 s (measured).
"""

import json
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

# Bytes of the stack. Less than any thread has that compiles the grammar later, in the process of
# the model: what passes here does not overflow there.
_STACK = 1 << 20
_IDLE_S = 120  # after which the process ends (guess)
# How many answers are tried with a pattern, and their tokens (guess: 20 ms for usual patterns).
_WALKS = 2
_STEPS = 150

_tokenizers: dict[str, Any] = {}


def serve(memory: int) -> NoReturn:
    """Answer requests on standard input until it ends; this process may take `memory` bytes."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process within native code, too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with suppress(OSError, ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_answer_all, daemon=True)
    thread.start()
    thread.join()
    os._exit(0)


def _answer_all() -> None:
    requests = sys.stdin.buffer
    replies = sys.stdout.buffer
    while select.select([requests], [], [], _IDLE_S)[0] and (line := requests.readline()):
        request = json.loads(line)
        before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        error = _error(request["grammar"], request["form"], request["words"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply = {"error": error, "seconds": time.process_time() - before}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _error(text: str, form: str, words: str) -> str:
    """Return what llguidance has against a grammar; "" if it takes it.

    Some expressions are too large only where tokens are looked for, or after a bracket, or after
    many tokens. `words` is the tokenizer.json whose tokens such answers are tried with; "" for no
    such trial.
    """
    import llguidance

    try:
        if form == "regex":  # a pattern alone, as others write it
            llguidance.regex_to_lark(text, "d")
            return ""
        name = words or "byte"
        if name not in _tokenizers:
            _tokenizers[name] = llguidance.LLTokenizer(name)
        tokenizer = _tokenizers[name]
        matcher = llguidance.LLMatcher(tokenizer, text, log_level=0)
        matcher.compute_bitmask()
        if matcher.try_consume_tokens(matcher.compute_ff_tokens()):
            matcher.compute_bitmask()
        walks = range(_WALKS) if words and not matcher.is_error() else ()
        for seed in walks:
            state = matcher.deep_copy()
            _walk(state, tokenizer, seed)
            if state.is_error():
                return str(state.get_error())
        return str(matcher.get_error())
    except MemoryError:
        return "memory"
    except Exception as error:
        return str(error) or type(error).__name__


def _walk(matcher: Any, tokenizer: Any, seed: int) -> None:
    """Go on with tokens drawn from those that are allowed, if any is that ends no text."""
    draw = random.Random(seed)
    goes_on = _going_on(tokenizer)
    for _ in range(_STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return
        longer = int.from_bytes(mask, "little") & goes_on
        mask = longer.to_bytes(len(mask), "little") if longer else mask
        first = draw.randrange(len(mask))
        rotated = mask[first:] + mask[:first]
        offset = next((i for i, byte in enumerate(rotated) if byte), None)
        if offset is None:
            return
        bits = [bit for bit in range(8) if rotated[offset] >> bit & 1]
        matcher.consume_token(8 * ((first + offset) % len(mask)) + draw.choice(bits))


@cache
def _going_on(tokenizer: Any) -> int:
    """Return the mask of the tokens that end neither an answer nor a string in it."""
    mask = bytearray(tokenizer.vocab_size // 8 + 1)
    for token in range(tokenizer.vocab_size):
        if token != tokenizer.eos_token and '"' not in tokenizer.decode_str([token]):
            mask[token >> 3] |= 1 << (token & 7)
    return int.from_bytes(mask, "little")
