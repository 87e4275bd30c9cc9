//! Strict tools in the three forms of calls: what may be written, and what may not.

use serde_json::json;

use super::*;

/// Its tokens hide colons and brackets inside: `":"`, `></`.
fn tokenizer() -> Arc<Tokenizer> {
    let json = include_bytes!("../../../../../assets/weft-agent/tokenizer.json");
    Arc::new(Tokenizer::from_bytes(json).unwrap())
}

fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer, tokenizer.id_of("<|im_end|>").unwrap()).unwrap()
}

/// A strict tool with two parameters, and one that is not strict.
fn rule(style: CallStyle) -> StrictTools {
    let parameters = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]}}});
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name,
        "parameters": parameters}})
    };
    let (tools, strict) = (vec![tool("weather"), tool("loose")], vec!["weather".to_owned()]);
    StrictTools { tools, strict, style, in_thought: false }
}

fn mask(calls: &mut dyn Constraint, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32) as usize];
    calls.allow(&mut mask).unwrap();
    mask
}

fn may(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// How much of a text may be written, character by character, or null if the answer may not end
/// after it.
fn written(rule: &StrictTools, text: &str) -> Option<String> {
    let tokenizer = tokenizer();
    let mut calls = grammars(&tokenizer).strict(&tokenizer, rule, "tools").unwrap();
    let mut written = String::new();
    for character in text.chars() {
        for token in tokenizer.encode_text(&character.to_string()).unwrap() {
            if !may(&mask(&mut *calls, &tokenizer), token) {
                return Some(written);
            }
            calls.accept(token).unwrap();
        }
        written.push(character);
    }
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    may(&mask(&mut *calls, &tokenizer), end).then_some(written)
}

/// Texts that may be written as they are, and those that may not from the mark `|` on.
fn check(rule: &StrictTools, right: &[&str], wrong: &[&str]) {
    for text in right {
        assert_eq!(written(rule, text).as_deref(), Some(*text));
    }
    for text in wrong {
        let (before, after) = text.split_once('|').unwrap();
        let found = written(rule, &format!("{before}{after}"));
        assert_eq!(found.as_deref(), Some(before), "{text}");
    }
}

#[test]
fn calls_in_tags_of_hermes_fit_their_schemas_and_text_is_free() {
    let right = [
        "",
        "No call: {\"name\": 7} <tool> </tool_call>",
        "Well. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
         </tool_call>\nDone <b>",
        "<tool_call>{\"name\": \"loose\", \"arguments\": {\"x\": [1]}}</tool_call>\
         <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"\", \"days\": 2}}\
         </tool_call>",
        "<think>\nI say <tool_call>anything</think>\n\nNo.",
    ];
    let wrong = [
        "<tool_call>|Hello",
        "<tool_call>\n{\"name\": \"|news\"",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {|}",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": |1",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\", \"|x\": 1",
        "<tool_call>\n{\"name\": \"loose\", \"arguments\": |1",
        "a</think><tool_call>|b",
        "<think>a</think> <tool_call>|b",
    ];
    check(&rule(CallStyle::Hermes), &right, &wrong);
    let in_thought = StrictTools { in_thought: true, ..rule(CallStyle::Hermes) };
    check(&in_thought, &["<tool_call>x</think> y"], &["<tool_call>x</think><tool_call>|y"]);
}

#[test]
fn calls_in_tags_of_qwen3_coder_fit_their_schemas() {
    let right = [
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome <b>\n</parameter>\n\
         <parameter=days>\n2\n</parameter>\n<parameter=unit>\nF\n</parameter>\n</function>\n\
         </tool_call>",
        "See: <function=weather><parameter=city>Rome</parameter></function> so",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"\"}}</tool_call>",
        "<tool_call><function=loose><parameter=x>1</parameter></function></tool_call>",
    ];
    let wrong = [
        "<tool_call>\n<function=|news>",
        "<function=weather>\n<|/function>",
        "<function=weather><parameter=city>a</parameter><parameter=days>\n|two",
        "<function=weather><parameter=city>a</parameter><parameter=unit>\n|K",
        "<function=weather><parameter=city>a</parameter><parameter=|x",
    ];
    check(&rule(CallStyle::Tags), &right, &wrong);
    // A text with conditions can be followed as JSON alone.
    let mut conditions = rule(CallStyle::Tags);
    conditions.tools.truncate(1);
    conditions.tools[0]["function"]["parameters"]["properties"]["city"]["maxLength"] = 2.into();
    let json = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"ab\"}}";
    let wrong = ["<function|=weather>", "<tool_call>|<function", &json.replace("b\"", "b|c")];
    check(&conditions, &[&format!("{json}</tool_call>")], &wrong);
}

/// What is read as JSON first is written as JSON, or "12" would become a number.
#[test]
fn texts_in_tags_are_quoted_unless_the_schema_says_that_they_are_texts() {
    let mut tools = rule(CallStyle::Tags);
    let properties = json!({"a": {"const": "12"}, "b": {"enum": ["12"]},
        "c": {"type": ["string", "null"], "enum": ["12"]}});
    tools.tools[0]["function"]["parameters"] = json!({"type": "object", "properties": properties});
    let parameter = |name: &str, text: &str| format!("<parameter={name}>{text}</parameter>");
    let call = |text: &str| format!("<function=weather>{text}</function>");
    let right = [("a", "\"12\""), ("b", "12"), ("c", "\"12\"")];
    let right = right.map(|(name, text)| call(&parameter(name, text)));
    let wrong = ["a>|12", "b>|\"12", "c>|12"].map(|t| format!("<function=weather><parameter={t}"));
    check(&tools, &right.each_ref().map(|t| &**t), &wrong.each_ref().map(|t| &**t));
}

#[test]
fn all_strict_tools_are_bounded_together() {
    let options = |key: &str| -> Vec<Value> {
        (0..40).map(|i| json!({"type": "object", "required": [format!("{key}{i}")]})).collect()
    };
    let mut tools = rule(CallStyle::Hermes);
    tools.tools[0]["function"]["parameters"] =
        json!({"allOf": [{"anyOf": options("a")}, {"anyOf": options("b")}]});
    assert!(calls::schema(&tools.tools[..1], tools.style).is_ok(), "one alone");
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    tools.tools = vec![tools.tools[0].clone(); 8];
    let error = grammars.strict(&tokenizer, &tools, "tools").err().unwrap();
    assert!(error.message().contains("combin"), "{}", error.message());
}

#[test]
fn bare_calls_of_llama_fit_their_schemas() {
    let right = [
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}",
        "Well:\n {\"name\": \"loose\", \"parameters\": {}}; \
         { \"type\" : \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"\"}}",
        "{\"title\": 1, \"name\": 2} and {\"name\": 3}",
        "{\"name\": \"Ann\", \"age\": 7}\n{\"name\": 1}, {\"name\": \"weathers\"}",
        "<|python_tag|>{\"name\": \"loose\", \"parameters\": {}}",
        "<function=weather>{\"city\": \"Rome\"}</function>",
    ];
    let wrong = [
        "{\"name\": \"weather\"|}",
        "{\n  \"name\" :\n \"weather\"|;",
        "a {\"type\": \"function\", \"name\": \"weather\", \"|x\"",
        "{\"name\": \"weather\", \"parameters\": {\"|x",
        "<function=weather>{\"|x\"",
        "{\"name\": \"loose\", \"parameters\": {}} }, {\"name\": \"weather\", \"parameters\": {\"|x",
    ];
    check(&rule(CallStyle::Bare), &right, &wrong);
}

