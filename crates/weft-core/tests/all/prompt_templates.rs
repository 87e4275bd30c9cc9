//! Features of templates: Python's methods, transformers' functions and filters, limits, errors.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, not in their helpers.

use std::time::Duration;

use serde_json::json;
use weft_core::prompt::{Content, Conversation, Message, PromptError, Segment, Template};

use crate::cpu_time;

fn render(source: &str, conversation: &Conversation) -> Result<String, PromptError> {
    Ok(Template::new(source, None, None)?.render(conversation)?.text())
}

fn user(content: &str) -> Conversation {
    Conversation::new(vec![Message::user(content)], None)
}

/// Renders an expression of the content `c`. The result must be Python's text, and content.
fn check(expression: &str, content: &str, expected: &str) {
    let source = format!("{{% set c = messages[0].content %}}[{{{{ {expression} }}}}]");
    let rendered = Template::new(&source, None, None).unwrap().render(&user(content)).unwrap();
    assert_eq!(rendered.text(), format!("[{expected}]"), "{expression} of {content:?}");
    let mut wanted = vec![Segment::Scaffold("[".to_owned()), Segment::Scaffold("]".to_owned())];
    if expected.is_empty() {
        wanted = vec![Segment::Scaffold("[]".to_owned())];
    } else {
        wanted.insert(1, Segment::Content(expected.to_owned()));
    }
    assert_eq!(rendered.segments(), wanted, "{expression} of {content:?}");
}

/// Like [`check`], for expressions that put text of the template between contents.
fn check_text(expression: &str, content: &str, expected: &str) {
    let source = format!("{{% set c = messages[0].content %}}{{{{ {expression} }}}}");
    let template = Template::new(&source, None, None).unwrap();
    assert_eq!(template.render(&user(content)).unwrap().text(), expected, "{expression}");
}

#[test]
fn methods_that_give_contents() {
    check("c.strip()", " \n\x1c a b\u{3000}\t", "a b");
    check("c.strip()", " \n ", "");
    check("c.lstrip('\\n')", "\n\n x\n", " x\n");
    check("c.rstrip('x\\n')", "\nax\nx", "\na");
    check("(' ' + c).strip()", "  a ", "a");
    check("c | trim", " a ", "a");
    check("c | trim('-')", "--a-", "a");
    check("c.split('</think>')[-1]", "a</think>b</think>c", "c");
    check("c.split('</think>')[0]", "a</think>b", "a");
    check("c.split(',', 1)[1]", "a,b,c", "b,c");
    check("c.split(maxsplit=1)[1]", " a  b c ", "b c ");
    check("c.split()[2]", " a\tb \n c ", "c");
    check("c.split(',')[1]", "a,,b", "");
    check("c.splitlines()[1]", "a\r\nb\nc", "b");
    check("c.splitlines(true)[0]", "a\r\nb", "a\r\n");
    check("(c | split(','))[1]", "a,b", "b");
    check("(c | lines)[0]", "a\nb", "a");
    check("c.replace('l', c[:0])", "hello", "heo");
    check("c.upper()", "straße é", "STRASSE É");
    check("c | lower", "ÀB", "àb");
    check("c.title()", "they're bill's friends", "They'Re Bill'S Friends");
    check("c | title", "they're <b>here-now", "They're <B>here-Now");
    check("c.capitalize()", "hELLO wORLD", "Hello world");
    check("c | string", "a", "a");
    check("c | tojson", "a\"\n\u{1}é</b>", "\"a\\\"\\n\\u0001é</b>\"");
}

#[test]
fn methods_that_mix_or_count() {
    check_text("c.replace('a', '<>')", "banana", "b<>n<>n<>");
    check_text("c.replace('a', '-', 2)", "banana", "b-n-na");
    check_text("', '.join(c.split(','))", "a,b", "a, b");
    check_text("c.split(',') | join('+')", "a,b", "a+b");
    check_text("'{}!'.format(c)", "a", "a!");
    check_text("c.startswith('<t') and c.endswith('>') and not c.startswith('t')", "<t>", "True");
    check_text("c.startswith(('x', '<'))", "<t>", "True");
    check_text("c.find('b') ~ c.rfind('b') ~ c.count('b') ~ c.find('z')", "abab", "132-1");
    check_text("c | length ~ (c | count)", "héé", "33");
    check_text("'é' in c and 'z' not in c", "héé", "True");
    check_text("c.isdigit() ~ c.isspace()", "12", "TrueFalse");
    check_text("c == messages[0].content", "a", "True");
    check_text("(c if c.strip() else 'none')", " \n", "none");
    check_text("[1, 2.5, none, true, {'a': 'b'}]", "", "[1, 2.5, None, True, {'a': 'b'}]");
}

