//! Calls in every form, however the text is cut.

use proptest::prelude::*;
use serde_json::Value;

use super::pieces::{Parsed, calls_in_pieces as parsed, form};
use super::*;

/// The pieces of `size` characters of a text.
fn pieces(text: &str, size: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

/// The same for every size of the pieces.
fn read_all(style: CallStyle, text: &str) -> Parsed {
    let whole = parsed(style, [text], false);
    for size in [1, 2, 3, 7] {
        let pieces = pieces(text, size);
        let cut = parsed(style, pieces.iter().map(String::as_str), false);
        assert_eq!(cut, whole, "pieces of {size} of {text:?}");
    }
    whole
}

fn called(calls: &[(&str, &str)]) -> Vec<(String, String)> {
    calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect()
}

#[test]
fn calls_between_tags_are_found_with_text_around_them() {
    let text = "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\
                \n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n\
                <tool_call>{\"arguments\": \"{}\", \"name\": \"h\"}</tool_call>\nThat is all.";
    let (content, calls, is_complete) = read_all(CallStyle::Hermes, text);
    assert_eq!(content, "Let me look.\nThat is all.");
    assert_eq!(calls, called(&[("f", "{\"b\":1,\"a\":\"é\"}"), ("g", "{}"), ("h", "{}")]));
    assert!(is_complete);
    let listed = "<tool_call>[{\"name\": \"f\"}, {\"name\": \"g\"}]</tool_call>";
    assert_eq!(read_all(CallStyle::Hermes, listed).1, called(&[("f", "{}"), ("g", "{}")]));
}

#[test]
fn bare_calls_are_found_alone_in_a_row_and_in_lines() {
    let call = "{\"name\": \"f\", \"parameters\": {\"n\": 1}}";
    let f = ("f", "{\"n\":1}");
    for (text, content, n) in [
        (call.to_owned(), "", 1),
        (format!("<|python_tag|>{call}"), "", 1),
        (format!("{call}; {call}"), "", 2),
        (format!("{call}\n{call}"), "", 2),
        (format!("<|python_tag|>{call};<|python_tag|>{call}"), "", 2),
        (format!("I look.\n\n{call}\nDone."), "I look.Done.", 1),
        (format!(" \n{}", call.replace("{\"name", "{\"type\": \"function\", \"name")), "", 1),
        ("<function=f>{\"n\": 1}</function>".to_owned(), "", 1),
    ] {
        let (said, calls, is_complete) = read_all(CallStyle::Bare, &text);
        assert_eq!((&*said, calls), (content, called(&vec![f; n])), "{text}");
        assert!(is_complete);
    }
    for text in [
        "{\"name\": \"Ann\", \"age\": 7}",
        "{\"name\": \"unknown\", \"parameters\": {}}",
        "A set {1, 2}\n{ and text",
        "<|python_tag|>print(1)",
        "see {\"name\": \"f\", \"parameters\": {}} inside of a line",
        // Strict tools know the beginning of a call by its plain bytes.
        "{\"\\u006eame\": \"f\", \"parameters\": {}}",
        "{\"name\": \"\\u0066\", \"parameters\": {}}",
        "{\u{a0}\"name\": \"f\", \"parameters\": {}}",
        "\u{a0}{\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"f",
        &format!("{{{}\"name\": \"f\", \"parameters\": {{}}}}", " ".repeat(MAX_BARE_OPENING)),
    ] {
        assert_eq!(read_all(CallStyle::Bare, text), (text.to_owned(), Vec::new(), false));
    }
}

#[test]
fn calls_in_tags_have_the_types_of_their_schema() {
    let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let body =
        format!("<function=f>\n{}{}</function>", parameter("a", "1\n</b>2"), parameter("n", "3"));
    let wanted = called(&[("f", "{\"a\":\"1\\n</b>2\",\"n\":3}")]);
    for text in [
        format!("<tool_call>\n{body}\n</tool_call>"),
        body.clone(),
        format!("{body}\n</tool_call>"),
        format!("<tool_call>\n{}", body.trim_end_matches("</function>")),
    ] {
        assert_eq!(
            read_all(CallStyle::Tags, &text),
            (String::new(), wanted.clone(), true),
            "{text}"
        );
    }
    let two = format!(
        "So:\n<tool_call>\n{body}\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n\
                       </tool_call> ok"
    );
    let (content, calls, _) = read_all(CallStyle::Tags, &two);
    assert_eq!((&*content, calls.len(), &*calls[1].1), ("So: ok", 2, "{}"));
    // A model that was taught tags is constrained to JSON.
    let json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>";
    assert_eq!(read_all(CallStyle::Tags, json).1, called(&[("f", "{\"n\":3}")]));
}

#[test]
fn broken_json_is_mended() {
    for (broken, wanted) in [
        ("{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}\n</tool_call>", "{\"a\":\"x\"}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": [1, 2\n</tool_call>", "{\"a\":[1,2]}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": \"x\n</tool_call>", "{\"a\":\"x\"}"),
        ("{\"name\": \"f\", \"arguments\": {'a': True,}}\n</tool_call>", "{\"a\":true}"),
        ("{'name': 'f', 'arguments': {'a': None}}</tool_call>", "{\"a\":null}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": 3}</tool_call>", "{\"a\":1}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{\"a\":1}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": \"x", "{\"a\":\"x\"}"),
    ] {
        let text = format!("<tool_call>\n{broken}");
        let wanted = (String::new(), called(&[("f", wanted)]), true);
        assert_eq!(read_all(CallStyle::Hermes, &text), wanted, "{text}");
    }
    let unclosed = "<tool_call>{\"name\": \"f\", \"arguments\": {}}\nAnd text.";
    assert_eq!(read_all(CallStyle::Hermes, unclosed).0, "And text.");
}

#[test]
fn arguments_are_sent_as_they_come() {
    let arguments = "{\"a\":[{}, \"\\\"} </tool_call>\\\\\"],\"b\":{\"c\":2}}";
    let compact = arguments.replace("}, ", "},");
    let hermes =
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
    let bare = format!("{{\"name\": \"f\", \"parameters\": {arguments}}}");
    for (style, text) in [(CallStyle::Hermes, hermes), (CallStyle::Bare, bare)] {
        let mut stream = ToolCallStream::new(form(style));
        let pushed = pieces(&text, 1).into_iter().flat_map(|piece| stream.push(&piece).calls);
        let deltas: Vec<CallDelta> = pushed.collect();
        assert_eq!(deltas[0].beginning.as_ref().unwrap().name, "f");
        assert!(deltas[1..].iter().all(|delta| delta.beginning.is_none() && delta.index == 0));
        assert!(deltas.len() > compact.len() / 2, "{deltas:?}");
        let joined: String = deltas.iter().map(|delta| &*delta.arguments).collect();
        assert_eq!(joined, compact);
        assert!(stream.has_complete_calls());
    }
}

#[test]
fn a_call_that_is_cut_off_keeps_what_there_is() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"no";
    for size in [1, 1000] {
        let pieces = pieces(text, size);
        let (content, calls, is_complete) =
            parsed(CallStyle::Hermes, pieces.iter().map(String::as_str), true);
        assert_eq!((&*content, calls), ("", called(&[("f", "{\"a\":\"no")])), "{size}");
        assert!(!is_complete);
    }
    let mut stream = ToolCallStream::required(form(CallStyle::Hermes), Some("f".to_owned()));
    let found = stream.push("<tool_");
    assert_eq!((&*found.before, found.calls.len()), ("", 1), "the tool is known at once");
    assert_eq!((stream.finish(true), stream.has_complete_calls()), (Found::default(), false));
    let mut stream = ToolCallStream::required(form(CallStyle::Hermes), None);
    assert_eq!(stream.push("<tool_call>\n{\"name\": \"f"), Found::default());
    assert_eq!(stream.finish(true), Found::default(), "half a name is no call and no text");
    let mut stream = ToolCallStream::required(form(CallStyle::Bare), Some("f".to_owned()));
    stream.push("{\"name\": \"f\", \"parameters\": {\"n\": 1}}");
    assert!(stream.has_complete_calls());
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "a < b and <tool_box>",
        "x <tool_call>not json</tool_call> y",
        "<tool_call>{\"title\": \"f\"",
        "ends with <tool_",
        "trailing space \n",
    ] {
        let wanted = (text.to_owned(), Vec::new(), false);
        assert_eq!(read_all(CallStyle::Hermes, text), wanted, "{text}");
    }
    let named = "<tool_call>{\"name\": \"f\"";
    assert_eq!(parsed(CallStyle::Hermes, [named], true).0, named, "cut off before its arguments");
}

#[test]
fn a_tag_in_a_name_ends_the_call() {
    let text = "<tool_call>{\"name\": \"f</tool_call>\", \"arguments\": {}}";
    let (content, calls, _) = read_all(CallStyle::Hermes, text);
    assert_eq!((&*content, calls), ("\", \"arguments\": {}}", called(&[("f", "{}")])));
}

#[test]
fn any_white_space_after_a_call_belongs_to_it() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}\u{3000}}\u{b}</tool_call>.";
    let (content, calls, _) = read_all(CallStyle::Hermes, text);
    assert_eq!((&*content, calls), (".", called(&[("f", "{}")])));
}

