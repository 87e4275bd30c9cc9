//! Finds the chat template in a model's folder.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, not in their helpers.

use weft_core::prompt::{Conversation, Message, PromptError, Template};

fn user(content: &str) -> Conversation {
    Conversation::new(vec![Message::user(content)], None)
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn templates_come_from_the_folder() {
    let load = |files: &[(&str, &str)]| Template::from_folder(folder(files).path());
    let text =
        |files: &[(&str, &str)]| load(files).unwrap().unwrap().render(&user("c")).unwrap().text();
    let (jinja, config) = ("chat_template.jinja", "tokenizer_config.json");
    assert!(load(&[]).unwrap().is_none());
    assert!(load(&[(config, r#"{"bos_token": null}"#)]).unwrap().is_none());
    let source = "j{{ bos_token }}{{ eos_token }}";
    assert_eq!(text(&[(jinja, source)]), "j");
    let both = r#"{"chat_template": "c", "bos_token": "<b>", "eos_token": {"content": "<e>"}}"#;
    assert_eq!(text(&[(jinja, source), (config, both)]), "j<b><e>");
    assert_eq!(text(&[(config, both)]), "c");
    let list = r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
    assert_eq!(text(&[(config, list)]), "d");

    let error = |files: &[(&str, &str)]| load(files).unwrap_err();
    let unnamed = r#"{"chat_template": [{"name": "rag", "template": "r"}]}"#;
    assert!(error(&[(config, unnamed)]).to_string().contains("default"));
    assert!(matches!(error(&[(config, "{")]), PromptError::Malformed { .. }));
    assert!(error(&[(config, r#"{"chat_template": 3}"#)]).to_string().contains("must be a string"));
    assert!(matches!(error(&[(jinja, "{% if")]), PromptError::Syntax { line: 1, .. }));
    let long = "x".repeat((1 << 20) + 1);
    assert!(matches!(error(&[(jinja, &long)]), PromptError::Limit { limit: 1_048_576, .. }));
    let long_inside = format!(r#"{{"chat_template": "{long}"}}"#);
    assert!(matches!(error(&[(config, &long_inside)]), PromptError::Limit { .. }));
    let huge = " ".repeat((16 << 20) + 1);
    assert!(matches!(error(&[(config, &huge)]), PromptError::Limit { limit: 16_777_216, .. }));
    let binary = folder(&[]);
    std::fs::write(binary.path().join(jinja), [0xff, 0xfe]).unwrap();
    assert!(matches!(Template::from_folder(binary.path()), Err(PromptError::Malformed { .. })));
    let directory = folder(&[]);
    std::fs::create_dir(directory.path().join(jinja)).unwrap();
    assert!(matches!(Template::from_folder(directory.path()), Err(PromptError::Read { .. })));
}
