"""Chat templates: what they may use and what the sandbox forbids."""

import pytest

from specjax.checkpoints import chat

USER = [{"role": "user", "content": "Hi & <bye>"}]


def render(source, messages=USER, **options):
    return chat.ChatTemplate(source, "<s>", "</s>").render(messages, **options)


def test_messages_and_tokens():
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}"
        "{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert render(source) == "<s>[user] Hi & <bye></s>[assistant]"
    assert render(source, add_generation_prompt=False) == "<s>[user] Hi & <bye></s>"


def test_blocks_are_trimmed():
    source = (
        "{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "x\n"


def test_tojson_keeps_text_as_it_is():
    assert render("{{ messages | tojson }}") == (
        '[{"role": "user", "content": "Hi & <bye>"}]'
    )
    assert render("{{ {'é': 1} | tojson(indent=1) }}") == '{\n "é": 1\n}'


def test_strftime_now():
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_extra_variables():
    assert render("{{ tools | length }}", tools=[1, 2]) == "2"


def test_loop_controls():
    assert render("{% for i in [1, 2, 3] %}{{ i }}{% break %}{% endfor %}") == "1"


def test_a_template_may_refuse():
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match=r"roles must alternate.*\['user'\]"):
        render(source)


ESCAPES = [
    "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{% set _ = messages.append(1) %}",
    "{% set _ = messages[0].update({'role': 'system'}) %}",
    "{% for i in range(10000000) %}{% endfor %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_are_refused(source):
    with pytest.raises(ValueError, match=r"sandbox|can't render"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ ''['format'].__self__.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.__class__ }}",
    ],
)
def test_hidden_attributes_are_not_there(source):
    assert render(source) == ""


def test_no_file_is_read():
    with pytest.raises(ValueError, match="can't render"):
        render("{% include '/etc/passwd' %}")


def test_messages_stay_as_they_are():
    messages = [{"role": "user", "content": "a"}]
    render("{% for m in messages %}{{ m.content }}{% endfor %}", messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_a_template_that_is_not_jinja():
    with pytest.raises(ValueError, match=r"not valid jinja2 .line 1"):
        render("{% for m in %}")


@pytest.mark.parametrize(
    "messages",
    [
        "Hi",
        {"role": "user", "content": "Hi"},
        [],
        ["Hi"],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"content": "Hi"}],
        None,
    ],
)
def test_messages_of_another_shape(messages):
    with pytest.raises(ValueError, match="messages"):
        render("x", messages)


def test_template_file_goes_before_the_config(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    made = chat.from_directory(tmp_path, {"chat_template": "config"})
    assert made.source == "file"


def test_named_templates(tmp_path):
    named = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}}
    assert chat.from_directory(tmp_path, config) == chat.ChatTemplate(
        "plain", "<s>", ""
    )


def test_no_template(tmp_path):
    assert chat.from_directory(tmp_path, {}) is None
    assert chat.from_gguf({}, "", "") is None
