//! Chat templates that were written to do harm: each ends, with an error or without, in limited
//! time, memory and stack. The allocator fails, and so ends the test, beyond the limit.

use std::alloc::System;
use std::time::{Duration, Instant};

use cap::Cap;
use weft_core::prompt::{Conversation, Message, PromptError, Template};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, 1 << 30);

/// How long a template may take, on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn conversation() -> Conversation {
    Conversation { messages: vec![Message::user("Hello.")], ..Conversation::default() }
}

/// The error of a template that must not do what it is meant to do.
fn fails(source: &str) -> PromptError {
    let start = Instant::now();
    let rendered = Template::new(source, None, None).and_then(|t| t.render(&conversation()));
    let time = start.elapsed();
    assert!(time < LIMIT, "{source}: {time:?}");
    match rendered {
        Err(error) => error,
        Ok(rendered) => panic!("{source}: {} bytes", rendered.text().len()),
    }
}

/// A template that doubles `x` a hundred times.
fn doubling(start: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range(100) %}}\
         {{% set ns.x = {step} %}}{{% endfor %}}"
    )
}

#[test]
fn values_that_double_are_refused() {
    for (start, step) in [
        ("'ab'", "ns.x ~ ns.x"),
        ("'ab'", "ns.x + ns.x"),
        ("'ab'", "ns.x * 2"),
        ("'ab'", "ns.x * 1000000"),
        ("'ab'", "2 * ns.x"),
        ("'ab'", "[ns.x, ns.x] | join"),
        ("'ab'", "[ns.x, ns.x] | join(ns.x)"),
        ("'ab'", "ns.x.join([ns.x, ns.x])"),
        ("'ab'", "ns.x.join(ns.x)"),
        ("'ab'", "ns.x.replace('a', ns.x)"),
        ("'ab'", "ns.x | replace('', ns.x)"),
        ("'ab'", "'{}{}'.format(ns.x, ns.x)"),
        ("'ab'", "'%s%s' | format(ns.x, ns.x)"),
        ("'ab'", "(ns.x ~ '%s') | replace('a', '%s') | string ~ ns.x"),
        ("'ab\\n'", "(ns.x ~ ns.x) | indent(1000)"),
        ("'ab'", "(ns.x | list) | string"),
        ("[1]", "ns.x + ns.x"),
        ("[1]", "ns.x * 2"),
        ("[1]", "ns.x * 90000000"),
        ("(1, 2)", "ns.x * 40000000"),
        ("(1, 2)", "ns.x + ns.x"),
        ("[1]", "[ns.x, ns.x]"),
        ("[1]", "(ns.x, ns.x)"),
        ("[1]", "{'a': ns.x, 'b': ns.x}"),
        ("[1]", "dict(a=ns.x, b=ns.x)"),
        ("[1]", "ns.x | chain(ns.x)"),
        ("[1]", "ns.x | zip(ns.x) | list"),
        ("[1]", "[ns.x, ns.x] | tojson"),
        ("[1]", "ns.x ~ ns.x"),
        ("[1]", "[ns.x, ns.x] | map('string') | list"),
    ] {
        fails(&doubling(start, step));
    }
}

#[test]
fn values_that_share_their_parts_are_not_written_out() {
    // Twenty levels: small in memory, a million parts when written out.
    let shared = |use_it: &str| {
        format!(
            "{{% set ns = namespace(x=['ab']) %}}{{% for i in range(20) %}}\
             {{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}\
             {{% for i in range(100000) %}}{use_it}{{% endfor %}}"
        )
    };
    for use_it in [
        "{{ ns.x }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x | string | length }}",
        "{{ ns.x | pprint | length }}",
        "{{ (ns.x ~ '') | length }}",
        "{{ ns.x == ns.x }}",
        "{{ ns.x is eq(ns.x) }}",
        "{{ ns.x in [ns.x] }}",
        "{{ [ns.x, ns.x] | unique | length }}",
        "{{ [ns.x, ns.x] | sort | length }}",
        "{{ [ns.x] | join | length }}",
        "{{ ns.x | upper | length }}",
        "{% set y %}{{ ns.x }}{% endset %}",
        "{{ [[ns.x]].count([ns.x]) }}",
        "{{ 0 < (ns.x | length) < (ns.x | string | length) }}",
    ] {
        fails(&shared(use_it));
    }
}