#[test]
fn scaffold_between_contents_stays_scaffold() {
    let source = "{{ messages[0].content.split(',') | join('<|im_end|>') }}";
    let rendered = Template::new(source, None, None).unwrap().render(&user("a,b,<x>")).unwrap();
    let (end, content) = (
        || Segment::Scaffold("<|im_end|>".to_owned()),
        |text: &str| Segment::Content(text.to_owned()),
    );
    let wanted = [content("a"), end(), content("b"), end(), content("<x>")];
    assert_eq!(rendered.segments(), wanted);
}

#[test]
fn values_behave_as_in_jinja2() {
    let messages = vec![Message::system("s"), Message::user("q"), Message::assistant("a")];
    let mut conversation = Conversation::new(messages, Some(true));
    conversation.extra.insert("effort".to_owned(), json!("high"));
    conversation.extra.insert("messages".to_owned(), json!("not these"));
    conversation.tools = vec![json!({"b": {"x": 1}, "a": [1, -2.5, 1e20, 1e-7, 1.0, null, true]})];
    let text = |source: &str| render(source, &conversation).unwrap();
    assert_eq!(text("{% for m in messages[::-1] %}{{ m.content }}{% endfor %}"), "aqs");
    assert_eq!(text("{% set m = messages[1:] %}{{ m[0].role }}{{ m | length }}"), "user2");
    assert_eq!(text("{{ messages[-1]['content'] }}{{ effort }}{{ enable_thinking }}"), "ahighTrue");
    assert_eq!(text("{{ nothing }}{{ messages[0].nothing }}{{ tools[0].nothing }}."), ".");
    assert_eq!(text("{{ nothing is defined }}{{ documents is none }}{{ bos_token }}"), "FalseTrue");
    let json = r#"{"b": {"x": 1}, "a": [1, -2.5, 1e+20, 1e-07, 1.0, null, true]}"#;
    assert_eq!(text("{{ tools[0] | tojson }}"), json);
    assert_eq!(text("{{ tools[0].b | tojson(indent=2) }}"), "{\n  \"x\": 1\n}");
    assert_eq!(text("{{ [{}, []] | tojson(separators=(',', ':')) }}"), "[{},[]]");
    assert_eq!(text("{{ 'é🎉' | tojson(ensure_ascii=true) }}"), r#""\u00e9\ud83c\udf89""#);
    assert_eq!(text("{% for k, v in tools[0].items() %}{{ k }}{% endfor %}"), "ba");
    assert_eq!(text("{% for k in tools[0].b | items %}{{ k[0] }}{{ k[1] }}{% endfor %}"), "x1");
    assert_eq!(
        text("{{ tools[0].get('b').x }}{{ tools[0].get('z', 7) }}{{ 'b' in tools[0] }}"),
        "17True"
    );
    assert_eq!(text("{{ messages | map(attribute='content') | join('|') }}"), "s|q|a");
    assert_eq!(
        text("{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }}"),
        "q"
    );
    assert_eq!(
        text("{{ none is iterable }}{{ 'a' is sequence }}{{ none is sequence }}"),
        "FalseTrueFalse"
    );
    assert_eq!(text("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
    assert_eq!(text("{%- generation -%} x {%- endgeneration -%} y"), "xy");
    assert_eq!(text("{% set generation = 'g' %}{{ generation }}"), "g");
    assert_eq!(
        text("{% raw %}{% generation %}'{{ {% endraw %}{#'#}{ '{{ '}}' }}"),
        "{% generation %}'{{ { '}}"
    );
    assert_eq!(
        text("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
        "01"
    );
    assert_eq!(text("{% macro f(x) %}<{{ x.strip() }}>{% endmacro %}{{ f(' a ') }}"), "<a>");
    let year: u32 = text("{{ strftime_now('%Y') }}").parse().unwrap();
    assert!((2024..3000).contains(&year));
}

#[test]
fn contents_in_parts_and_missing_ones() {
    let message: Message = serde_json::from_value(json!({
        "role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }))
    .unwrap();
    assert_eq!(message.content.as_ref().map(Content::text).as_deref(), Some("a\nb"));
    let conversation = Conversation::new(vec![message], None);
    assert_eq!(render("{{ messages[0].content }}", &conversation).unwrap(), "a\nb");
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]});
    let error = serde_json::from_value::<Message>(image).unwrap_err().to_string();
    assert!(error.contains("content must be"), "{error}");
    let call =
        json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]});
    let call: Message = serde_json::from_value(call).unwrap();
    let conversation = Conversation::new(vec![call], None);
    let seen = "{{ messages[0].content is none }}";
    assert_eq!(render(seen, &conversation).unwrap(), "True");
    let taken = "{% if 'x' in messages[0].content %}{% endif %}{{ messages[0].content.strip() }}.";
    assert_eq!(render(taken, &conversation).unwrap(), ".");
}

/// The error of a template that must fail quickly: an endless one would take hours.
fn fails(source: &str) -> PromptError {
    let start = cpu_time();
    let error = render(source, &user("hello")).expect_err(source);
    let took = cpu_time() - start;
    assert!(took < Duration::from_secs(20), "{source} took {took:?}");
    error
}

#[test]
fn endless_templates_end() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}";
    let ends = "{% endfor %}{% endfor %}";
    for body in [
        "",
        "x",
        "{{ messages[0].content }}",
        "{% set x = messages[0].content.upper() %}",
        "{% set x = messages | tojson %}",
    ] {
        let error = fails(&format!("{loops}{body}{ends}"));
        assert!(matches!(error, PromptError::Limit { .. }), "{body}: {error}");
    }
    let doubling = "{% set ns = namespace(x='abcdefgh') %}{% for i in range(99) %}\
        {% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}{% endfor %}";
    assert!(matches!(fails(doubling), PromptError::Limit { .. }));
    let replaced = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}\
        {% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}{% endfor %}";
    assert!(matches!(fails(replaced), PromptError::Limit { .. }));
    let repeated = "{{ 'x' * (3000000 | int) }}";
    assert!(fails(repeated).to_string().contains("the rendered prompt's size in bytes"));
    let touched = fails("{{ 'x' * (99999999 | int) }}");
    assert!(touched.to_string().contains("bytes that the chat template processes"), "{touched}");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    fails("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}");
}