/// The same wherever the text is cut in two, and character by character.
fn read_at_all_cuts(style: CallStyle, text: &str, is_cut: bool) -> Parsed {
    let whole = parsed(style, [text], is_cut);
    for (at, _) in text.char_indices() {
        let halves = text.split_at(at);
        assert_eq!(parsed(style, [halves.0, halves.1], is_cut), whole, "{text:?} cut at {at}");
    }
    let characters = pieces(text, 1);
    let cut = parsed(style, characters.iter().map(String::as_str), is_cut);
    assert_eq!(cut, whole, "the characters of {text:?}");
    whole
}

/// weft's own JSON reader refuses what is nested deeper than 127. The writers of Messages and
/// Ollama's API read the arguments with it, and would send an empty object instead.
#[test]
fn arguments_that_are_nested_too_deep_are_null_from_there_on() {
    let lists = |n: usize, inner: &str| format!("{}{inner}{}", "[".repeat(n), "]".repeat(n));
    let deepest = MAX_DEPTH - 1;
    for (n, inner) in [(deepest, ""), (deepest + 1, "1"), (127, "{}"), (300, "\"]\"")] {
        let deep = lists(n, inner);
        let kept = if n > deepest { lists(deepest, "null") } else { deep.clone() };
        let arguments = format!("{{\"x\":{deep},\"n\":1}}");
        let wanted = called(&[("f", &format!("{{\"x\":{kept},\"n\":1}}"))]);
        let text = Value::from(&*arguments);
        let hermes = CallStyle::Hermes;
        for (style, text) in [
            (
                hermes,
                format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>"),
            ),
            (
                hermes,
                format!("<tool_call>{{\"arguments\":{arguments},\"name\":\"f\"}}</tool_call>"),
            ),
            (hermes, format!("<tool_call>{{\"arguments\":{text},\"name\":\"f\"}}</tool_call>")),
            (
                hermes,
                format!("<tool_call>[{{\"name\":\"f\",\"parameters\":{arguments}}}]</tool_call>"),
            ),
            (CallStyle::Tags, format!("<function=f>{arguments}</function>")),
            (CallStyle::Bare, format!("{{\"name\":\"f\",\"parameters\":{arguments}}}")),
        ] {
            let read = read_at_all_cuts(style, &text, false);
            assert_eq!(read, (String::new(), wanted.clone(), true), "{text}");
        }
        // A parameter that is no JSON that can be read is a text.
        let tags = format!("<function=f><parameter=n>{deep}</parameter></function>");
        let value = if n > deepest { Value::from(&*deep).to_string() } else { deep.clone() };
        let wanted = called(&[("f", &format!("{{\"n\":{value}}}"))]);
        assert_eq!(read_at_all_cuts(CallStyle::Tags, &tags, false).1, wanted, "{tags}");
    }
}

