//! The tools that a request offers: functions, those of namespaces, and those of the provider.
//!
//! A model knows functions only. A function of a namespace has both names for it, and calls are
//! taken apart again for the client. The provider's own tools run nowhere here.

use std::collections::HashSet;

use serde_json::Value;

use crate::api_error::ApiError;
use crate::requests::MAX_NAME_CHARS;

/// Between the names of a namespace and a function; OpenAI's names do not contain it.
const SEPARATOR: char = '.';
/// The most characters of a name that a model sees.
pub(super) const MAX_FLAT_CHARS: usize = 2 * MAX_NAME_CHARS + SEPARATOR.len_utf8();
/// Tools of the provider that agents offer beside their own, and that a model need not call.
const ELSEWHERE: [&str; 3] = ["web_search", "web_search_preview", "image_generation"];

/// The name that a model sees.
pub(super) fn flat(namespace: Option<&Value>, name: &str) -> String {
    match namespace.and_then(Value::as_str) {
        Some(namespace) => format!("{namespace}{SEPARATOR}{name}"),
        None => name.to_owned(),
    }
}

/// The namespace and the function of a name that a model sees, if a namespace offers it.
pub(super) fn split<'a>(tools: &Value, name: &'a str) -> Option<(&'a str, &'a str)> {
    let offers = |space: &str, function: &str| {
        tools.as_array().into_iter().flatten().any(|tool| {
            let members = tool["tools"].as_array().into_iter().flatten();
            is_namespace(tool)
                && tool["name"] == space
                && members.into_iter().any(|member| member["name"] == function)
        })
    };
    let places = name.match_indices(SEPARATOR);
    let mut parts = places.map(|(at, _)| (&name[..at], &name[at + SEPARATOR.len_utf8()..]));
    parts.find(|(space, function)| offers(space, function))
}

/// The functions that are offered. The provider's tools are left out beside functions of which the
/// model is free to call none; a request for such tools alone is left to be refused.
pub(super) fn functions(tools: Vec<Value>, is_free: bool) -> Result<Vec<Value>, ApiError> {
    let mut functions = Vec::with_capacity(tools.len());
    for (index, mut tool) in tools.into_iter().enumerate() {
        check_name(&tool["name"])?;
        if !is_namespace(&tool) {
            functions.push(tool);
            continue;
        }
        let space = tool["name"].take();
        let (Some(_), Value::Array(members)) = (space.as_str(), tool["tools"].take()) else {
            let param = format!("tools[{index}]");
            let message = format!("{param}: a namespace needs a name and a list of tools");
            return Err(ApiError::invalid(message).param(param));
        };
        for mut member in members {
            check_name(&member["name"])?;
            if let Some(name) = member["name"].as_str().map(|name| flat(Some(&space), name)) {
                member["name"] = name.into();
            }
            functions.push(member);
        }
    }
    if is_free && functions.iter().any(|tool| tool["type"] == "function") {
        functions.retain(|tool| !is_elsewhere(tool));
    }
    let mut names = HashSet::new();
    match functions
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .find(|name| !names.insert(*name))
    {
        Some(name) => {
            let message = format!("two tools have the name {name:?}: each needs its own");
            Err(ApiError::invalid(message).param("tools"))
        }
        None => Ok(functions),
    }
}

/// Refuses the name of a function or of a namespace if it is too long.
fn check_name(name: &Value) -> Result<(), ApiError> {
    let name = name.as_str().unwrap_or_default();
    let n = name.chars().count();
    if n <= MAX_NAME_CHARS {
        return Ok(());
    }
    let start: String = name.chars().take(MAX_NAME_CHARS).collect();
    let message = format!(
        "the name {start:?}… of a tool has {n} characters, and the limit is {MAX_NAME_CHARS}"
    );
    Err(ApiError::invalid(message).param("tools"))
}

/// The tools that a response repeats: those that the model was offered.
pub(super) fn shown(mut tools: Value) -> Value {
    if let Value::Array(tools) = &mut tools {
        tools.retain(|tool| !is_elsewhere(tool));
    }
    tools
}

fn is_namespace(tool: &Value) -> bool {
    tool.get("type").is_some_and(|kind| kind == "namespace")
}

fn is_elsewhere(tool: &Value) -> bool {
    let kind = tool.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| ELSEWHERE.contains(&kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offered() -> Value {
        json!([
            {"type": "function", "name": "a.b"},
            {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "call"}]},
            {"type": "web_search"},
        ])
    }

    fn names(tools: &[Value]) -> Vec<&str> {
        tools.iter().map(|tool| tool["name"].as_str().unwrap_or("-")).collect()
    }

    #[test]
    fn a_function_of_a_namespace_has_both_names_and_is_taken_apart_again() {
        let tools = offered();
        assert_eq!(split(&tools, "team.call"), Some(("team", "call")));
        for plain in ["a.b", "team.other", "team", "call", "", ".", "team."] {
            assert_eq!(split(&tools, plain), None, "{plain}");
        }
        assert_eq!(flat(Some(&json!("team")), "call"), "team.call");
        assert_eq!(flat(None, "call"), "call");
    }

    #[test]
    fn tools_of_the_provider_are_left_out_only_beside_functions_that_need_not_be_called() {
        let list = |tools: Value| tools.as_array().unwrap().clone();
        let free = functions(list(offered()), true).unwrap();
        assert_eq!(names(&free), ["a.b", "team.call"]);
        let forced = functions(list(offered()), false).unwrap();
        assert_eq!(names(&forced), ["a.b", "team.call", "-"]);
        let alone = functions(vec![json!({"type": "web_search"})], true).unwrap();
        assert_eq!(names(&alone), ["-"]);
        let shown = shown(offered());
        assert_eq!(names(shown.as_array().unwrap()), ["a.b", "team"]);
    }

    #[test]
    fn what_is_no_namespace_is_refused_or_left_to_be_refused() {
        for broken in [json!({"name": "x"}), json!({"tools": []}), json!({"name": 1, "tools": []})]
        {
            let mut tool = broken;
            tool["type"] = "namespace".into();
            let error = functions(vec![json!({}), tool], true).err().unwrap();
            assert!(error.message().contains("tools[1]"), "{}", error.message());
        }
        let long = |n| "x".repeat(n);
        let space = |space: &str, name: &str| {
            json!({"type": "namespace", "name": space, "tools": [
                {"type": "function", "name": name}]})
        };
        let plain = |name: &str| json!({"type": "function", "name": name});
        let most = functions(vec![space(&long(64), &long(64)), plain(&long(64))], true).unwrap();
        assert_eq!(names(&most)[0].len(), MAX_FLAT_CHARS);
        for (tools, why) in [
            (vec![space(&long(65), "a")], "65 characters"),
            (vec![space("a", &long(65))], "65 characters"),
            (vec![plain(&long(65))], "65 characters"),
            (vec![plain("a"), plain("a")], "the name \"a\""),
            (vec![plain("a.b"), space("a", "b")], "the name \"a.b\""),
        ] {
            let error = functions(tools, true).err().unwrap();
            assert!(error.message().contains(why), "{}", error.message());
        }
        let odd = json!({"type": "namespace", "name": "x", "tools": [1, "y", [], {"name": 2}]});
        assert_eq!(functions(vec![odd, json!(7)], true).unwrap().len(), 5);
    }
}
