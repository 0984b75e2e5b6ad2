"""LiteLLM, for chats and for completions: `with_litellm.py URL`; prints what came, as JSON."""

import asyncio
import json
import sys

import litellm

shared = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "temperature": 0, "max_tokens": 8}
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
chat = {"model": "openai/toy", "messages": messages, **shared}
text = {"model": "text-completion-openai/toy", "prompt": "hello", **shared}
whole = litellm.completion(**chat)
pieces = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
refusal = ""
try:
    litellm.completion(**chat | {"max_tokens": 100_000})
except litellm.ContextWindowExceededError as error:
    refusal = type(error).__name__
print(
    json.dumps(
        {
            "chat": whole.choices[0].message.content,
            "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices),
            "asynchronous": asyncio.run(litellm.acompletion(**chat)).choices[0].message.content,
            "usage": [whole.usage.completion_tokens, pieces[-1].usage.completion_tokens],
            "finish_reason": whole.choices[0].finish_reason,
            "text": litellm.text_completion(**text).choices[0].text,
            "text_streamed": "".join(
                piece.choices[0].text or "" for piece in litellm.text_completion(**text, stream=True)
            ),
            "refusal": refusal,
        }
    )
)