#[test]
fn widths_are_bounded() {
    for wide in [
        r#"{{ "a\nb" | indent(2000000000) }}"#,
        r#"{{ "a\nb" | indent(width=2000000000) }}"#,
        r#"{{ messages | tojson(indent=2000000000) }}"#,
        r#"{{ "%2000000000d" | format(1) }}"#,
        r#"{{ "%-*d" | format(2000000000, 1) }}"#,
        r#"{{ "{:2000000000}".format(1) }}"#,
        r#"{{ "{:99999999999999999999999}".format(1) }}"#,
        r#"{{ [1] | batch(2000000000, 1) | list }}"#,
        r#"{{ [1] | slice(2000000000, 1) | list }}"#,
    ] {
        fails(wide);
    }
    let narrow = r#"{{ "a\nb" | indent(2) }}{{ "%5d%s" | format(1, 2) }}{{ "{:>3}".format(4) }}"#;
    assert_eq!(render(narrow, &user("")).unwrap(), "a\n  b    12  4");
}

#[test]
fn deep_templates_fail() {
    let nest = |open: &str, close: &str, n: usize| open.repeat(n) + "x" + &close.repeat(n);
    assert!(matches!(
        fails(&nest("{% if true %}", "{% endif %}", 100_000)),
        PromptError::Syntax { .. }
    ));
    for (open, close) in [("(", ")"), ("[", "]"), ("{'a':", "}")] {
        let error = fails(&format!("{{{{ {} }}}}", nest(open, close, 400)));
        assert!(matches!(error, PromptError::Syntax { .. }), "{open}: {error}");
    }
    // Chains are deep in the parser too. Just below the limit they must not overflow.
    for (open, close, n_tokens) in [
        ("-", "", 1),
        ("not ", "", 1),
        ("", "+1", 2),
        ("", ".a", 2),
        ("", "|e", 2),
        ("", "~1", 2),
        ("1 if 0 else ", "", 4),
    ] {
        let tag = |n: usize| format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
        let error = fails(&tag(2000 / n_tokens + 1));
        assert!(matches!(error, PromptError::Limit { limit: 2000, .. }), "{open}{close}: {error}");
        let result = render(&tag(1990 / n_tokens), &user("hello"));
        assert!(!matches!(result, Err(PromptError::Limit { .. })), "{open}{close}");
    }
    let elifs = |n| format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n));
    assert!(matches!(fails(&elifs(501)), PromptError::Limit { limit: 500, .. }));
    assert_eq!(render(&elifs(500), &user("hello")).unwrap(), "");
    let long = format!("{{# {0} #}}{{{{ '{0}' }}}}{0}", r"x-\'".repeat(2000));
    assert!(render(&long, &user("hello")).is_ok());
    let deep = "{% set ns = namespace(x=1) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}\
        {% endfor %}{{ ns.x | tojson }}";
    assert!(fails(deep).to_string().contains("nesting"));
}