#[test]
fn deep_values_are_refused() {
    for step in [
        "[ns.x]",
        "(ns.x,)",
        "{'a': ns.x}",
        "dict(a=ns.x)",
        "[ns.x] | list",
        "[ns.x] | zip([1]) | list",
        "{'a': ns.x} | items | list",
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(100000) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}"
        );
        let error = fails(&source).to_string();
        assert!(error.contains("256 levels"), "{step}: {error}");
    }
    // Views of views are made at once, so nothing deep is left to walk through or to drop.
    for step in ["ns.x | reverse", "ns.x[0:]", "ns.x + []", "ns.x | map('string')"] {
        let source = format!(
            "{{% set ns = namespace(x=['a', 'b']) %}}{{% for i in range(100000) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x | join }}}}"
        );
        let start = Instant::now();
        let rendered = Template::new(&source, None, None).unwrap().render(&conversation());
        assert_eq!(rendered.unwrap().text(), "ab", "{step}");
        assert!(start.elapsed() < LIMIT, "{step}");
    }
    // A namespace inside itself would never be freed.
    for step in ["ns", "[ns]", "{'a': [ns]}"] {
        let error = fails(&format!("{{% set ns = namespace() %}}{{% set ns.x = {step} %}}"));
        assert!(error.to_string().contains("namespace"), "{error}");
    }
}

#[test]
fn slow_steps_in_long_loops_are_refused() {
    let loops = |start: &str, step: &str| {
        format!(
            "{{% set x = {start} %}}{{% set y = {start} %}}{{% for i in range(100000) %}}\
             {{% for j in range(100) %}}{step}{{% endfor %}}{{% endfor %}}"
        )
    };
    let text = "'abcdefgh' * 100000";
    for step in [
        "{% if x == y %}{% endif %}",
        "{% if x < y %}{% endif %}",
        "{% if y in x %}{% endif %}",
        "{% if 'z' in x %}{% endif %}",
        "{% set z = x[1:] %}",
        "{% set z = x[::-1] %}",
        "{% set z = x | upper %}",
        "{% set z = x.count('a') %}",
        "{% set z = x.find('z') %}",
        "{% set z = x | list %}",
        "{% set z = x | length %}",
    ] {
        fails(&loops(text, step));
    }
    let list = "range(100000) | list";
    for step in [
        "{% if x == y %}{% endif %}",
        "{% if -1 in x %}{% endif %}",
        "{% set z = x + y %}",
        "{% set z = x[1:] %}",
        "{% set z = x | sort %}",
        "{% set z = x | reverse %}",
        "{% set z = x | sum %}",
        "{% set z = x | map('string') %}",
        "{% set z = x | select('eq', -1) %}",
    ] {
        fails(&loops(list, step));
    }
}

#[test]
fn plain_text_counts_wherever_it_is_written() {
    let text = "x".repeat(100_000);
    for source in [
        format!("{{% for i in range(100000) %}}{text}{{% endfor %}}"),
        format!("{{% set y %}}{{% for i in range(100000) %}}{text}{{% endfor %}}{{% endset %}}"),
        format!(
            "{{% macro m() %}}{text}{{% endmacro %}}{{% set ns = namespace(x=[]) %}}\
             {{% for i in range(100000) %}}{{% set ns.x = ns.x + [m()] %}}{{% endfor %}}"
        ),
    ] {
        let start = Instant::now();
        let template = Template::new(&source, None, None).unwrap();
        assert!(matches!(template.render(&conversation()), Err(PromptError::Limit { .. })));
        assert!(start.elapsed() < LIMIT);
    }
}
