"""LangChain's chat model and its model of completions: `with_langchain.py URL`; prints what came, as JSON."""

import asyncio
import json
import sys

import openai
from langchain_openai import ChatOpenAI, OpenAI

shared = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": "toy", "temperature": 0, "max_tokens": 8}
chat, text = ChatOpenAI(**shared), OpenAI(**shared)
messages = [("system", "be brief"), ("user", "hello")]
whole = chat.invoke(messages)
pieces = list(chat.stream(messages, stream_usage=True))
counted = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
refusal = ""
try:
    chat.bind(model="other").invoke(messages)
except openai.NotFoundError as error:
    refusal = error.param
print(
    json.dumps(
        {
            "chat": whole.content,
            "streamed": "".join(piece.content for piece in pieces),
            "asynchronous": asyncio.run(chat.ainvoke(messages)).content,
            "batch": [answer.content for answer in chat.batch([messages, messages])],
            "usage": [whole.usage_metadata["output_tokens"], counted[-1]["output_tokens"]],
            "finish_reason": whole.response_metadata["finish_reason"],
            "text": text.invoke("hello"),
            "text_streamed": "".join(text.stream("hello")),
            "refusal": refusal,
        }
    )
)
