"""Chat templates of our own, in the manner of the large families, as transformers renders them.

Writes chat_cases.json: run with Python and transformers installed. The templates use the idioms that real ones use; none is
copied from a model.
"""

import json
from pathlib import Path

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

HEADERS = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n'+ message['content'] | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|end|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|head|>tool<|/head|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""

TAGS = """{%- if tools %}
    {{- '<|start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson(separators=(',', ':')) }}
    {%- endfor %}
    {{- "\\n</tools><|stop|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|start|>system\\n' + messages[0].content + '<|stop|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<out>') and message.content.endswith('</out>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|start|>' + message.role + '\\n' + content + '<|stop|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.thoughts is string %}
            {%- set thoughts = message.thoughts %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or thoughts) %}
            {{- '<|start|>assistant\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|stop|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|start|>user' }}
        {%- endif %}
        {{- '\\n<out>\\n' + content + '\\n</out>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|stop|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

BRACKETS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user and assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[ASK] " + system_message + "\\n\\n" + message["content"] + "[/ASK]" }}
        {%- else %}
            {{- "[ASK] " + message["content"] + "[/ASK]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("ids of tool calls have 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[OUT] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/OUT]' }}
    {%- else %}
        {{- raise_exception("user, assistant or tool was expected") }}
    {%- endif %}
{%- endfor %}
"""

TURNS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate user/assistant/user") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("no content") }}
    {%- endif -%}
    {{ '</turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model\\n'}}
{%- endif -%}
"""

GROUNDED = """{{ bos_token }}
{%- set ns = namespace(titles=[], n=0) -%}
{%- for document in documents or [] -%}
    {%- set ns.titles = ns.titles + [document.title | default('untitled', true)] -%}
    {%- set ns.n = ns.n + 1 %}
<doc {{ loop.index }}>
    {%- for key, value in document.items() %}
{{ key }}: {{ value }}
    {%- endfor %}
</doc>
{%- endfor %}
{{ ns.n }} documents: {{ ns.titles | join('; ') }}
{% for message in messages -%}
    {%- if message.role not in ['user', 'assistant'] -%}
        {%- continue -%}
    {%- endif -%}
    {{ message.role.upper().removesuffix('ISTANT') }}: {{ message.content.rsplit(':', 1)[-1].partition('#')[0].strip() }}
{% endfor -%}
{{- 'quotes: ' ~ (citation_options['mode'] if citation_options is defined else 'none') }}
"""

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds \"it\" & more.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "limit": {"type": "integer", "default": 2}}, "required": ["q"]},
    },
}
PLAIN = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "héllo 'you' <b>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi\n"},
    {"role": "user", "content": "again"},
]
CALLED = [
    {"role": "user", "content": "find x"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "function": {"name": "find", "arguments": {"q": "x", "limit": 3, "all": True, "f": 0.5}}}]},
    {"role": "tool", "content": "{\"hits\": [1, null]}", "tool_call_id": "abcdefghi"},
]
PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "S"}]},
    {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b"}]},
]
DOCUMENTS = [{"title": "One", "text": "it's"}, {"text": "two\nlines", "tags": ["a", 1, None, True]}]
NAMED = [{"role": "tool", "content": "no"}, {"role": "user", "content": "q: what # now"}, {"role": "assistant", "content": "x"}]

CASES = [
    ("headers", HEADERS, PLAIN, {}),
    ("headers", HEADERS, PLAIN, {"date_string": "1 May", "add_generation_prompt": True}),
    ("headers", HEADERS, CALLED, {"tools": [TOOL], "add_generation_prompt": True}),
    ("tags", TAGS, PLAIN, {"add_generation_prompt": True, "enable_thinking": False}),
    ("tags", TAGS, PLAIN + [{"role": "assistant", "content": "<think>\na\n</think>\n\nb"}], {}),
    ("tags", TAGS, CALLED, {"tools": [TOOL, TOOL], "add_generation_prompt": True}),
    ("brackets", BRACKETS, PLAIN, {}),
    ("brackets", BRACKETS, CALLED[:1], {"tools": [TOOL, TOOL]}),
    ("brackets", BRACKETS, CALLED, {"tools": [TOOL]}),
    ("turns", TURNS, PLAIN, {"add_generation_prompt": True}),
    ("turns", TURNS, PARTS, {}),
    ("grounded", GROUNDED, NAMED, {"documents": DOCUMENTS, "citation_options": {"mode": "fast"}}),
    ("grounded", GROUNDED, NAMED, {}),
]


def main() -> None:
    """Writes the cases."""
    rendered = []
    for name, template, messages, options in CASES:
        given = dict(options)
        texts, _ = render_jinja_template(
            [messages],
            tools=given.pop("tools", None),
            documents=given.pop("documents", None),
            chat_template=template,
            add_generation_prompt=given.pop("add_generation_prompt", False),
            bos_token="<s>",
            eos_token="</s>",
            **given,
        )
        rendered.append({"template": name, "messages": messages, "options": options, "text": texts[0]})
    templates = {name: template for name, template, _, _ in CASES}
    result = {"made_by": f"transformers {transformers.__version__}", "templates": templates, "cases": rendered}
    path = Path(__file__).parent / "chat_cases.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