/// Chains cannot hide behind text that only the parser takes for the end of a comment or of a raw
/// block.
#[test]
fn chains_are_found_where_the_parser_finds_them() {
    let chain = format!("{}1 }}}}", "-".repeat(1_000_000));
    for before in [
        "{% raw %}{{ ' {% endraw %}{{ ",
        "{#}{{ ' #}{{ ",
        "{% raw %}endraw{{ '{% endraw %}{{ ",
        "{{ '#}' }}{# {% raw %} #}{{ ",
        "{% raw -%} {% endraw x %}{{ ' {%+ endraw %}{{ ",
        "{% if '%}' %}{% endif %}{{ ",
        "{{ {'a': {}} }}{{ ",
        "{{ '}}' }}\n{%- set x = ",
    ] {
        let source = format!("{before}{chain}");
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let error = thread.spawn(move || fails(&source)).unwrap().join().unwrap();
        assert!(matches!(error, PromptError::Limit { limit: 2000, .. }), "{before}: {error}");
    }
    // Many tags are not one long tag.
    let many = "{{ 1 }}{% if 1 %}{# - #}{% endif %}".repeat(2000);
    assert_eq!(render(&many, &user("hello")).unwrap(), "1".repeat(2000));
}

#[test]
fn errors_say_where_and_what() {
    let error = fails("a\nb\n{% if %}\n");
    assert!(matches!(error, PromptError::Syntax { line: 3, .. }), "{error}");
    assert!(error.to_string().contains("line 3"), "{error}");
    assert!(matches!(fails("{{ 'open"), PromptError::Syntax { line: 1, .. }));
    assert!(matches!(fails("{% for x in y %}"), PromptError::Syntax { .. }));
    let error = fails("\n{{ raise_exception('Only ' ~ messages[0].content) }}");
    assert!(matches!(&error, PromptError::Raised(message) if message == "Only hello"), "{error}");
    let error = fails("{% macro f() %}{{ raise_exception('inside') }}{% endmacro %}{{ f() }}");
    assert!(matches!(&error, PromptError::Raised(message) if message == "inside"), "{error}");
    assert!(matches!(fails("\n\n{{ nothing.at.all }}"), PromptError::Failed { line: 3, .. }));
    assert!(matches!(fails("{{ messages[0].x.y }}"), PromptError::Failed { line: 1, .. }));
    let error = fails("{{ messages[0].content.nothing() }}");
    assert!(error.to_string().contains("unknown method"), "{error}");
    fails("{{ messages[0].content.split('') }}");
    fails("{{ x | tojson }}");
    fails("{% include 'secret' %}");
    fails("{{ debug() }}");
}