#[test]
fn deep_arguments_are_valid_however_they_end() {
    for begin in ["[", "{a:", "[{\"\"", "{x[[{'y", "{\"\\u00"] {
        for end in ["", "1", "}", "]}", "</tool_call>", "\n</function>", "\"]}", "'\\ud83d"] {
            let arguments = format!("{{a{}{end}", begin.repeat(140));
            for (style, opener) in [
                (CallStyle::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": "),
                (CallStyle::Tags, "<function=f>"),
                (CallStyle::Bare, "{\"name\": \"f\", \"parameters\": "),
            ] {
                let text = format!("{opener}{arguments}");
                let (_, calls, is_complete) = read_all(style, &text);
                assert!(is_complete && calls.len() == 1, "{text}");
                let json: Result<Value, _> = serde_json::from_str(&calls[0].1);
                assert!(json.is_ok_and(|json| json.is_object()), "{text} gave {}", calls[0].1);
                read_at_all_cuts(style, &text[..text.len().min(400)], true);
            }
        }
    }
}

#[test]
fn text_after_a_call_comes_after_it() {
    let mut stream = ToolCallStream::new(form(CallStyle::Hermes));
    let found = stream.push("a<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>b");
    assert_eq!((&*found.before, found.calls.len(), &*found.after), ("a", 1, "b"));
}

/// Fragments of which models' answers are made, whole and broken.
const FRAGMENTS: [&str; 26] = [
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"a\": 1}",
    "{\"name\": \"g\", \"parameters\": {",
    "}",
    "}}",
    "{",
    "\"",
    "\"x\": \"y\"",
    ",",
    "text é",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "<|python_tag|>",
    "; ",
    "[",
    "\\",
    "<",
    "'",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];

proptest! {
    /// Any division of any text gives the same calls and the same text, and arguments that are
    /// complete are valid.
    #[test]
    fn however_the_text_is_cut_the_calls_are_the_same(
        chosen in prop::collection::vec(0..FRAGMENTS.len(), 0..24),
        cuts in prop::collection::vec(1_usize..9, 1..40),
        style in prop::sample::select(vec![CallStyle::Hermes, CallStyle::Tags, CallStyle::Bare]),
        is_cut in any::<bool>(),
    ) {
        let text: String = chosen.iter().map(|index| FRAGMENTS[*index]).collect();
        let whole = parsed(style, [&*text], is_cut);
        let mut rest: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(rest.drain(..(*cut).min(rest.len())).collect::<String>());
        }
        let cut = parsed(style, pieces.iter().map(String::as_str), is_cut);
        prop_assert_eq!(&cut, &whole, "{:?}", text);
        let (_, calls, is_complete) = whole;
        for (_, arguments) in calls.iter().filter(|_| is_complete) {
            let value: Result<Value, _> = serde_json::from_str(arguments);
            prop_assert!(value.is_ok(), "{text:?} gave {arguments}");
        }
    }
}
