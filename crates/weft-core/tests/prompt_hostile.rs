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

/// A step that works on all of `x`, ten million times, ends at the limit.
fn assert_limited(start: &str, step: &str) {
    let error = fails(&format!(
        "{{% set x = {start} %}}{{% set y = {start} %}}{{% for i in range(100000) %}}\
         {{% for j in range(100) %}}{step}{{% endfor %}}{{% endfor %}}"
    ));
    // Of bytes, not of instructions.
    assert!(error.to_string().contains("bytes"), "{step:.100}: {error}");
}

#[test]
fn slow_steps_in_long_loops_are_refused() {
    // The number keeps the compiler from computing them.
    let text = "'abcdefgh' * (100000 | int)";
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
        "{% if 'z' is in(x) %}{% endif %}",
        "{% if x is lower %}{% endif %}",
        "{% if x is startingwith(y) %}{% endif %}",
        "{% if x is endingwith(y) %}{% endif %}",
        "{% if x is sameas(y) %}{% endif %}",
        "{% if [x] | select('in', y) | list %}{% endif %}",
        "{% set z = x[-1] %}",
        "{% set z = x | attr(-1) %}",
    ] {
        assert_limited(text, step);
    }
    assert_limited("'ABCDEFGH' * (100000 | int)", "{% if x is upper %}{% endif %}");
    assert_limited("'11111111' * (100000 | int)", "{% set z = x | float %}");
    assert_limited("'        ' * (100000 | int)", "{% set z = x | int(0) %}");
    let long = format!("{{% if x in '{}' %}}{{% endif %}}", "a".repeat(1_000_000));
    assert_limited("'b'", &long);
    assert_limited("'b'", "{% if x in 'a' * 10000 %}{% endif %}");
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
        "{% if -1 is in(x) %}{% endif %}",
    ] {
        assert_limited(list, step);
    }
}

/// Small constants, and the operators that the compiler leaves to the rendering.
#[test]
fn constants_of_real_templates_are_computed() {
    let text = |source: &str| {
        let template = Template::new(source, None, None).unwrap();
        template.render(&conversation()).unwrap().text()
    };
    let rule = "-".repeat(80);
    assert_eq!(text("{{ '-' * 80 }}"), rule);
    assert_eq!(text("{{ 80 * '-' }}{{ 1024 * 1024 * 1024 }}"), rule + "1073741824");
    assert_eq!(text("{{ 1000000000 * 0.5 }}{{ -1000000000 * 0.5 }}"), "500000000.0-500000000.0");
    assert_eq!(text("{{ 'a' ~ 'b' ~ 1 ~ ['c', 'd'] }}{{ 2 in [1, 2] }}"), "ab1['c', 'd']True");
    assert_eq!(text("{{ 2 ** 10 - 24 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ -(1 / 4) }}"), "100033-0.25");
    assert_eq!(text("{{ 1 < 2 < 3 }}{{ not 'a' }}{{ [1] + [2] }}"), "TrueFalse[1, 2]");
    let long = "x".repeat(200_000);
    assert_eq!(text(&format!("{{{{ '{long}' ~ '{long}' }}}}")).len(), 400_000);
}

/// The compiler computes constants before a rendering has a budget.
#[test]
fn constants_are_bounded_before_they_are_computed() {
    for source in [
        "{{ (0,) * 100000000 }}".to_owned(),
        "{{ 'a' * 100000000 }}".repeat(20),
        "{{ ('a' * 100000000) ~ ('a' * 100000000) }}".to_owned(),
        "{{ [1] * 100000000 ~ '' }}".to_owned(),
        "{{ ['aaaaaaaaaaaaaaaaaaaa'] * 10000 ~ '' }}".to_owned(),
        "{{ 'a' * 1000 * 1000 * 100 }}".to_owned(),
        "{{ (1000 * 1000 * 100) * 'a' }}".to_owned(),
        "{{ 'a' * 10000 }}".repeat(200),
        "{{ (1.5 / 3) ~ '' }}".repeat(5000),
        format!("{{{{ x{} }}}}", " ~ ('a' * 10000)".repeat(200)),
    ] {
        let error = fails(&source);
        assert!(matches!(error, PromptError::Limit { limit: 1_048_576, .. }), "{source}: {error}");
    }
}

/// Wherever a template can write `BIG`.
const PLACES: [&str; 57] = [
    "{% for i in BIG %}{% endfor %}",
    "{% for i in [1] if BIG %}{% endfor %}",
    "{% for i in [1] %}{{ BIG }}{% endfor %}",
    "{% for i in [1] %}{% else %}{{ BIG }}{% endfor %}",
    "{% if BIG %}{% endif %}",
    "{% if 1 %}{{ BIG }}{% endif %}",
    "{% if 1 %}{% else %}{{ BIG }}{% endif %}",
    "{% if 1 %}{% elif BIG %}{% endif %}",
    "{% with x = BIG %}{% endwith %}",
    "{% with x = 1 %}{{ BIG }}{% endwith %}",
    "{% set x = BIG %}",
    "{% set x %}{{ BIG }}{% endset %}",
    "{% set x | default(BIG) %}{% endset %}",
    "{% autoescape BIG %}{% endautoescape %}",
    "{% autoescape true %}{{ BIG }}{% endautoescape %}",
    "{% filter default(BIG) %}{% endfilter %}",
    "{% filter upper %}{{ BIG }}{% endfilter %}",
    "{% block x %}{{ BIG }}{% endblock %}",
    "{% import BIG as x %}",
    "{% from BIG import x %}",
    "{% extends BIG %}",
    "{% include BIG %}",
    "{% macro x(y=BIG) %}{% endmacro %}",
    "{% macro x() %}{{ BIG }}{% endmacro %}",
    "{% call x(BIG) %}{% endcall %}",
    "{% call(y=BIG) x() %}{% endcall %}",
    "{% call x() %}{{ BIG }}{% endcall %}",
    "{% do x(BIG) %}",
    "{% do x[BIG].y() %}",
    "{{ x[BIG:] }}",
    "{{ x[:BIG] }}",
    "{{ x[::BIG] }}",
    "{{ (BIG)[1:] }}",
    "{{ (BIG)[1] }}",
    "{{ x[BIG] }}",
    "{{ (BIG).x }}",
    "{{ BIG if x }}",
    "{{ x if BIG }}",
    "{{ x if y else BIG }}",
    "{{ (BIG) | upper }}",
    "{{ x | default(BIG) }}",
    "{{ x | default(y=BIG) }}",
    "{{ x(*(BIG)) }}",
    "{{ x(**(BIG)) }}",
    "{{ (BIG) is lower }}",
    "{{ x is eq(BIG) }}",
    "{{ (BIG)(1) }}",
    "{{ [BIG] }}",
    "{{ (BIG, x) }}",
    "{{ {BIG: x} }}",
    "{{ {x: BIG} }}",
    "{{ x < (BIG) < y }}",
    "{{ (BIG) < x < y }}",
    "{{ x ~ (BIG) }}",
    "{{ (BIG) ~ x }}",
    "{{ not (BIG) }}",
    "{{ 1 < 2 < (BIG) }}",
];

#[test]
fn constants_are_bounded_wherever_they_are() {
    for place in PLACES {
        let source = place.replace("BIG", "'a' * 2000000");
        let error = Template::new(&source, None, None).unwrap_err();
        assert!(matches!(error, PromptError::Limit { limit: 1_048_576, .. }), "{place}: {error}");
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