/// A token that completes the opening and has more than white space after it would pass by the
/// grammar.
#[test]
fn tokens_that_hide_an_opening_are_forbidden() {
    let tokenizer = tokenizer();
    let id = |text: &str| {
        let found = (0..tokenizer.vocab_size())
            .find(|id| tokenizer.token_bytes(*id) == Some(text.as_bytes()));
        found.unwrap_or_else(|| panic!("no token {text}"))
    };
    for (style, before, hidden, plain) in [
        (CallStyle::Bare, "{\n \"name\":\n\"weather", "\":\"", "\""),
        (CallStyle::Hermes, "<tool_call", "></", ">"),
    ] {
        let mut calls = grammars(&tokenizer).strict(&tokenizer, &rule(style), "x").unwrap();
        assert!(may(&mask(&mut *calls, &tokenizer), id(hidden)), "anywhere else");
        for character in before.chars() {
            let tokens = tokenizer.encode_text(&character.to_string()).unwrap();
            tokens.iter().for_each(|token| calls.accept(*token).unwrap());
        }
        let now = mask(&mut *calls, &tokenizer);
        assert!(!may(&now, id(hidden)) && may(&now, id(plain)), "{before}");
    }
}

/// Tokens that are taken back leave no trace, also across the beginning and the end of a call.
#[test]
fn what_is_taken_back_was_never_said() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    let text = "<think>hm</think>Yes<tool_call>\n{\"name\": \"loose\", \"arguments\": {}}\n\
                </tool_call><tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}\
                </tool_call> so";
    let tokens = tokenizer.encode_text(text).unwrap();
    let new = || grammars.strict(&tokenizer, &rule(CallStyle::Hermes), "x").unwrap();
    let mut plain = new();
    let masks: Vec<_> = tokens
        .iter()
        .map(|token| {
            let now = mask(&mut *plain, &tokenizer);
            assert!(may(&now, *token), "{token}");
            plain.accept(*token).unwrap();
            now
        })
        .collect();
    let mut calls = new();
    for at in 0..tokens.len() {
        for n in [1, 3, 8] {
            let ahead = &tokens[at..tokens.len().min(at + n)];
            let mut copy = calls.boxed_clone();
            for (i, token) in ahead.iter().enumerate() {
                assert_eq!(mask(&mut *calls, &tokenizer), masks[at + i]);
                assert_eq!(mask(&mut *copy, &tokenizer), masks[at + i]);
                calls.accept(*token).unwrap();
                copy.accept(*token).unwrap();
            }
            calls.roll_back(ahead.len()).unwrap();
            assert_eq!(mask(&mut *calls, &tokenizer), masks[at], "{n} from {at}");
        }
        calls.accept(tokens[at]).unwrap();
    }
}
